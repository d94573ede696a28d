"""What verbs print with --json is what docs/schemas promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortconv
from ortconv.checking.check import check
from ortconv.cli import main
from ortconv.exporting.export import Export
from ortconv.nnapi.tracing import timing
from tests.conformance_records import write_records
from tests.conftest import ROOT, SAMPLES
from tests.json_schema import faults

SCHEMAS = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "docs/schemas").glob("*.json")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some .ort files."""
    made = tmp_path_factory.mktemp("documents")
    ortconv.convert(SAMPLES / "mnist.onnx", made / "mnist.ort", validate=False, manifest=True)
    ortconv.convert(SAMPLES / "qdq_cnn.onnx", made / "runtime.ort", validate=False, optimization_style="Runtime")
    (made / "damaged.onnx").write_bytes(b"\x08\x07nonsense")
    other = onnx.load(SAMPLES / "mnist.onnx")
    next(node for node in other.graph.node if node.op_type == "Relu").op_type = "Abs"
    onnx.save(other, made / "other.onnx")
    feeds = {"Input3": np.ones((1, 1, 28, 28), np.float32)}
    (digits,) = ortconv.Session(SAMPLES / "mnist.onnx").run(None, feeds)
    with timing.tracing() as trace:
        ortconv.Session(SAMPLES / "mnist.onnx", ["nnapi"]).run(None, feeds)
    (made / "trace.txt").write_text(trace.ftrace(), "utf-8")
    np.savez(made / "inputs.npz", **feeds)
    np.savez(made / "expected.npz", Plus214_Output_0=digits)
    (made / "mnist.onnx").write_bytes((SAMPLES / "mnist.onnx").read_bytes())
    (made / "ortconv.toml").write_text('[models.mnist]\nsource = "mnist.onnx"\nuse-nnapi = true\n')
    check(made / "mnist.ort", made / "b.json", update=True)
    return made


COMMANDS: dict[str, list[str]] = {
    "bundle": ["bundle {samples}/mnist.onnx -o {tmp}/b.zip --check false --strip-weights"],
    "compare": [
        "compare {samples}/mnist.onnx {samples}/mnist.onnx@onnxruntime --layers",
        "compare {samples}/if_branch.onnx --convert-with all",
        "4 compare {samples}/mnist.onnx {folder}/other.onnx --layers",
    ],
    "convert": [
        "convert {samples}/qdq_cnn.onnx -o {tmp}/a.ort --use-nnapi --maximize-offload",
        "convert {samples}/mobilenet_v2_small.onnx -o {tmp}/a.ort --float16 --use-coreml",
        "convert {samples}/mnist.onnx -o {tmp} --optimization-style Fixed Runtime --no-validate",
    ],
    "devices": ["devices"],
    "devices_show": ["devices show npu-int8", "devices show nnapi-reference"],
    "diff": ["diff {samples}/mnist.onnx {folder}/mnist.ort", "diff {samples}/mnist.onnx {samples}/qdq_cnn.onnx"],
    "error": ["3 inspect {folder}/damaged.onnx", "2 convert {samples}/mnist.onnx -o a.onnx", "2 run"],
    "build": ["build -f {folder}/ortconv.toml"],
    "check": [
        "check {folder}/mnist.ort --baseline {folder}/b.json",
        "check {folder}/mnist.ort --baseline {tmp}/c.json --update",
    ],
    "export": ["export {folder}/mnist.ort -o {tmp}/m.onnx --standard", "export {folder}/runtime.ort -o {tmp}/m.ort"],
    "inspect": ["inspect {samples}/qdq_cnn.onnx --lint quantization", "inspect {folder}/runtime.ort"],
    "nnapi_benchmark": [
        "nnapi benchmark {samples}/mnist.onnx --repeat 1 --timing --device npu-int8 --nnapi-flags fp16 --backend numpy"
    ],
    "nnapi_conformance": ["nnapi conformance --specs {records}"],
    "nnapi_dump": ["nnapi dump {samples}/qdq_cnn.onnx", "nnapi dump {samples}/mnist.onnx"],
    "nnapi_trace": ["nnapi trace {folder}/trace.txt", "nnapi trace {folder}/trace.txt --print-detail --per-execution"],
    "ops_build_command": ["ops build-command {folder}/mnist.required_operators.config --platform android --use-nnapi"],
    "ops_lint": [
        "ops lint {folder}/mnist.required_operators.config --model {folder}/mnist.ort",
        "5 ops lint {folder}/mnist.required_operators.config --model {folder}/runtime.ort",
    ],
    "partition": [
        "partition {samples}/qdq_cnn.onnx --compare-levels --maximize-offload",
        "partition {samples}/if_branch.onnx --target coreml --coreml-enable-on-subgraph",
        "partition {samples}/bert_tiny.onnx",
    ],
    "passes_explain": ["passes explain ConvBNFusion"],
    "passes_list": ["passes list"],
    "reduce": ["reduce {samples}/mnist.onnx -o {tmp}/r.onnx --steps 3 --check false"],
    "run": [
        "run {samples}/mnist.onnx --plan --top 3 --profile {tmp}/trace.json",
        "run {samples}/qdq_cnn.onnx --backend nnapi --timing --plan",
        "run {samples}/mnist.onnx --inputs {folder}/inputs.npz --check {folder}/expected.npz",
    ],
    "tune": ["tune {samples}/mnist.onnx --only level=basic,all --only threads=1 --only direct=no --only offload=no"],
    "verify": ["verify {folder}/runtime.ort"],
    "verify_manifest": ["verify {folder}/mnist.manifest.json"],
}  # fmt: skip
"""By schema: command lines whose documents it describes, behind the exit code where that is not 0."""

