"""What the command line says of the optimizer's work, and how it is steered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner

import ortconv
from ortconv.cli import cli, main
from ortconv.cli.options import SIZE
from ortconv.compare.gap import Gap
from ortconv.errors import MismatchError
from ortconv.executor.plan import Plan
from ortconv.files import byte_count
from ortconv.optimizer import catalog
from ortconv.optimizer.engine import New, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import Match, P
from ortconv.validation.reference import Reference
from tests import text_models
from tests.batches import slow_except


def convert(source: Path, target: Path, *flags: str) -> None:
    assert main(["convert", str(source), "-o", str(target), *flags]) == 0


def write(path: Path, text: str, opset: int = 13) -> Path:
    return text_models.save(path, text, opset, text_models.MICROSOFT)


# ---------------------------------------------------------------------- the trace


def test_json_has_every_rewrite(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(samples / "bert_tiny.onnx", tmp_path / "m.ort", "--json")
    (model,) = json.loads(capsys.readouterr().out)["models"]
    trace = model["trace"]
    assert len(trace) == sum(model["rewrites"].values()) > 20
    assert trace[0]["nodes_before"] == model["nodes_before"]
    for rewrite in trace:
        assert {"rule", "operator", "name", "consumed", "made", "seconds"} <= rewrite.keys()
        assert rewrite["nodes_after"] - rewrite["nodes_before"] == len(rewrite["made"]) - len(rewrite["consumed"])
    assert sum(rewrite["seconds"] for rewrite in trace) < model["seconds"]["optimize"]


def test_verbose_tells_every_rewrite(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(samples / "mnist.onnx", tmp_path / "m.ort", "-v")
    out, err = capsys.readouterr()
    assert "12 -> 6" in out
    assert (
        "1 ConvAddFusion at Add 'Plus30': - Add 'Plus30', Conv 'Convolution28'; + Conv 'Convolution28'; 12 -> 11 nodes"
        in err
    )
    lines = err.splitlines()
    numbered = [line for line in lines if re.search(r": \d+ \w+ at ", line)]
    assert len(numbered) == 6
    table = "\n".join(lines[lines.index(numbered[-1]) + 1 :])
    assert re.search(r"ConvActivationFusion +2 +-2", table)
    assert re.search(r"ConstantFolding +1 +-1 +-16 B", table)


def test_without_either_nothing_is_traced(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> None:
        raise AssertionError("a journal was made")

    monkeypatch.setattr("ortconv.pipeline.conversion.Journal", forbidden)
    convert(samples / "mnist.onnx", tmp_path / "m.ort")


# ---------------------------------------------------------------------- the pipeline as text


@pytest.mark.slow
@pytest.mark.parametrize("level", ["disable", "basic", "extended", "layout", "all"])
def test_a_printed_pipeline_converts_the_same(level: str, samples: Path, tmp_path: Path) -> None:
    text = _listed("--level", level)
    (tmp_path / "pipeline.txt").write_text(text)
    for name in ("qdq_cnn", "bert_tiny"):
        one, other = tmp_path / f"{name}1.ort", tmp_path / f"{name}2.ort"
        convert(samples / f"{name}.onnx", one, "-q", "--optimization-level", level)
        convert(samples / f"{name}.onnx", other, "-q", "--pipeline", str(tmp_path / "pipeline.txt"))
        assert one.read_bytes() == other.read_bytes()


def _listed(*flags: str) -> str:
    """The pipeline as text. A command that is invoked alone, without its group, would lose -h for the rest of the process."""
    return CliRunner().invoke(cli, ["passes", "list", *flags, "--as-text"]).output


def test_a_printed_choice_converts_the_same(samples: Path, tmp_path: Path) -> None:
    flags = ["--enable-pass", "SkipLayerNormFusion", "--disable-pass", "AttentionFusion", "--fold-limit", "1k"]
    text = _listed(*flags)
    assert "fold-limit 1024" in text
    (tmp_path / "pipeline.txt").write_text(text)
    convert(samples / "bert_tiny.onnx", tmp_path / "a.ort", "-q", *flags)
    convert(samples / "bert_tiny.onnx", tmp_path / "b.ort", "-q", "--pipeline", str(tmp_path / "pipeline.txt"))
    assert (tmp_path / "a.ort").read_bytes() == (tmp_path / "b.ort").read_bytes()


def test_the_level_of_a_pipeline_names_the_file(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("level basic\nbasic:\n  ConstantFolding\n")
    convert(samples / "mnist.onnx", tmp_path, "-q", "--pipeline", str(tmp_path / "p.txt"))
    assert (tmp_path / "mnist.basic.ort").exists()


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ("basic:\n  ConstantFoldin\n", [], ["p.txt: line 2: there is no pass", "did you mean ConstantFolding?"]),
        ("level all\n", ["--stop-after", "3"], ["--pipeline and --stop-after exclude each other"]),
        ("level all\n", ["--optimization_level", "all"], ["--pipeline and --optimization-level exclude each other"]),
    ],
)
def test_a_wrong_pipeline(
    text: str, flags: list[str], words: list[str], samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text(text)
    assert main(["convert", str(samples / "mnist.onnx"), "--pipeline", str(tmp_path / "p.txt"), *flags]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


# ---------------------------------------------------------------------- opt-in passes


def test_an_approximation_that_was_asked_for_is_no_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "m.onnx", "g (float[64] x) => (float[64] y) { y = Gelu(x) }", 20)
    convert(source, tmp_path / "m.ort", "--enable-pass", "GeluApproximation", "--verify-each", "--json")
    (model,) = json.loads(capsys.readouterr().out)["models"]
    check = model["validation"]
    assert check["excused"] == ["GeluApproximation"]
    assert check["limit"] < check["scaled"] < 1e-2  # Gelu of negative inputs is small
    convert(source, tmp_path / "m.ort", "--enable_pass", "GeluApproximation")
    assert "expected with GeluApproximation" in capsys.readouterr().out


def test_what_did_not_fire_excuses_nothing(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(samples / "mnist.onnx", tmp_path / "m.ort", "--enable-pass", "GeluApproximation", "--json")
    assert json.loads(capsys.readouterr().out)["models"][0]["validation"]["excused"] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--enable-pass", "ConvAddFusion"], "runs without being enabled"),
        (["--enable-pass", "GeluAproximation"], "did you mean GeluApproximation?"),
        (["--enable-pass", "GeluApproximation", "--optimization-level", "basic"], "belongs to level extended"),
    ],
)
def test_what_cannot_be_enabled(
    flags: list[str], words: str, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(samples / "mnist.onnx"), *flags]) == 2
    assert words in capsys.readouterr().err


def test_list_marks_what_is_opt_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "list"]) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert lines.keys() == {entry.name for entry in catalog.entries()}
    assert " opt-in " in lines["GeluApproximation"]
    assert " opt-in " not in lines["GeluFusion"]
    assert main(["passes", "list", "--only-pass", "GeluFusion", "--only-pass", "ConvAddFusion"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["ConvAddFusion", "GeluFusion"]


# ---------------------------------------------------------------------- explain


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "explain", "ConvAddFusion"]) == 0
    shown = capsys.readouterr().out
    parts = [
        "level basic, group Level1Rules, on",
        "Conv(x, w, b) + k\n    -> Conv(x, w, b + k)",
        "in ONNX Runtime: ConvAddFusion",
        "differs: ConvTranspose",
        "Add (either order)\n    Conv | ConvTranspose\n        x\n",
        "const b?",
    ]
    for part in parts:
        assert part in shown
    assert main(["passes", "explain", "GeluApproximation"]) == 0
    shown = capsys.readouterr().out
    assert "opt-in (--enable-pass GeluApproximation)" in shown
    assert "opt-in because: differs from the exact function by up to 0.0005" in shown


def test_explain_knows_every_name_that_a_summary_counts(capsys: pytest.CaptureFixture[str]) -> None:
    for entry in catalog.entries():
        for name in (entry.name, *entry.also):
            assert main(["passes", "explain", name, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["name"] == entry.name
    assert main(["passes", "explain", "IfInlining"]) == 0
    assert main(["passes", "explain", "ConvAdFusion"]) == 2
    assert "did you mean ConvAddFusion?" in capsys.readouterr().err


@pytest.mark.slow
def test_every_pass_names_its_counterpart() -> None:
    """One that occurs in onnxruntime's library, or the statement that there is none."""
    library = b"".join(p.read_bytes() for p in (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pyb*"))
    for entry in catalog.entries():
        for text in entry.counterpart:
            names = [] if text.startswith("none: ") else text.partition(" (")[0].split(", ")
            assert all(name.encode() in library for name in names), f"{entry.name}: {text}"
        assert entry.opt_in == bool(entry.why_opt_in)


# ---------------------------------------------------------------------- the fold limit


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64M", 64 << 20),
        ("64MiB", 64 << 20),
        ("64MB", 64 * 10**6),
        ("1GiB", 1 << 30),
        ("1.5k", 1536),
        ("2 kB", 2000),
        ("12b", 12),
        (" 3g ", 3 << 30),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert byte_count(text) == count
    assert SIZE.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "-1", "12Q", "M", "1e3", "1 2", "0x10", "1iB", "1.M"])
