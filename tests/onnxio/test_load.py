"""Loading .onnx files: everything that a valid one may hold, without more memory than it needs."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  the names of numpy dtypes
import numpy as np
import onnx
import pytest
import small_models
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from ortconv import models
from ortconv.errors import GraphError, ModelError, UnsupportedError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.model import Model
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.text import text
from ortconv.ir.types import DType, TensorType
from ortconv.ir.verify import verify
from ortconv.onnxio import load as loading
from ortconv.onnxio.load import from_proto, load
from ortconv.onnxio.proto import model_proto
from tests.batches import sampled
from tests.unoptimized import run


def saved(proto: onnx.ModelProto, directory: Path) -> Model:
    onnx.save(proto, directory / "m.onnx")
    model = load(directory / "m.onnx")
    verify(model.graph)
    return model


def assert_same_results(proto: onnx.ModelProto, model: Model, feeds: dict[str, np.ndarray]) -> None:
    for expected, got in zip(run(proto, feeds), run(model_proto(model), feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


def only(graph: Graph, op: str) -> Node:
    (node,) = [n for n in graph.walk() if n.op == op]
    return node


def constant(model: Model, name: str) -> Tensor:
    tensor = model.graph.initializers[name].constant
    assert tensor is not None
    return tensor


# ---------------------------------------------------------------------- constants

DENSE = [d for d in DType if d not in (DType.UNDEFINED, DType.STRING)]


def elements(dtype: DType) -> np.ndarray:
    """Five elements that every type can hold."""
    values = [1, 2, 1, 1, 2] if dtype is DType.FLOAT8E8M0 else [0, 1, 1, 0, 1]
    return np.array(values).astype(dtype.numpy)


@sampled(4)
@pytest.mark.parametrize("dtype", DENSE, ids=lambda d: d.name)
@pytest.mark.parametrize("size", [5, 2600], ids=["small", "cut out"])
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_every_element_type(dtype: DType, size: int, form: str, tmp_path: Path) -> None:
    expected = np.resize(elements(dtype), size)
    if form == "raw":
        tensor = numpy_helper.from_array(expected, "w")
        assert tensor.data_type == dtype
    else:
        tensor = helper.make_tensor("w", int(dtype), [size], expected)
        assert not tensor.HasField("raw_data")
    y = helper.make_tensor_value_info("y", int(dtype), [size])
    graph = helper.make_graph([helper.make_node("Same", ["w"], ["y"], domain="own")], "g", [], [y], [tensor])
    model = saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("own", 1)]), tmp_path)
    found = constant(model, "w")
    assert (found.dtype, found.shape) == (dtype, (size,))
    np.testing.assert_array_equal(found.numpy(), expected)
    assert model.graph.outputs[0].type == TensorType(dtype, (size,))
    back = model_proto(model).graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(back), expected)


def test_strings() -> None:
    proto = small_models.shapes()
    assert constant(from_proto(proto), "st").data == (b"a", b"\xff")
    assert constant(from_proto(proto), "st").numpy().tolist() == ["a", "\udcff"]


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
def test_sparse_initializer(indices: list[int]) -> None:
    proto = small_models.shapes()
    index = numpy_helper.from_array(np.array(indices, np.int64))
    proto.graph.sparse_initializer[0].indices.CopyFrom(index)
    sparse = from_proto(proto).graph.initializers["sp"].const
    assert isinstance(sparse, SparseTensor)
    np.testing.assert_array_equal(sparse.dense().numpy(), [[0, 1, 0], [0, 0, 2]])


CONSTANTS = {
    "value = float[2] {1, 2}": (DType.FLOAT, (2,), [1.0, 2.0]),
    "value_float = 3.5": (DType.FLOAT, (), 3.5),
    "value_floats = [3.5, -1.0]": (DType.FLOAT, (2,), [3.5, -1.0]),
    "value_int = -7": (DType.INT64, (), -7),
    "value_ints = [4, 5, 6]": (DType.INT64, (3,), [4, 5, 6]),
    'value_string = "word"': (DType.STRING, (), "word"),
    'value_strings = ["a", "", "b"]': (DType.STRING, (3,), ["a", "", "b"]),
}


@pytest.mark.parametrize("attribute", CONSTANTS)
def test_constant_nodes_become_initializers(attribute: str) -> None:
    dtype, shape, value = CONSTANTS[attribute]
    kind = {DType.FLOAT: "float", DType.INT64: "int64", DType.STRING: "string"}[dtype]
    model = small_models.parsed(
        f"g () => ({kind}[{','.join(map(str, shape))}] y) {{ k = Constant<{attribute}>() y = Identity(k) }}"
    )
    tensor = constant(model, "k")
    assert (tensor.dtype, tensor.shape, tensor.numpy().tolist()) == (dtype, shape, value)
    assert [n.op for n in model.graph] == ["Identity"]


def test_sparse_constant_node() -> None:
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g () => (float[2,3] y) { y = Constant() }')
    attribute = proto.graph.node[0].attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(small_models.shapes().graph.sparse_initializer[0])
    value = from_proto(proto).graph.outputs[0]
    assert isinstance(value.const, SparseTensor)


@pytest.mark.parametrize("attributes", ["", "<value_int = 1, value_float = 2.0>"])
def test_constant_needs_one_attribute(attributes: str) -> None:
    with pytest.raises(GraphError, match=r"Constant 'y': . attributes"):
        small_models.parsed(f"g () => (float y) {{ y = Constant{attributes}() }}")


@pytest.mark.parametrize(
    "body",
    [
        "y, z = Split <num_outputs = 1> (x)",
        "y, z = If (c) <then_branch = g1 () => (float a, float b) { a, b = Split <num_outputs = 1> (x) },"
        " else_branch = g2 () => (float d, float e) { d = Abs (x) e = Abs (x) }>",
    ],
)
def test_split_has_the_outputs_that_it_says(body: str) -> None:
    with pytest.raises(GraphError, match=r"Split '[ay]': num_outputs is 1, but there are 2 outputs"):
        small_models.parsed(
            f"g (float[2,4] x, bool c) => (float[] y, float[] z) {{ {body} }}", 'ir_version: 8, opset_import: ["" : 18]'
        )


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(name="bad", data_type=1, dims=[1 << 62]),
        TensorProto(name="bad", data_type=1, dims=[1 << 62, 1 << 62], raw_data=b"1234"),
        TensorProto(name="bad", data_type=1, dims=[1 << 62, 0, -1], raw_data=b""),
        TensorProto(name="bad", data_type=1, dims=[3], float_data=[1.0, 2.0]),
        TensorProto(name="bad", data_type=1, dims=[3], raw_data=b"12345678"),
        TensorProto(name="bad", data_type=22, dims=[1 << 40], int32_data=[1]),
        TensorProto(name="bad", data_type=8, dims=[1 << 62]),
        TensorProto(name="bad", data_type=99, dims=[1]),
        TensorProto(name="bad", dims=[1]),
        TensorProto(name="bad", data_type=1, dims=[1], segment=TensorProto.Segment(begin=0, end=1)),
    ],
    ids=range(10),
)
def test_tensors_that_do_not_fit(tensor: TensorProto) -> None:
    proto = small_models.control_flow()
    proto.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match="'bad'"):
        from_proto(proto)


HUGE = 1 << 62

SHAPE_BOMBS = {
    "range": f"k = Constant<value_int = {HUGE}>() o = Constant<value_int = 1>() r = Range(o, k, o) z = Add(r, r) y = Relu(x)",
    "fill": f"k = Constant<value_ints = [{HUGE}, {HUGE}]>() f = ConstantOfShape(k) y = Relu(x)",
    "doubling": "y = Relu(x) c0 = Identity(x) "
    + " ".join(f"c{i + 1} = Concat<axis = 0>(c{i}, c{i})" for i in range(60)),
}


MEASURE = """
import resource, sys
from ortconv.onnxio.load import load
before = resource.getrlimit(resource.RLIMIT_AS), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    (relu,) = [n for n in load(path).graph if n.op == "Relu"]
    assert resource.getrlimit(resource.RLIMIT_AS) == before[0]
    assert relu.out.static_shape == (2,), path
    print(path, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_shape_computations_of_any_size_take_little(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.onnx" for name in SHAPE_BOMBS]
    for path, body in zip(paths, SHAPE_BOMBS.values(), strict=True):
        text = f"g (float[2] x) => (float[2] y) {{ {body} }}"
        onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), path)
    command = [sys.executable, "-c", MEASURE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    peaks = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert {path: peak for path, peak in peaks.items() if int(peak) >= 320 << 10} == {}
    assert len(peaks) == len(paths)


def test_dims_without_elements_need_no_data() -> None:
    proto = small_models.control_flow()
    proto.graph.initializer.append(TensorProto(name="e", data_type=1, dims=[1 << 62, 0]))
    assert constant(from_proto(proto), "e").size == 0


# ---------------------------------------------------------------------- inputs and initializers


def test_the_last_of_two_initializers_counts() -> None:
    proto = small_models.control_flow()
    for number in (1.0, 2.0):
        proto.graph.initializer.append(numpy_helper.from_array(np.array([number]), "extra"))
    assert constant(from_proto(proto), "extra").numpy().tolist() == [2.0]


def test_the_last_of_two_constants_counts() -> None:
    model = small_models.parsed(
        "g () => (float y) { a = Constant<value_float = 1.0>() a = Constant<value_float = 2.0>() y = Neg(a) }"
    )
    assert constant(model, "a").numpy() == 2


@pytest.mark.parametrize(("ir_version", "overridable"), [(3, False), (4, True), (10, True)])
def test_initializers_that_are_inputs(ir_version: int, overridable: bool) -> None:
    model = small_models.parsed(
        "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }",
        f'ir_version: {ir_version}, opset_import: ["" : 7]',
    )
    assert [v.name for v in model.graph.inputs] == (["x", "w"] if overridable else ["x"])
    w = model.graph.initializers["w"]
    assert w.is_input is overridable
    assert (w.constant is None) is overridable


def test_frozen_initializers_are_no_inputs(tmp_path: Path) -> None:
    """Shapes that they state are then known, too."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, int64[1] shape = {-1}) => (float[N] y) { y = Reshape(x, shape) }'
    )
    onnx.save(proto, tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", proto):
        free, frozen = models.load(source), models.load(source, freeze_initializers=True)
        assert [v.name for v in free.graph.inputs] == ["x", "shape"]
        assert [v.name for v in frozen.graph.inputs] == ["x"]
        assert frozen.graph.initializers["shape"].constant is not None
        assert (free.graph.outputs[0].shape, frozen.graph.outputs[0].shape) == (("N",), (6,))


# ---------------------------------------------------------------------- graphs


def test_control_flow_runs_as_before(tmp_path: Path) -> None:
    proto = small_models.control_flow()
    model = saved(proto, tmp_path)
    for c in (False, True):
        x = np.array([[1, 2, 3], [-1, -2, -3]], np.float32)
        assert_same_results(proto, model, {"x": x, "c": np.array(c)})


def test_shapes_model_runs_as_before(tmp_path: Path) -> None:
    proto = small_models.shapes()
    del proto.graph.sparse_initializer[:]
    feeds = {
        "x": np.ones((2, 3, 4), np.float32),
        "image": np.ones((2, 3, 5, 5), np.float32),
        "words": np.array(["a", "b"], object),
    }
    assert_same_results(proto, saved(proto, tmp_path), feeds)


def test_functions_are_inlined(tmp_path: Path) -> None:
    proto = small_models.functions()
    model = saved(proto, tmp_path)
    assert [n.op for n in model.graph] == ["LeakyRelu", "LeakyRelu"]
    assert [n.attrs["alpha"] for n in model.graph] == [0.5, 0.25]
    assert_same_results(proto, model, {"x": np.array([[-1.0], [2.0]], np.float32)})


def test_weights_inside_functions_stay_in_the_file(tmp_path: Path) -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[300] x) => (float[300] y) { y = l.f(x) }\n'
        '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { k = Constant() y = Add(x, k) }'
    )
    weights = np.arange(300, dtype=np.float32)
    attribute = proto.functions[0].node[0].attribute.add(name="value", type=AttributeProto.TENSOR)
    attribute.t.CopyFrom(numpy_helper.from_array(weights))
    model = saved(proto, tmp_path)
    (value,) = model.graph.initializers.values()
    assert value.constant is not None
    np.testing.assert_array_equal(value.constant.numpy(), weights)


def test_functions_of_another_opset_are_converted() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "l" : 1]> g (float[2, 3] x) => (float[2, 1] y) { y = l.f(x) }\n'
        '<domain: "l", opset_import: ["" : 11]> f (x) => (y) { y = ReduceMean<axes = [1]>(x) }'
    )
    model = from_proto(proto)
    assert [len(n.inputs) for n in model.graph] == [2]
    (y,) = run(model_proto(model), {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    np.testing.assert_array_equal(y, [[1], [4]])


def test_functions_bring_their_operator_sets() -> None:
    model = small_models.parsed(
        'g (float[2] x) => (float[2] y) { y = l.f(x) }\n<domain: "l", opset_import: ["" : 17, "com.microsoft" : 1]>\n'
        "f (x) => (y) { y = com.microsoft.Gelu(x) }",
        'ir_version: 8, opset_import: ["" : 17, "l" : 1]',
    )
    assert model.graph.opset("com.microsoft") == 1
    assert model.graph.outputs[0].static_shape == (2,)


@pytest.mark.parametrize("body", ["y = l.f(x)", "y = If(x) <then_branch = t () => (z) { z = l.f(x) }>", "y = l.h(x)"])
def test_recursive_functions(body: str) -> None:
    header = '<domain: "l", opset_import: ["" : 17, "l" : 1]>'
    with pytest.raises(GraphError, match="calls itself"):
        small_models.parsed(
            f"g (bool x) => (bool y) {{ y = l.f(x) }}\n{header} f (x) => (y) {{ {body} }}\n{header} h (x) => (y) {{ y = l.f(x) }}",
            'ir_version: 8, opset_import: ["" : 17, "l" : 1]',
        )


def test_functions_that_explode() -> None:
    header = '<domain: "l", opset_import: ["" : 17, "l" : 1]>'
    bodies = "".join(
        f"{header} f{i} (x) => (y) {{ a = l.f{i + 1}(x) b = l.f{i + 1}(a) y = l.f{i + 1}(b) }}\n" for i in range(40)
    )
    with pytest.raises(UnsupportedError, match="the limit is 1000000"):
        small_models.parsed(
            f"g (float x) => (float y) {{ y = l.f0(x) }}\n{bodies}{header} f40 (x) => (y) {{ y = Relu(x) }}",
            'ir_version: 8, opset_import: ["" : 17, "l" : 1]',
        )


def test_unsorted_nodes_are_sorted() -> None:
    model = small_models.parsed("g (float[2] x) => (float[2] y) { y = Relu(b) b = Abs(a) a = Neg(x) }")
    assert [n.op for n in model.graph] == ["Neg", "Abs", "Relu"]
    assert model.graph.outputs[0].static_shape == (2,)


def test_subgraph_names_that_hide_outer_ones() -> None:
    text = """g (float[2] x, bool c) => (float[2] y, float[2] t) {
        t = Neg(x)
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Abs(x) },
            else_branch = b () => (float[2] z) { t = Exp(x) z = Add(t, x) }
        >
    }"""
    model = small_models.parsed(text)
    inner = only(model.graph, "Add").inputs[0]
    assert inner is only(model.graph, "Exp").out
    assert only(model.graph, "Abs").graph.outputs == [only(model.graph, "Abs").out]  # type: ignore[union-attr]
    assert len({v.name for n in model.graph.walk() for v in n.outputs if v}) == 5


def test_same_names_in_both_branches() -> None:
    model = small_models.parsed("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] z) { t = Abs(x) z = Neg(t) },
            else_branch = b () => (float[2] z) { t = Exp(x) z = Neg(t) }
        >
    }""")
    assert model.graph.outputs[0].static_shape == (2,)


