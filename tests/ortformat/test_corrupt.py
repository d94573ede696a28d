"""Damaged files give one of our errors, quickly and without much memory."""

from __future__ import annotations

import gc
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ort_models import models

from ortconv.errors import FormatError, GraphError, ModelError, UnsupportedError
from ortconv.ir.verify import verify as verify_graph
from ortconv.onnxio.load import from_proto
from ortconv.ortformat import verify
from ortconv.ortformat.check import check
from ortconv.ortformat.reader import load, parse
from ortconv.ortformat.verify import decode
from ortconv.ortformat.writer import serialize
from ortconv.process import peak_bytes
from tests.batches import sampled, slow_except

MODELS = models()


def file_of(name: str) -> bytes:
    return b"".join(serialize(from_proto(MODELS[name])))


def outcome(data: bytes) -> str:
    """What reading does: ok or the name of our error. Anything else is raised."""
    gc.disable()  # Looking through all that other tests have left takes seconds.
    start = time.process_time()
    try:
        verify_graph(parse(data).graph)
        result = "ok"
    except ModelError as error:
        result = type(error).__name__ if str(error) else "no message"
    finally:
        spent = time.process_time() - start
        gc.enable()
    assert spent < 1
    return result


def edits(data: bytes, step: int) -> Counter[str]:
    """What becomes of each one-byte edit to 0x00, to 0xFF and to the complement."""
    seen: Counter[str] = Counter()
    for i in range(0, len(data), step):
        for value in {0x00, 0xFF, data[i] ^ 0xFF} - {data[i]}:
            seen[outcome(data[:i] + bytes([value]) + data[i + 1 :])] += 1
    return seen


@pytest.mark.parametrize("name", slow_except(["maps"], ("nested", "attributes", "maps")))
def test_some_edits(name: str) -> None:
    seen = edits(file_of(name), 17)
    assert seen["FormatError"] > seen["ok"] > 0
    assert seen.keys() <= {"ok", "FormatError", "GraphError", "UnsupportedError"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_edit(name: str) -> None:
    before = peak_bytes()
    seen = edits(file_of(name), 1)
    assert seen.keys() <= {"ok", "FormatError", "GraphError", "UnsupportedError"}
    assert (peak_bytes() or 0) - (before or 0) < 200 << 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["if", "quantized"])
