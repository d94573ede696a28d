"""The report on a file counts right and finds what would mislead a minimal build."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from ort_models import models

from ortconv.errors import FormatError
from ortconv.onnxio.load import from_proto
from ortconv.ortformat import derived, writer
from ortconv.ortformat.check import Report, check
from ortconv.ortformat.derived import GraphEdges
from ortconv.ortformat.layout import ALWAYS_IMPORTED
from ortconv.ortformat.writer import save
from tests.batches import batched

MODELS = models()


def report(name: str, tmp_path: Path) -> Report:
    save(from_proto(MODELS[name]), tmp_path / "x.ort")
    return check(tmp_path / "x.ort")


@batched
@pytest.mark.parametrize("name", MODELS)
def test_our_files_are_faultless(name: str, tmp_path: Path) -> None:
    assert report(name, tmp_path).findings == []


def test_statistics(tmp_path: Path) -> None:
    found = report("nested", tmp_path)
    assert (found.format_version, found.ir_version, found.opsets) == ("5", 8, ALWAYS_IMPORTED | {"": 16})
    assert (found.nodes, found.graphs, found.initializers, found.weight_bytes) == (8, 4, 0, 0)
    assert found.operators == {"Add": 2, "Identity": 2, "Exp": 1, "If": 1, "Loop": 1, "Sqrt": 1}
    assert list(found.operators)[:2] == ["Add", "Identity"]
    assert (found.inputs, found.outputs) == (["c", "x", "n"], ["y"])
    found = report("quantized", tmp_path)
    assert found.weight_bytes == 4 + 1 + 12 + 16 + 4
    assert str(found) == (
        "format version 5, 6 nodes in 1 graph, 5 constants of 37 bytes, 0 findings, loads in onnxruntime 1.13 and later"
    )
    assert found.bytes == (tmp_path / "x.ort").stat().st_size


def messages(name: str, tmp_path: Path) -> list[str]:
    return list(map(str, report(name, tmp_path).findings))


def test_wrong_since_version_and_type_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = derived.resolved_schema
    monkeypatch.setattr(writer, "resolved_schema", lambda node: original(node)._replace(since=1))
    found = messages("conv", tmp_path)
    assert "Relu 'r': since_version is 1 instead of 13" in found
    assert "Conv 'c': since_version is 1 instead of 11" in found


def test_missing_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = derived.resolved_schema
    monkeypatch.setattr(writer, "resolved_schema", lambda node: original(node)._replace(defaults={}))
    found = messages("conv", tmp_path)
    assert len(found) == 2
    assert found[0].startswith("Conv 'c': attributes are left to their defaults")
    assert found[0].endswith(": auto_pad, group")


def test_missing_type_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "type_arguments", lambda schema: {})
    assert messages("branch without nodes", tmp_path) == ["the kernel type strings of ':If:16' are wrong"]


def test_missing_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(graph: Any, order: Any) -> GraphEdges:
        found = derived.edges(graph, order)
        zeros = [0] * (len(order) + 1)
        return found._replace(
            incoming=found.incoming[:0], starts_in=zeros, outgoing=found.outgoing[:0], starts_out=zeros
        )

    monkeypatch.setattr(writer, "edges", none)
    assert messages("conv", tmp_path) == ["2 edges are missing, so nodes may run in the wrong order"]


def test_missing_implicit_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "captures", lambda node: [])
    found = messages("loop", tmp_path)
    assert found == ["Loop 'last': its subgraphs read ['s', 'x'], but implicit_inputs lists []"]


def test_wrong_argument_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "argument_counts", lambda schema, actual: (1,) * actual)
    found = messages("variadic", tmp_path)
    assert found == ["Concat 'z': input_arg_counts is [1, 1, 1, 1, 1, 1] instead of [6]"]


def test_function_without_kernel(tmp_path: Path) -> None:
    from onnx import parser

    message = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Mish (x) }'
    )
    save(from_proto(message), tmp_path / "x.ort")
    (found,) = check(tmp_path / "x.ort").findings
    assert found.node == "Mish 'y'"
    assert "no kernel" in found.message


def test_unloadable_file(tmp_path: Path) -> None:
    save(from_proto(MODELS["if"]), tmp_path / "x.ort")
    data = bytearray((tmp_path / "x.ort").read_bytes())
    struct.pack_into("<I", data, 0, 0xFFFFFF00)
    (tmp_path / "x.ort").write_bytes(data)
    with pytest.raises(FormatError) as raised:
        check(tmp_path / "x.ort")
    assert raised.value.file == str(tmp_path / "x.ort")


EDITS = [  # what to replace in the file of a convolution, and the finding
    (b"Relu\0", b"Rela\0", "Rela 'r': no operator of this name exists in version 13 of the operator set"),
    (b":Relu:13\0", b":Rela:13\0", "the kernel type strings of ':Relu:13' are missing"),
    (b"\x01\0\0\x005\0", b"\x01\0\0\x004\0", "format version 4 is refused by minimal builds since 1.13"),
]


@pytest.mark.parametrize(("old", "new", "message"), EDITS)
def test_edited_names(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    save(from_proto(MODELS["conv"]), tmp_path / "x.ort")
    data = (tmp_path / "x.ort").read_bytes()
    assert data.count(old)
    (tmp_path / "x.ort").write_bytes(data.replace(old, new))
    assert message in map(str, check(tmp_path / "x.ort").findings)
