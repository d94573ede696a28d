"""Checks against a baseline: regressions of each kind, and what belongs to a baseline."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortconv
from ortconv.checking import check as checking
from ortconv.checking import measuring
from ortconv.checking.baseline import read_baseline, stored_model
from ortconv.checking.check import CheckedMetric, RunSettings, check
from ortconv.checking.measuring import MeasuredRatios
from ortconv.cli import main
from ortconv.errors import FormatError, GateError, UsageError
from ortconv.partition import Target
from ortconv.report.check import _change
from ortconv.tuning.intervals import Interval
from tests.conftest import ROOT
from tests.json_schema import faults

SIZE = 256
STATIC = RunSettings(measure=False)


def model(path: Path, nodes: str, opset: int = 17, off: float = 0.0, external: bool = False) -> Path:
    """An .onnx model of these nodes from x to y, with weights w and the identity i."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{SIZE},{SIZE}] x) => (float[{SIZE},{SIZE}] y) {{ {nodes} }}'
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    weights = {
        "w": random.normal(size=(SIZE, SIZE)).astype(np.float32) / 16 + np.float32(off),
        "i": np.eye(SIZE, dtype=np.float32),
    }
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in weights.items() if n in read)
    path.with_suffix(".bin").unlink(missing_ok=True)
    onnx.save_model(proto, str(path), save_as_external_data=external, location=f"{path.stem}.bin", size_threshold=0)
    return path


PLAIN = "a = MatMul(x, w)  b = Relu(a)  y = Sigmoid(b)"


def converted(folder: Path, nodes: str, **settings: Any) -> Path:
    """The same as app.ort in a folder."""
    source = model(folder / "app.onnx", nodes, **settings)
    ortconv.convert(source, folder / "app.ort", optimization_level="disable", write_config=False)
    return folder / "app.ort"