def test_check_of_edits(name: str, tmp_path: Path) -> None:
    """The report has no better manners with strange numbers than the reader needs."""
    data, path = file_of(name), tmp_path / "x.ort"
    good, files = 0, set()
    for i in range(0, len(data), 11):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :])
        try:
            check(path)
            good += 1
        except ModelError as error:
            files.add(error.file)
    assert good > 10
    assert files == {str(path)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nested", "constants"])
def test_every_truncation_fails(name: str) -> None:
    data = file_of(name)
    for size in range(0, len(data) - 16, 1 if name == "nested" else 61):
        with pytest.raises(FormatError):
            decode(data[:size])


def test_trailing_bytes_are_ignored() -> None:
    assert outcome(file_of("if") + bytes(100)) == "ok"


def changed(record: Any, path: str, value: Any) -> Any:
    """A record, or a list of records, with the value at a path of names and indices replaced."""
    step, _, rest = path.partition(".")
    if step.isdigit():
        inner = value if not rest else changed(record[int(step)], rest, value)
        return [*record[: int(step)], inner, *record[int(step) + 1 :]]
    return record._replace(**{step: value if not rest else changed(getattr(record, step), rest, value)})


INCONSISTENT = [  # a model, the path in its graph to a value, another value, and the message
    ("conv", "node_args.0.name", "", "value '' has a type"),
    ("conv", "node_args.0.type", None, "value 'x' has no type"),
    ("conv", "node_args.0.type.value", None, "the type of value 'x' is empty"),
    ("conv", "node_args.0.name", "w", "a value has more than one ValueInfo"),
    ("conv", "inputs", [""], "'' in inputs has no ValueInfo"),
    ("conv", "outputs", ["none"], "'none' in outputs has no ValueInfo"),
    ("conv", "initializers.0.name", "none", "initializer 'none' has no ValueInfo"),
    ("conv", "initializers.0.name", None, "initializer 'None' has no ValueInfo"),
    ("conv", "initializers.0.dims", (-1,), "negative dimension"),
    ("conv", "initializers.0.dims", (4, 3, 3), "432 bytes where its shape \\[4, 3, 3\\] needs 144"),
    ("conv", "initializers.0.data_type", 14, "element type complex64"),
    ("conv", "initializers.0.raw_data", None, "has no data"),
    ("conv", "initializers.0", ("w", None, (2,), 1, None, None, 8), "keeps its data in another file"),
    ("conv", "nodes.1.index", 0, "node index 0 is beyond 3 or given twice"),
    ("conv", "nodes.1.index", 3, "node index 3 is beyond 3 or given twice"),
    ("conv", "nodes.0.inputs", ["x", "none"], "'none' has no ValueInfo"),
    ("conv", "nodes.0.outputs", ["none"], "'none' has no ValueInfo"),
    ("conv", "nodes.0.implicit_inputs", ["none"], "the implicit input 'none' is not defined"),
    ("conv", "nodes.0.input_arg_counts", (1, 2), "do not sum up to 2"),
    ("conv", "nodes.0.input_arg_counts", (3, -1), "do not sum up to 2"),
    ("conv", "nodes.0.attributes.0.name", "", "attribute '' has type 3"),
    ("conv", "nodes.0.attributes.0.type", 10, "attribute 'auto_pad' has type 10"),
    ("conv", "nodes.0.attributes.0.s", None, "attribute 'auto_pad' has no s"),
    ("conv", "node_edges.1.node_index", 0, "a NodeEdge is given twice"),
    ("conv", "node_edges.0.output_edges", b"", "contradict each other"),
    ("conv", "node_edges.0.output_edges", struct.pack("<3I", 9, 0, 0), "an edge refers to node 9"),
    ("constants", "sparse_initializers.0.values.name", "none", "'none' has no ValueInfo"),
    ("constants", "sparse_initializers.0.dims", (200, -1), "negative dimension"),
    ("constants", "sparse_initializers.0.dims", (200, 200), "an index out of range"),
    ("constants", "sparse_initializers.0.indices.raw_data", struct.pack("<3i", 1, -1, 5), "an index out of range"),
    ("constants", "sparse_initializers.0.indices.data_type", 12, "indices that are not signed integers"),
    ("constants", "sparse_initializers.0.indices.dims", (1, 3), r"\[1, 3\] indices do not fit \[3\] values"),
]  # fmt: skip


@sampled(4)
@pytest.mark.parametrize(("name", "path", "value", "message"), INCONSISTENT)
def test_inconsistent_tables(name: str, path: str, value: Any, message: str) -> None:
    graph = decode(file_of(name)).model.graph
    if type(value) is tuple and path.endswith("initializers.0"):
        value = type(graph.initializers[0])(*value)
    graph = changed(graph, path, value)
    with pytest.raises(ModelError, match=message):
        verify._check_graph(graph, frozenset(), "the graph")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"\x08\x00\x00\x00ONNX" + bytes(64), "identifier"),
        (struct.pack("<I4s", 0, b"ORTM") + bytes(64), "byte 0, the root"),
        (struct.pack("<I4s", 0xFFFFFFFC, b"ORTM") + bytes(64), "byte 0, the root"),
        (struct.pack("<I4si", 8, b"ORTM", -(2**31)) + bytes(64), "vtable"),
    ],
)
def test_messages(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(data)


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "a Git LFS pointer", "git lfs pull"),
        (b"<!DOCTYPE html><title>404</title>", "HTML", "download the raw file"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite", "tf2onnx"),
        (b"\x1f\x8b", "gzip", "unpack"),
        (b"\x08\x07\x12\x08ortconv", "too few|the identifier is", "of an ONNX model"),
    ],
)
def test_other_formats_are_named(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(FormatError, match=message) as refused:
        decode(data)
    assert hint in (refused.value.hint or "")


def test_vectors_that_share_bytes_are_refused_before_they_are_made() -> None:
    """Many strings that overlap would need the square of the file's size."""
    count, body = 5000, 200_000
    head = struct.pack("<I4s", 28, b"ORTM")
    vtable = struct.pack("<HHHHHH", 12, 12, 4, 8, 0, 0)  # InferenceSession: ort_version, model
    vtable_model = struct.pack("<HHHH", 8, 8, 0, 4)  # Model: opset_import
    start = len(head) + len(vtable) + len(vtable_model)
    assert start == 28
    root = struct.pack("<iII", start - 8, 8 + 12, 4)
    model = struct.pack("<iI", start + 12 - 20, 8)
    text = struct.pack("<I4s", 1, b"5")
    vector_at = start + len(root) + len(model) + len(text)
    rows = struct.pack("<I", count)
    data_at = vector_at + 4 + 4 * count
    rows += b"".join(struct.pack("<I", data_at + 4 * i - (vector_at + 4 + 4 * i)) for i in range(count))
    data = head + vtable + vtable_model + root + model + text + rows + struct.pack("<i", 8) * (body // 4)
    start_time = time.process_time()
    with pytest.raises(FormatError):
        decode(data)
    assert time.process_time() - start_time < 1


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.ort"
    for data in (b"", b"no model at all", file_of("if")[:200]):
        path.write_bytes(data)
        with pytest.raises(FormatError) as raised:
            load(path)
        assert str(raised.value).startswith(f"{path}: ")


def test_shared_tables_count_once_per_reference() -> None:
    """A file of 20 kB whose sequence types, all shared, would take 2 to the 40 visits."""
    from ortconv.ortformat.emit import Emitter

    out = Emitter()
    argument = out.table(out.shape("ArgTypeAndIndex", "arg_type", "index"), 0, 0)
    args = out.references([argument] * 1100)
    entry = out.table(out.shape("KernelTypeStrArgsEntry", "kernel_type_str", "args"), out.string("T"), args)
    row = out.table(
        out.shape("OpIdKernelTypeStrArgsEntry", "op_id", "kernel_type_str_args"),
        out.string(":A:1"),
        out.references([entry] * 1000),
    )
    resolver = out.table(out.shape("KernelTypeStrResolver", "op_kernel_type_str_args"), out.references([row]))
    graph = out.table(out.shape("Graph"))
    model = out.table(out.shape("Model", "opset_import", "graph"), out.references([]), graph)
    root = out.table(
        out.shape("InferenceSession", "ort_version", "model", "kernel_type_str_resolver"),
        out.string("5"),
        model,
        resolver,
    )
    with pytest.raises(FormatError, match="more than 1000000 tables"):
        decode(out.finish(root))


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("7", UnsupportedError),
        ("", UnsupportedError),
        ("five", UnsupportedError),
        ("9" * 5000, UnsupportedError),
        ("4", None),
    ],
)
def test_versions(version: str, error: type[ModelError] | None) -> None:
    from ortconv.ortformat.emit import Emitter

    out = Emitter()
    model = out.table(out.shape("Model", "opset_import", "graph"), out.references([]), out.table(out.shape("Graph")))
    root = out.table(out.shape("InferenceSession", "ort_version", "model"), out.string(version), model)
    data = out.finish(root)
    if error is None:
        decode(data)
    else:
        with pytest.raises(error, match="format version"):
            decode(data)