def test_what_is_no_size(text: str, samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not a size"):
        byte_count(text)
    assert main(["convert", str(samples / "mnist.onnx"), f"--fold-limit={text}"]) == 2


GROWING = """g (float[1] x) => (float[n] y, float[n] z, float[n] v) <int64[1] n = {1000}, int64[1] m = {500}, float[1] k = {2}> {
    a = ConstantOfShape(n) b = Add(x, a) y = Relu(b)
    c = ConstantOfShape(m) d = Add(x, c) z = Relu(d)
    e = Expand(k, n) v = Add(x, e) }"""


def test_the_summary_says_why_the_output_grew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "m.onnx", GROWING)
    convert(source, tmp_path / "m.ort")
    shown = capsys.readouterr().out
    # Three tensors of 4000, 2000 and 4000 bytes; their shapes (m, then n with the last of its readers) and k go.
    assert "constant folding added 10.0 kB, most of it" in shown
    assert shown.index("4.0 kB") < shown.index("ConstantOfShape 'c' 2.0 kB")
    assert "--fold-limit SIZE bounds that, 0 prevents it" in shown
    convert(source, tmp_path / "m.ort", "--fold-limit", "0")
    assert "constant folding" not in capsys.readouterr().out


def test_other_reasons_for_which_it_grew(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(samples / "mnist.onnx", tmp_path / "m.ort")
    assert "larger since the graph takes more room in ORT format; constants are 24.0 kB" in capsys.readouterr().out
    text = f"g (int64[1000] x) => (int64[1000] y) <int64[1000] k = {{{', '.join(map(str, range(1000)))}}}> {{ y = Add(x, k) }}"
    convert(write(tmp_path / "varints.onnx", text), tmp_path / "m.ort")
    assert "larger since the source stores constants in less room" in capsys.readouterr().out


@pytest.mark.parametrize("names", [["w.bin"], ["w.bin", "parts/w.bin"]])
def test_weights_in_other_files_belong_to_the_size(names: list[str], samples: Path, tmp_path: Path) -> None:
    proto = onnx.load(samples / "mnist.onnx")
    source = tmp_path / "outside.onnx"
    for i, tensor in enumerate(t for t in proto.graph.initializer if len(t.raw_data) > 100):
        file = tmp_path / names[i % len(names)]
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as out:
            tensor.external_data.add(key="location", value=names[i % len(names)])
            tensor.external_data.add(key="offset", value=str(out.tell()))
            tensor.external_data.add(key="length", value=str(out.write(tensor.raw_data)))
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
    onnx.save(proto, source)
    size = sum((tmp_path / name).stat().st_size for name in ["outside.onnx", *names])
    assert size > source.stat().st_size + 10_000
    result = ortconv.convert(source, tmp_path / "m.ort")
    assert result.to_dict()["bytes_before"] == size


def test_a_weight_that_fusions_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """g (float[1,1,9,9] x) => (float[1,16,1,1] y, float[1,16,1,1] z)
        <float[16,1,9,9] w, float[16] s, float[16] t, float[16] b, float[16] m, float[16] v> {
        c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) d = Conv(x, w) z = BatchNormalization(d, t, b, m, v) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]>\n{text}')
    draw = np.random.default_rng(0)
    for value in proto.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = draw.uniform(0.5, 1.5, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    onnx.save(proto, tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.ort", "--disable-pass", "CommonSubexpressionElimination")
    assert "larger since constants grew by 5.0 kB; -v names the rewrites" in capsys.readouterr().out


@pytest.mark.parametrize("limit", slow_except([1990, 4000], (0, 1990, 1992, 1999, 4000, 6000, 9980, 20000)))
def test_the_limit_bounds_what_all_folds_together_add(limit: int, tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", GROWING)
    before = sum(v.const.nbytes for v in ortconv.load(source).graph.initializers.values() if v.const is not None)
    result = ortconv.convert(source, tmp_path / "m.ort", fold_limit=limit, optimization_level="basic")
    after = sum(
        v.const.nbytes for v in ortconv.load(tmp_path / "m.ort").graph.initializers.values() if v.const is not None
    )
    assert after - before <= limit
    assert result.folded_bytes == after - before
    assert (after > before) == (limit >= 1992)


def test_a_constant_that_the_graph_returns_counts_too(tmp_path: Path) -> None:
    text = "g (float[1] x) => (float[4] y, float[4] z) <float[4] k = {1, 2, 3, 4}> { y = Identity(k) z = Add(x, k) }"
    source = write(tmp_path / "m.onnx", text)
    assert ortconv.convert(source, tmp_path / "m.ort", fold_limit=15).operators == {"Add": 1, "Identity": 1}
    assert ortconv.convert(source, tmp_path / "m.ort", fold_limit=16).operators == {"Add": 1}


def test_outputs_that_nothing_reads_do_not_count(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y) <float[8] k = {1, 2, 3, 4, 5, 6, 7, 8}, int64[2] parts = {2, 6}> {
        a, b = Split(k, parts) y = Add(x, a) }"""
    result = ortconv.convert(write(tmp_path / "m.onnx", text), tmp_path / "m.ort", fold_limit=0)
    assert result.operators == {"Add": 1}
    assert result.folded_bytes == 8 - 32 - 16


# ---------------------------------------------------------------------- the first rewrite that is wrong


@pytest.mark.parametrize("wrong_at", slow_except([2], [1, 2, 4, 7]))
def test_verify_each_names_the_rewrite_that_is_wrong(
    wrong_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = " ".join(f"v{i} = Neg(v{i - 1})" for i in range(1, 8))
    source = write(tmp_path / "m.onnx", f"g (float[8] v0) => (float[8] v7) {{ {body} }}")

    @rule("SeldomWrong", P("Neg", "x"))
    def seldom_wrong(m: Match) -> New:
        """Neg(x)  ->  x * -1, once x * -2"""
        factor = -2 if m.root.out.name == f"v{wrong_at}" else -1
        return New("Mul", [m.x, np.array(factor, np.float32)])

    monkeypatch.setattr("ortconv.optimizer.basic.PASSES", (Pass("Fusions", seldom_wrong),))
    expected = (
        f"after Fusions: output 'v7' .*rewrite {wrong_at} is the first to do so: SeldomWrong at Neg 'v{wrong_at}'"
    )
    with pytest.raises(MismatchError, match=expected) as caught:
        ortconv.convert(source, tmp_path / "m.ort", verify_each=True)
    assert caught.value.hint == "leave it out with --disable-pass SeldomWrong"
    right = ortconv.convert(source, tmp_path / "m.ort", stop_after=wrong_at - 1)
    assert len(right.trace) == wrong_at - 1


def test_verify_each_compares_plain_kernels(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[bool] = []
    init = Plan.__init__

    def noted(self: Plan, *args: Any, reference: bool = False, **options: Any) -> None:
        plans.append(reference)
        init(self, *args, reference=reference, **options)

    monkeypatch.setattr(Plan, "__init__", noted)
    ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", verify_each=True)
    assert len(plans) > 4
    assert all(plans)
    plans.clear()
    ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort")
    assert plans == [False, False]


@pytest.mark.parametrize("verify_each", [False, True])
def test_a_difference_on_onnxruntime_alone_is_no_pass_of_ours(
    verify_each: bool, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Reference.judge

    def judged(self: Reference, engine: str, results: Any, where: str, hint: str, excused: bool) -> Gap:
        if engine == "onnxruntime":
            raise MismatchError("off", hint=hint)
        return judge(self, engine, results, where, hint, excused)

    monkeypatch.setattr(Reference, "judge", judged)
    with pytest.raises(MismatchError) as caught:
        ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", verify_each=verify_each)
    assert caught.value.hint is not None
    assert ("--verify-each names the pass" in caught.value.hint) is not verify_each
