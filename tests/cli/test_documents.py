"""What verbs print with --json is what docs/schemas promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ortconv
from ortconv.exporting.export import Export
from tests.conformance_records import write_records
from tests.conftest import ROOT, SAMPLES
from tests.json_schema import faults

SCHEMAS = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "docs/schemas").glob("*.json")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some .ort files."""
    made = tmp_path_factory.mktemp("documents")
    ortconv.convert(SAMPLES / "mnist.onnx", made / "mnist.ort", validate=False)
    ortconv.convert(SAMPLES / "qdq_cnn.onnx", made / "runtime.ort", validate=False, optimization_style="Runtime")
    return made


COMMANDS: dict[str, list[str]] = {
    "conformance": ["nnapi conformance --specs {records}"],
    "bundle": ["bundle {samples}/mnist.onnx -o {tmp}/b.zip --check false --strip-weights"],
    "diff": ["diff {samples}/mnist.onnx {folder}/mnist.ort", "diff {samples}/mnist.onnx {samples}/qdq_cnn.onnx"],
    "export": ["export {folder}/mnist.ort -o {tmp}/m.onnx --standard", "export {folder}/runtime.ort -o {tmp}/m.ort"],
    "reduce": ["reduce {samples}/mnist.onnx -o {tmp}/r.onnx --steps 3 --check false"],
    "inspect": ["inspect {samples}/qdq_cnn.onnx --lint quantization", "inspect {folder}/runtime.ort"],
}
"""By schema: command lines whose documents it describes."""


def test_every_schema_is_tried_and_listed() -> None:
    assert SCHEMAS.keys() == COMMANDS.keys()
    listed = (ROOT / "docs/schemas/README.md").read_text("utf-8")
    assert [name for name in SCHEMAS if f"({name}.json)" not in listed] == []


@pytest.mark.parametrize(("verb", "line"), [(verb, line) for verb, lines in COMMANDS.items() for line in lines])
def test_documents_follow_their_schemas(verb: str, line: str, folder: Path, tmp_path: Path, printed: Any) -> None:
    places = {"folder": folder, "tmp": tmp_path, "samples": SAMPLES, "records": write_records(tmp_path / "records")}
    document = printed(*line.format(**places).split())
    assert list(faults(document, SCHEMAS[verb])) == []


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