def test_version_5_needs_kernel_types() -> None:
    data = bytearray(file_of("if"))
    vtable = struct.unpack_from("<I", data)[0] - struct.unpack_from("<i", data, struct.unpack_from("<I", data)[0])[0]
    struct.pack_into("<H", data, vtable + 4 + 2 * 3, 0)
    with pytest.raises(FormatError, match="kernel_type_str_resolver"):
        decode(data)


def test_impossible_opset_is_refused() -> None:
    message = from_proto(MODELS["if"])
    message.graph.opsets["custom"] = 2**40
    with pytest.raises(GraphError, match="impossible"):
        decode(b"".join(serialize(message)))


def test_a_string_that_is_a_vector_elsewhere_is_refused() -> None:
    """The vector is read first, so that the string's place is known already."""
    from ortconv.ortformat.emit import Emitter

    for shared in (False, True):
        out = Emitter()
        names = out.references([out.string("x")])
        domain = names if shared else out.string("own")
        opset = out.table(out.shape("OperatorSetId", "domain", "version"), domain, 1)
        graph = out.table(out.shape("Graph", "inputs"), names)
        fields = ("opset_import", "graph")
        model = out.table(out.shape("Model", *fields), out.references([opset]), graph)
        root = out.table(out.shape("InferenceSession", "ort_version", "model"), out.string("4"), model)
        with pytest.raises(FormatError if shared else GraphError, match=r"is a (string|vector)|ValueInfo"):
            decode(out.finish(root))