def test_subgraph_that_returns_an_outer_value() -> None:
    model = small_models.parsed("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] x) { }, else_branch = b () => (float[2] z) { z = Neg(x) }>
    }""")
    branch = only(model.graph, "If").subgraphs[0]
    assert [n.op for n in branch] == ["Identity"]
    assert branch.outputs == [next(iter(branch)).out]


def test_output_that_is_an_input_and_listed_twice() -> None:
    model = small_models.parsed("g (float[2] x) => (float[2] x, float[2] y, float[2] y) { y = Neg(x) }")
    assert [v.name for v in model.graph.outputs] == ["x", "y", "y_1"]
    assert model.warnings == ["output 'y' is listed again; this copy is named 'y_1'"]


def test_custom_domains_pass_through(tmp_path: Path) -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "my.ops" : 3]> g (float[2] x) => (float[N] y) '
        '{ a, b = my.ops.Thing<level = 3, mode = "fast">(x, , x) y = Relu(b) }'
    )
    model = saved(proto, tmp_path)
    node = only(model.graph, "Thing")
    assert (node.domain, node.attrs, model.graph.opset("my.ops")) == ("my.ops", {"level": 3, "mode": "fast"}, 3)
    assert node.inputs[1] is None
    assert [v and v.type for v in node.outputs] == [None, None]


def test_types_behind_contributed_operators_are_inferred() -> None:
    model = small_models.parsed(
        "g (float[2, 3] x) => (float[A, B] y) { a = com.microsoft.Gelu(x) b = Transpose(a) y = Relu(b) }",
        'ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]',
    )
    assert [n.out.static_shape for n in model.graph] == [(2, 3), (3, 2), (3, 2)]


@pytest.mark.parametrize("imported", ["", "ai.onnx"])
@pytest.mark.parametrize("used", ["", "ai.onnx"])
def test_ai_onnx_is_the_default_domain(imported: str, used: str) -> None:
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["{imported}" : 17]> g (float x) => (float y) {{ a = Relu(x) y = Neg(a) }}'
    )
    proto.graph.node[0].domain = used
    model = from_proto(proto)
    assert model.graph.opsets == {"": 17}
    assert {node.domain for node in model.graph} == {""}


def test_model_fields(tmp_path: Path) -> None:
    proto = small_models.control_flow()
    proto.producer_name, proto.producer_version, proto.domain, proto.doc_string = "p", "v", "d", "doc"
    proto.model_version = -3
    proto.metadata_props.add(key="k", value="v")
    model = saved(proto, tmp_path)
    assert model.path == str(tmp_path / "m.onnx")
    back = model_proto(model)
    for name in ("producer_name", "producer_version", "domain", "doc_string", "model_version", "metadata_props"):
        assert getattr(back, name) == getattr(proto, name)


# ---------------------------------------------------------------------- dimensions


def dims(model: Model) -> list[object]:
    return [n.out.shape for n in model.graph.walk()]


def test_the_shape_of_a_group_normalization() -> None:
    """onnx does not infer it from operator set 21 on."""
    text = "g (float[N, 4, 3] x, float[4] s) => (y) { n = GroupNormalization<num_groups = 2>(x, s, s) y = Neg(n) }"
    model = small_models.parsed(text, header='ir_version: 10, opset_import: ["" : 21]')
    assert [str(node.out.type) for node in model.graph] == ["float[N,4,3]"] * 2


def test_invented_dimension_names_are_anonymous() -> None:
    model = small_models.parsed("g (float[N] x) => (int64[A, B] y) { n = NonZero(x) t = Transpose(n) y = Abs(t) }")
    assert dims(model)[:2] == [(1, "?0"), ("?0", 1)]


def test_own_names_of_that_form_stay() -> None:
    model = small_models.parsed(
        "g (float[unk__1, 3] x, float[Q] z) => (float[A, B] y, int64[C, D] m) "
        "{ a = Relu(x) y = Neg(a) n = NonZero(z) m = Abs(n) }"
    )
    assert only(model.graph, "Relu").out.shape == ("unk__1", 3)
    assert only(model.graph, "NonZero").out.shape == (1, "?0")


def test_invented_names_differ_from_the_models_own_anonymous_ones() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (int64[A, B] y) { y = NonZero(x) }'
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "?0"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = from_proto(proto)
    assert model.graph.inputs[0].shape == ("?0",)
    assert model.graph.outputs[0].shape in ((1, "?1"), (1, None))


# ---------------------------------------------------------------------- resources


def anonymous_memory() -> int:
    """Anonymous memory of this process in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such line")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(np.full((512, 512), i, np.float32), f"w{i}") for i in range(16)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(16)]
    x, y = (helper.make_tensor_value_info(name, 1, [1, 512]) for name in ("x0", "x16"))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights)), tmp_path / "m.onnx")
    del weights
    load(tmp_path / "m.onnx")
    gc.collect()
    before = anonymous_memory()
    model = load(tmp_path / "m.onnx")
    assert anonymous_memory() - before < 2 << 20
    assert constant(model, "w7").numpy()[5, 5] == 7


