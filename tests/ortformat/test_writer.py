"""What the writer refuses, keeps, trims; how files come into being."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser
from ort_canonical import canonical, differences
from ort_models import models

from ortconv.errors import GraphError, UnsupportedError, UsageError
from ortconv.ir.graph import Graph, Graphs
from ortconv.ir.model import Model
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.text import text
from ortconv.ir.types import DType, MapType, OptionalType, SparseTensorType, TensorType
from ortconv.ir.verify import verify as verify_graph
from ortconv.onnxio.load import from_proto
from ortconv.ortformat import values, writer
from ortconv.ortformat.decode import Decoder
from ortconv.ortformat.layout import ALWAYS_IMPORTED
from ortconv.ortformat.reader import load, parse
from ortconv.ortformat.verify import decode
from ortconv.ortformat.writer import save, serialize
from tests.batches import sampled

MODELS = models()


def identity(type: Any, *, attrs: dict[str, Any] | None = None) -> Model:
    graph = Graph()
    graph.opsets[""] = 17
    x = graph.add_input("x", type)
    node = graph.add_node("Identity", [x], ["y"], attrs, types=[type], name="id")
    graph.set_outputs([node.out])
    return Model(graph)


def with_constant(tensor: Tensor | SparseTensor) -> Model:
    graph = Graph()
    graph.opsets[""] = 17
    node = graph.add_node("Identity", [graph.add_initializer("c", tensor)], ["y"], types=[TensorType(DType.FLOAT)])
    graph.set_outputs([node.out])
    return Model(graph)


def bytes_of(model: Model) -> bytes:
    return b"".join(serialize(model))


# ---------------------------------------------------------------------- round trip


@sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str) -> None:
    model = from_proto(MODELS[name])
    data = bytes_of(model)
    again = parse(data)
    verify_graph(again.graph)
    assert bytes_of(again) == data
    assert [v.name for v in again.graph.inputs] == [v.name for v in model.graph.inputs]
    assert len(again.graph) == len(model.graph)
    assert text(parse(bytes_of(again)).graph) == text(again.graph)


def test_model_fields_survive() -> None:
    model = parse(bytes_of(from_proto(MODELS["conv"])))
    assert (model.ir_version, model.producer_name, model.producer_version) == (8, "tests", "1.2")
    assert (model.model_version, model.doc, model.metadata) == (7, "a doc string", {"a": "1", "b": "2"})
    assert model.graph.opsets == ALWAYS_IMPORTED | {"": 13}
    assert parse(bytes_of(from_proto(MODELS["if"]))).model_version in (None, 0)


def test_execution_provider_survives() -> None:
    model = from_proto(MODELS["conv"])
    next(iter(model.graph)).ep = "NnapiExecutionProvider"
    assert [node.ep for node in parse(bytes_of(model)).graph] == ["NnapiExecutionProvider", "", ""]


def test_constants_of_old_models_are_no_inputs() -> None:
    graph = parse(bytes_of(from_proto(MODELS["old constants"]))).graph
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph.initializers["b"].constant is not None
    graph = parse(bytes_of(from_proto(MODELS["overridable"]))).graph
    assert [v.name for v in graph.inputs] == ["x", "b"]
    assert graph.initializers["b"].const is not None
    assert graph.initializers["b"].constant is None


def test_sparse_indices_are_linear_and_small() -> None:
    dense = np.zeros((20, 20), np.float32)
    dense[0, 3], dense[6, 6] = 1, 2
    for indices in ([3, 126], [[0, 3], [6, 6]]):
        sparse = SparseTensor(Tensor.of(np.float32([1, 2])), Tensor.of(np.int64(indices)), (20, 20))
        data = bytes_of(with_constant(sparse))
        record = decode(data).model.graph.sparse_initializers[0]
        assert (record.indices.data_type, bytes(record.indices.raw_data)) == (DType.INT8, bytes([3, 126]))
        again = parse(data).graph.initializers["c"].const
        assert isinstance(again, SparseTensor)
        np.testing.assert_array_equal(again.dense().numpy(), dense)


def test_anonymous_dimensions_are_unknown() -> None:
    graph = parse(bytes_of(identity(TensorType(DType.FLOAT, ("?1", "N", None, 0, 3))))).graph
    assert graph.inputs[0].shape == (None, "N", None, 0, 3)


def test_custom_operators_get_type_strings_for_all_their_inputs() -> None:
    graph = Graph()
    graph.opsets.update({"": 17, "my.ops": 3})
    type = TensorType(DType.FLOAT, (2,))
    x = graph.add_input("x", type)
    a = graph.add_node("Mine", [x], 1, domain="my.ops", types=[type]).out
    b = graph.add_node("Mine", [x, a, x], 1, domain="my.ops", types=[type]).out
    graph.set_outputs([b])
    root = decode(bytes_of(Model(graph)))
    (entry,) = root.kernel_type_str_resolver.op_kernel_type_str_args
    assert entry.op_id == "my.ops:Mine:1"
    keys = {e.kernel_type_str: [(a.arg_type, a.index) for a in e.args] for e in entry.kernel_type_str_args}
    assert keys == {"Input0": [(0, 0)], "Input1": [(0, 1)], "Input2": [(0, 2)], "Output0": [(1, 0)]}
    assert [node.input_arg_counts for node in root.model.graph.nodes] == [(1,), (1, 1, 1)]


def test_used_domains_are_imported() -> None:
    model = from_proto(MODELS["microsoft"])
    del model.graph.opsets["com.microsoft"]
    imports = {o.domain: o.version for o in decode(bytes_of(model)).model.opset_import}
    assert imports == ALWAYS_IMPORTED | {"": 17}


def test_imports_of_the_model_win() -> None:
    model = from_proto(MODELS["maps"])
    imports = {o.domain: o.version for o in decode(bytes_of(model)).model.opset_import}
    assert imports == ALWAYS_IMPORTED | {"": 13, "ai.onnx.ml": 2}


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("type", "what"),
    [
        (TensorType(DType.COMPLEX64, (2,)), "complex64"),
        (OptionalType(TensorType(DType.FLOAT)), "optional"),
        (SparseTensorType(DType.FLOAT, (2,)), "sparse"),
        (MapType(DType.STRING, TensorType(DType.COMPLEX128)), "complex128"),
        (None, "is not known"),
    ],
)
def test_types_that_cannot_be_held(type: Any, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what) as raised:
        serialize(identity(type))
    assert raised.value.hint
    assert raised.value.node in ("value 'x'", "Identity 'id'")


@pytest.mark.parametrize("dtype", [t for t in DType if t > DType.FLOAT8E5M2FNUZ], ids=lambda t: t.name)
def test_later_types_have_values_and_no_constants(dtype: DType) -> None:
    graph = parse(bytes_of(identity(TensorType(dtype, (2,))))).graph
    assert [v.dtype for v in (*graph.inputs, *graph.outputs)] == [dtype, dtype]
    with pytest.raises(UnsupportedError, match=f"no constants of element type {dtype.name.lower()}"):
        serialize(with_constant(Tensor(dtype, (8,), memoryview(bytes(dtype.bits)))))


@pytest.mark.parametrize(
    ("attribute", "what"),
    [
        (Graphs([Graph()]), "list of graphs"),
        (TensorType(DType.FLOAT), "a type"),
        (SparseTensor(Tensor.of(np.float32([1])), Tensor.of(np.int64([0])), (2,)), "sparse tensor"),
    ],
)
def test_attributes_that_cannot_be_held(attribute: Any, what: str) -> None:
    model = identity(TensorType(DType.FLOAT))
    next(iter(model.graph)).attrs["odd"] = attribute
    with pytest.raises(UnsupportedError, match=f"'odd' is .*{what}") as raised:
        serialize(model)
    assert raised.value.node == "Identity 'id'"


def test_wrong_payload_size() -> None:
    with pytest.raises(GraphError, match="12"):
        serialize(with_constant(Tensor(DType.FLOAT, (3,), memoryview(bytes(11)))))


def test_nodes_out_of_order() -> None:
    model = from_proto(MODELS["conv"])
    nodes = list(model.graph)
    model.graph.move(nodes[0], None)
    with pytest.raises(GraphError, match="before"):
        serialize(model)


def nested_if(depth: int) -> Model:
    inner = "t = Identity (x)"
    for level in range(depth):
        inner = f"""t = If (c) <then_branch = a{level} () => (float[2] t) {{ {inner} }},
            else_branch = b{level} () => (float[2] e) {{ e = Neg (x) }}>"""
    outer = inner.replace("t = ", "y = ", 1)
    message = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 16]> g (bool c, float[2] x) => (float[2] y) {{ {outer} }}'
    )
    return from_proto(message)


def test_nesting_limit() -> None:
    import onnxruntime

    data = bytes_of(nested_if(18))
    onnxruntime.InferenceSession(data)
    assert Decoder(data).root() is not None
    with pytest.raises(UnsupportedError, match="nested more than 18"):
        serialize(nested_if(19))


def test_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "LARGEST_FILE", 4000)
    serialize(with_constant(Tensor.of(np.zeros(500, np.float32))))
    with pytest.raises(UnsupportedError, match="4000 bytes"):
        serialize(with_constant(Tensor.of(np.zeros(1000, np.float32))))


def chain(length: int) -> Model:
    graph = Graph()
    graph.opsets[""] = 17
    type = TensorType(DType.FLOAT, (1, 2, 3, "N"))
    value = graph.add_input("x", type)
    for _ in range(length):
        value = graph.add_node("Relu", [value], types=[type]).out
    graph.set_outputs([value])
    return Model(graph)


@sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_visits_are_counted_as_the_decoder_counts(name: str) -> None:
    made = writer._Writer(from_proto(MODELS[name]), shapes=True)
    decoder = Decoder(b"".join(made.segments(made.root())))
    decoder.root()
    assert made.visits == decoder.visits


def test_shapes_are_dropped_before_refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST_VISITS", 800)
    graph = parse(bytes_of(chain(100))).graph
    assert graph.outputs[0].shape == graph.inputs[0].shape == (1, 2, 3, "N")
    assert next(iter(graph)).out.shape is None
    assert next(iter(graph)).out.dtype is DType.FLOAT
    with pytest.raises(UnsupportedError, match="at most 800"):
        serialize(chain(200))


# ---------------------------------------------------------------------- layout of the file


def test_payloads_are_aligned_and_not_copied() -> None:
    array = np.arange(5000, dtype=np.float32)
    model = with_constant(Tensor.of(array))
    segments = serialize(model)
    assert any(
        isinstance(s, memoryview) and s.obj is not None and np.shares_memory(np.asarray(s), array) for s in segments
    )
    data = b"".join(segments)
    assert data.index(array.tobytes()) % 16 == 0
    again = parse(data).graph.initializers["c"].constant
    assert again is not None
    assert np.shares_memory(again.numpy(), np.frombuffer(data, np.uint8))


def test_stock_reader_agrees(tmp_path: Path) -> None:
    """The flatbuffers package reads what we wrote: names, numbers, floats, structs and payloads."""
    pytest.importorskip("onnxruntime.tools.ort_format_model")
    fbs = importlib.import_module("ort_flatbuffers_py.fbs.InferenceSession").InferenceSession
    model = from_proto(MODELS["microsoft"])
    data = bytearray(bytes_of(model))
    graph = fbs.GetRootAs(data, 0).Model().Graph()
    node = graph.Nodes(0)
    assert (node.Name(), node.OpType(), node.Domain(), node.SinceVersion()) == (b"", b"FusedConv", b"com.microsoft", 1)
    floats = {node.Attributes(i).Name(): node.Attributes(i).FloatsAsNumpy() for i in range(node.AttributesLength())}
    np.testing.assert_array_equal(floats[b"activation_params"], np.float32([0.1]))
    end = graph.NodeEdges(1).InputEdges(0)
    assert (end.NodeIndex(), end.SrcArgIndex(), end.DstArgIndex()) == (0, 0, 0)
    weights = graph.Initializers(0)
    expected = model.graph.initializers["w"].constant
    assert expected is not None
    assert weights.RawDataAsNumpy().tobytes() == bytes(expected.data)


def test_float8_needs_version_6() -> None:
    message = helper.make_model(
        helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 19)], ir_version=9,
    )  # fmt: skip
    assert decode(bytes_of(from_proto(message))).ort_version == "6"
    assert decode(bytes_of(from_proto(MODELS["if"]))).ort_version == "5"


@pytest.mark.slow
def test_same_bytes_in_every_process(tmp_path: Path) -> None:
    script = (
        "import hashlib; from ort_models import models; from ortconv.onnxio.load import from_proto;"
        "from ortconv.ortformat.writer import serialize;"
        "print({k: hashlib.sha256(b''.join(serialize(from_proto(m)))).hexdigest() for k, m in models().items()})"
    )
    here = Path(__file__).parent
    seen = set()
    for seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
        run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        seen.add(run.stdout)
    assert len(seen) == 1
    assert hashlib.sha256(bytes_of(from_proto(MODELS["if"]))).hexdigest() in seen.pop()


# ---------------------------------------------------------------------- saving


def test_save(tmp_path: Path) -> None:
    path = tmp_path / "x.ort"
    save(from_proto(MODELS["constants"]), path)
    assert path.read_bytes() == bytes_of(from_proto(MODELS["constants"]))
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert os.listdir(tmp_path) == ["x.ort"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_failure_leaves_what_was_there(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ort"
    path.write_bytes(b"before")

    def segments(model: Model) -> Any:
        yield b"start"
        raise error

    monkeypatch.setattr(writer, "serialize", segments)
    with pytest.raises(UsageError if isinstance(error, OSError) else type(error)) as caught:
        save(from_proto(MODELS["if"]), path)
    if isinstance(caught.value, UsageError):
        assert caught.value.hint == "make room, or write to another place"
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["x.ort"]


def test_file_may_replace_its_own_source(tmp_path: Path) -> None:
    path = tmp_path / "x.ort"
    save(with_constant(Tensor.of(np.arange(5000, dtype=np.float32))), path)
    before = path.read_bytes()
    model = load(path)
    save(model, path)
    assert path.read_bytes() == before
    constant = model.graph.initializers["c"].constant
    assert constant is not None
    assert constant.numpy()[4999] == 4999


def test_unwritable_target(tmp_path: Path) -> None:
    (tmp_path / "x.ort").mkdir()
    with pytest.raises(UsageError, match=r"x\.ort: cannot write"):
        save(from_proto(MODELS["if"]), tmp_path / "x.ort")
    assert os.listdir(tmp_path) == ["x.ort"]


def test_canonical_sees_differences() -> None:
    """The comparison that other tests rest on is not blind."""
    model = from_proto(MODELS["nested"])
    a = canonical(bytes_of(model))
    node = next(iter(model.graph))
    node.doc = "x"
    assert differences(canonical(bytes_of(model)), a) == ["/graph/nodes/Sqrt -> g0/doc: x | "]