OTHERS = {
    "batch": "test_the_last_line_of_a_directory_follows_its_schema",
    "nnapi_export": "test_an_export_to_litert_follows_its_schema",
    "nnapi_ndk": "test_the_files_of_the_ndk_follow_their_schema",
}
"""Schemas that are tried by tests of their own."""

FILES = {"baseline", "manifest"}
"""Schemas of files, which the tests of those who write them try."""


def test_every_schema_is_tried_and_listed() -> None:
    assert SCHEMAS.keys() == {*COMMANDS, *OTHERS, *FILES}
    assert [test for test in OTHERS.values() if test not in globals()] == []
    listed = (ROOT / "docs/schemas/README.md").read_text("utf-8")
    assert [name for name in SCHEMAS if f"({name}.json)" not in listed] == []


SLOW = (COMMANDS["convert"][1], COMMANDS["partition"][0], COMMANDS["check"][1])
"""Lines that take longer than others of their verbs."""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(name, line, marks=[pytest.mark.slow] * (name in ("build", "tune") or line in SLOW))
        for name, lines in COMMANDS.items()
        for line in lines
    ],
)
def test_documents_follow_their_schemas(name: str, line: str, folder: Path, tmp_path: Path, printed: Any) -> None:
    records = write_records(tmp_path / "records") if "{records}" in line else ""
    places = {"folder": folder, "tmp": tmp_path, "samples": SAMPLES, "records": records}
    words = [word.format(**places) for word in line.split()]
    code = int(words.pop(0)) if words[0].isdecimal() else 0
    assert list(faults(printed(*words, code=code), SCHEMAS[name])) == []


@pytest.mark.parametrize(
    ("verb", "code"),
    [*(pytest.param(verb, 7, marks=pytest.mark.slow) for verb in ("convert", "partition")), ("verify", 0)],
    ids=lambda text: str(text),
)
def test_the_last_line_of_a_directory_follows_its_schema(
    verb: str, code: int, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for source in (SAMPLES / "mnist.onnx", folder / "mnist.ort", folder / "damaged.onnx"):
        shutil.copy(source, models)
    assert (
        main([verb, str(models), "--jobs", "1", "--json"] if verb == "convert" else [verb, str(models), "--json"])
        == code
    )
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(faults(last, SCHEMAS["batch"])) == []
    assert len(lines) == last["total"]
    for line in lines:
        one, status = dict(SCHEMAS[verb]), line.pop("status")
        if status == "failed":
            one = {"$ref": "#/$defs/Failure", "$defs": SCHEMAS["batch"]["$defs"]}
        elif verb == "convert":
            one = {"$ref": "#/$defs/Converted", "$defs": SCHEMAS["convert"]["$defs"]}
        else:
            assert Path(line.pop("source")).parent.name == "models"
        assert list(faults(line, one)) == []


def test_an_export_to_litert_follows_its_schema(tmp_path: Path, printed: Any) -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    document = printed("nnapi", "export", SAMPLES / "mnist.onnx", "-o", tmp_path / "out")
    assert list(faults(document, SCHEMAS["nnapi_export"])) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_files_of_the_ndk_follow_their_schema(tmp_path: Path, printed: Any) -> None:
    assert list(faults(printed("nnapi", "ndk", "-o", tmp_path), SCHEMAS["nnapi_ndk"])) == []


def test_the_check_sees_faults() -> None:
    schema = SCHEMAS["export"]
    good = {"version": 1, **Export("a", "b").__dict__}
    assert list(faults(good, schema)) == []
    for wrong in (
        {"nodes": "1"},
        {"nodes": True},
        {"rewrites": {"a": 1.5}},
        {"upgraded_from": 4},
        {"more": 1},
        {"version": 2},
    ):
        assert len(list(faults(good | wrong, schema))) == 1, wrong
    assert list(faults({k: v for k, v in good.items() if k != "output"}, schema)) == ["$: output is missing"]