def stamped(base: Path) -> Path:
    """The model of the baseline with other metadata."""
    ortconv.convert(base.with_name("app.onnx"), base.with_name("stamped.ort"), optimization_level="disable", stamp=True)
    return base.with_name("stamped.ort")


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline, base.json, and the model in it."""
    folder = tmp_path_factory.mktemp("accepted")
    assert check(converted(folder, PLAIN), folder / "base.json", update=True).updated
    return folder


@pytest.fixture
def base(accepted: Path, tmp_path: Path) -> Path:
    """A copy of that folder that a test may change; its baseline."""
    shutil.copytree(accepted, tmp_path, dirs_exist_ok=True)
    return tmp_path / "base.json"


def test_nothing_moved(base: Path) -> None:
    again = check(base.with_name("app.ort"), base)
    assert again.notes == ["the model is that of the baseline, byte for byte: it was not run"]
    for found in (again, check(stamped(base), base, runs=STATIC)):
        assert found.failed == []
        assert [m.name for m in found.metrics if m.moved and m.name != "size"] == []
        assert found.stored == str(base.parent / "base.model/app.ort")
    assert (len(again.conditions), len(found.conditions)) == (8, 6)
    assert check(base.with_name("app.ort"), base, fail_on=["latency>0s", "outputs>0"]).failed == []


@pytest.mark.parametrize(
    ("nodes", "settings", "condition", "message"),
    [
        ("a = MatMul(x, w)  b = Ceil(a)  b2 = Add(a, b)  b3 = Sub(b2, b)  c = Relu(b3)  y = Sigmoid(c)", {}, "partitions>+0",
         "partitions is 2, 1 in the baseline (partitions>+0): refused: Ceil by operator 0 -> 1"),
        ("a = MatMul(x, w)  a2 = Ceil(a)  b = Relu(a2)  y = Sigmoid(b)", {}, "coverage<-0",
         "coverage is 75%, 100% in the baseline (coverage<-0): refused: Ceil by operator 0 -> 1"),
        ("a = MatMul(x, w)  a2 = MatMul(a, i)  b = Relu(a2)  y = Sigmoid(b)", {}, "size>+5%",
         "size is 526.2 kB, 263.8 kB in the baseline, +99.4% (size>+5%)"),
        (PLAIN, {"off": 0.01}, "outputs>0", "outputs is 1, 0 in the baseline (outputs>0): 'y' scaled"),
        ("a = MatMul(x, w)  b = Relu(a)  y = HardSigmoid(b)", {}, "missing>0",
         "missing is 1, 0 in the baseline (missing>0): ai.onnx;6;HardSigmoid"),
        ("a = MatMul(x, w)  b = Gelu(a)  y = Sigmoid(b)", {"opset": 20}, "onnxruntime>+0",
         "onnxruntime is 1.18, 1.13 in the baseline (onnxruntime>+0): Gelu 'b'"),
    ],
    ids=["partition", "coverage", "larger", "numbers", "operator", "release"],
)  # fmt: skip
def test_planted_regressions(
    nodes: str, settings: dict[str, Any], condition: str, message: str, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = converted(base.parent, nodes, **settings)
    found = check(changed, base, runs=STATIC)
    (failed,) = (one for one in found.failed if one.condition == condition)
    assert failed.message.startswith(message)
    command = ["check", str(changed), "--baseline", str(base), "--no-measure"]
    assert main([*command, "--fail-on", condition, "--markdown"]) == 5
    shown = capsys.readouterr()
    assert "1 of 1 gates fails" in shown.out
    assert f"1 of 1 gates fails: {failed.message}" in shown.err
    assert "--update" in shown.err
    assert main([*command, "--fail-on", "nodes>100,size>3x", "-q"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "baseline", "shown"),
    [
        ("size", 110.0, 100.0, "+10.0%"), ("refused", 1.0, 0.0, ""), ("latency", None, 1.0, ""),
        ("coverage", 87.0, 90.0, "-3.00 points"), ("coverage", 50.0, 0.0, "+50.00 points"),
        ("onnxruntime", 1013.0, 1017.0, ""),
    ],
)  # fmt: skip
def test_changes_have_the_form_of_their_metric(name: str, value: float | None, baseline: float, shown: str) -> None:
    assert _change(CheckedMetric(name, value, baseline, "", "", True, "")) == shown


@pytest.mark.parametrize(
    ("blocks", "memory_runs"), [(3, 1), pytest.param(measuring.BLOCKS, measuring.MEMORY_RUNS, marks=pytest.mark.slow)]
)
def test_a_slower_model_fails(
    blocks: int, memory_runs: int, base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "BLOCKS", blocks)
    monkeypatch.setattr(measuring, "MEMORY_RUNS", memory_runs)
    more = "  ".join(f"a{k + 1} = MatMul(a{k}, i)" for k in range(8))
    slower = converted(base.parent, f"a0 = MatMul(x, w)  {more}  b = Relu(a8)  y = Sigmoid(b)")
    assert main(["check", str(slower), "--baseline", str(base), "--fail-on", "latency>1.1x,outputs>0", "--json"]) == 5
    document = json.loads(capsys.readouterr().out)
    assert [one["condition"] for one in document["failed"]] == ["latency>1.1x"]
    assert "times the baseline, with 95 % confidence" in document["failed"][0]["message"]
    measured = {"latency", "load", "memory"} if sys.platform == "linux" else {"latency", "load"}
    assert measured <= {m["name"] for m in document["metrics"]}


@pytest.mark.parametrize(("interval", "fails"), [((1.12, 1.3), True), ((1.05, 1.3), False), ((0.7, 0.9), False)])
def test_only_a_whole_interval_beyond_the_limit_counts(
    interval: tuple[float, float], fails: bool, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratio = Interval(sum(interval) / 2, *interval)
    measured = MeasuredRatios({"latency": (ratio, 0.01), "load": (ratio, 0.1)}, (200, 100))
    monkeypatch.setattr(checking, "measure_both", lambda *_: measured)
    found = check(stamped(base), base, fail_on=["latency>1.1x", "memory>3x"])
    assert bool(found.failed) == fails
    if not fails:
        found.refuse()
        return
    with pytest.raises(GateError, match=r"latency is 12.1 ms, 10 ms in the baseline, \+21.0%") as caught:
        found.refuse()
    assert caught.value.hint == "if this is meant, accept it: --update"


def test_another_interface_is_a_difference(base: Path) -> None:
    other = model(base.with_name("other.onnx"), "a = Identity(x)  y = Relu(a)")
    proto = onnx.load(other)
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "renamed"
    onnx.save(proto, other)
    found = check(other, base, runs=STATIC)
    assert "input 'x' of" in next(one.message for one in found.failed if one.metric == "outputs")


def test_an_app_config_takes_the_place_of_the_baselines(base: Path) -> None:
    config = base.with_name("app.config")
    config.write_text("ai.onnx;13;MatMul,Sigmoid\n")
    found = check(base.with_name("app.ort"), base, app_config=config, fail_on=["missing>0"], runs=STATIC)
    assert "missing is 1, 1 in the baseline" in found.failed[0].message
    with pytest.raises(GateError) as caught:
        found.refuse()
    assert caught.value.hint == "change the model, or the condition if this is meant: --update does not end it"
    assert check(base.with_name("app.ort"), base, app_config=config, fail_on=["missing>+0"], runs=STATIC).failed == []
    config.write_text("Sigmoid\n")
    with pytest.raises(FormatError, match=r"app\.config: line 1: 0 semicolons"):
        check(base.with_name("app.ort"), base, app_config=config, runs=STATIC)


def test_the_copy_may_be_missing(base: Path) -> None:
    shutil.rmtree(base.with_name("base.model"))
    found = check(base.with_name("app.ort"), base)
    assert "outputs, time and memory are not compared" in found.notes[0]
    assert found.conditions == ["onnxruntime>+0", "missing>0", "partitions>+0", "coverage<-0", "size>+5%"]
    with pytest.raises(UsageError, match=r"'latency>1\.1x' cannot be checked"):
        check(base.with_name("app.ort"), base, fail_on=["latency>1.1x"])


def test_a_copy_that_changed_is_not_used(base: Path) -> None:
    (base.parent / "base.model/app.ort").write_bytes(b"other")
    assert "this is not the model of the baseline" in check(base.with_name("app.ort"), base).notes[0]
    with pytest.raises(UsageError, match="not replaced"):
        check(base.with_name("app.ort"), base, update=True)


def test_a_baseline_is_its_schema_and_an_update_replaces_it(base: Path) -> None:
    schema = json.loads((ROOT / "docs/schemas/baseline.json").read_text())
    assert list(faults(json.loads(base.read_text()), schema)) == []
    other = shutil.copy(converted(base.parent, "y = Relu(x)"), base.with_name("renamed.ort"))
    found = check(other, base, update=True)
    assert (found.updated, found.failed) == (True, [])
    assert next(m for m in found.metrics if m.name == "nodes").moved
    assert [path.name for path in (base.parent / "base.model").iterdir()] == ["renamed.ort"]
    assert stored_model(base, read_baseline(base)).read_bytes() == Path(other).read_bytes()
    assert check(other, base, runs=STATIC).failed == []


def test_weights_in_other_files_are_copied(tmp_path: Path) -> None:
    source, base = model(tmp_path / "m.onnx", PLAIN, external=True), tmp_path / "base.json"
    check(source, base, update=True)
    assert {path.name for path in (tmp_path / "base.model").iterdir()} == {"m.onnx", "m.bin"}
    assert check(source, base, runs=STATIC).failed == []
    model(tmp_path / "m.onnx", PLAIN, external=True, off=0.1)
    assert [one.metric for one in check(source, base, runs=STATIC).failed] == ["outputs"]


def test_baselines_that_are_missing_broken_or_of_another_target_are_refused(base: Path, tmp_path: Path) -> None:
    app = base.with_name("app.ort")
    with pytest.raises(UsageError, match="there is no baseline yet"):
        check(app, tmp_path / "none.json")
    with pytest.raises(UsageError, match="the baseline is for feature_level=31, this check for feature_level=28"):
        check(app, base, target=replace(Target(), feature_level=28))
    for text in ("", "{}", '{"version": 1, "model": {}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(FormatError, match="no baseline of version 1"):
            check(app, tmp_path / "bad.json")
    document = json.loads(base.read_text())
    for name in document["facts"]:
        base.write_text(json.dumps(document | {"facts": document["facts"] | {name: [[]]}}))
        with pytest.raises(FormatError, match=f"'{name}' of 'facts' of the document"):
            check(app, base)
    base.write_text(json.dumps(document | {"facts": document["facts"] | {"onnxruntime": "newest"}}))
    with pytest.raises(FormatError, match="no baseline of version 1: newest"):
        check(app, base)


def test_a_baseline_and_its_copy_have_different_names(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder for the model's copy"):
        check(base.with_name("app.ort"), tmp_path / "b.model", update=True)
    assert not (tmp_path / "b.model").exists()


def test_outputs_that_cannot_be_compared_fail_the_gates_on_them(base: Path) -> None:
    """The source has numbers where the logarithm of a negative one is NaN."""
    changed = converted(base.parent, "a = MatMul(x, w)  b = Log(a)  y = Sigmoid(b)")
    found = check(changed, base, fail_on=["max_abs>0.01", "cosine<0.9"], runs=STATIC)
    assert [one.metric for one in found.failed] == ["max_abs", "cosine"]
    assert "NaN or infinity in other places" in found.failed[0].message
    json.dumps(found.to_dict(), allow_nan=False)