def test_garbage_collection_is_as_before() -> None:
    assert gc.isenabled()
    from_proto(small_models.control_flow())
    assert gc.isenabled()
    gc.disable()
    try:
        from_proto(small_models.control_flow())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_large_models_are_built_from_packed_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of this model are not in order, one is a Constant, and one has subgraphs that read outer values."""
    branches = (
        "then_branch = t () => (float[n] u) { u = Mul(b, x) }, else_branch = e () => (float[n] v) { v = Sub(x, c) }"
    )
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, bool k) => (float[n] y) <float[1] w = {3}>'
        f"{{ y = If(k) <{branches}> b = Add(x, w) c = Constant<value = float[1] {{2}}>() }}"
    )
    expected = text(from_proto(proto).graph)
    monkeypatch.setattr(loading, "LARGE", 0)
    assert text(from_proto(proto).graph) == expected


@pytest.mark.parametrize("opset", [13, 17])
def test_an_unknown_attribute_of_a_layer_normalization(opset: int) -> None:
    source = f"""<ir_version: 8, opset_import: ["": {opset}]>
    g (float[2,4] x, float[4] w, float[4] b) => (float[2,4] y) {{ y = LayerNormalization<axis = -1, epsion = 1.0>(x, w, b) }}"""
    model = from_proto(parser.parse_model(source))
    assert [dict(node.attrs) for node in model.graph] == [{"axis": -1}]
    (warning,) = model.warnings
    assert "'epsion' is unknown and ignored; did you mean epsilon?" in warning
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 4) if name == "x" else 4).astype(np.float32) for name in "xwb"}
    assert_same_results(parser.parse_model(source), model, feeds)
