"""Basic rules where text models do not reach: infinite constants, random shapes of constants, providers, limits, cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import optimize, passes_in
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from ortconv.ir.graph import Graph
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.levels import passes_of, run_passes
from tests.conftest import examples
from tests.counting import calls
from tests.unoptimized import run

BASIC = "basic."


def model(nodes: list[Any], constants: dict[str, Any], shape: list[int], rank: int | None = None) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (rank or len(shape)))],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return proto


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph]


def test_max_pool_takes_a_pad_of_minus_infinity() -> None:
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    nodes = [
        helper.make_node("Pad", ["x", "p", "v"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[2, 2]),
    ]
    proto = model(nodes, {"p": pads, "v": np.float32(-np.inf)}, [1, 1, 3, 3])
    result = from_proto(proto)
    optimize(result, passes_in(BASIC + "pad"))
    assert ops(result.graph) == ["MaxPool"]
    x = np.full((1, 1, 3, 3), -1, np.float32)
    np.testing.assert_array_equal(run(model_proto(result), {"x": x})[0], run(proto, {"x": x})[0])


@pytest.mark.parametrize(
    "body",
    [
        "w = Constant<value = float[2,2,1,1] {1, 2, 3, 4}>() c = Conv(x, w, k) y = Mul(c, zeros)",
        "w = Constant<value = float[2,2] {1, 2, 3, 4}>() f = Flatten(x) c = Gemm(f, w, k) y = Add(c, low)",
        "c = Add(x, k) y = Add(c, low)",
    ],
)
def test_sums_and_products_of_infinities_are_not_folded(body: str) -> None:
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,2,1,1] x) => (float y)
        <float[2] k = {{inf, inf}}, float[2] low = {{-inf, -inf}}, float[2,1,1] zeros = {{0, 0}}> {{ {body} }}"""
    )
    result = from_proto(proto)
    before = ops(result.graph)
    optimize(
        result, [name for part in ("fold_conv", "fold_matmul", "fold_product") for name in passes_in(BASIC + part)]
    )
    assert ops(result.graph) == before


@pytest.mark.parametrize("fill", [-1.0, np.nan])
def test_zeros_around_negative_numbers_are_not_dropped(fill: float) -> None:
    nodes = [helper.make_node("Pad", ["x", "p"], ["a"]), helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[2, 2])]
    proto = model(nodes, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, [1, 1, 3, 3])
    result = from_proto(proto)
    optimize(result, passes_of("basic"))
    x = np.full((1, 1, 3, 3), fill, np.float32)
    np.testing.assert_array_equal(run(model_proto(result), {"x": x})[0], run(proto, {"x": x})[0])


CONSTANT_SHAPES = st.lists(st.sampled_from([1, 1, 4, 3]), max_size=5).map(tuple)


@examples(120)
@given(
    CONSTANT_SHAPES,
    st.sampled_from(["Add", "Sub", "Mul", "Div"]),
    st.booleans(),
    st.sampled_from(["Conv", "ConvTranspose"]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_convolution_and_constants_of_any_shape(
    shape: tuple[int, ...], op: str, swapped: bool, conv: str, group: int, biased: bool
) -> None:
    """Folded exactly where the constant varies along the channels at most, and right either way."""
    rng = np.random.default_rng(7)
    assume(all(d in (1, e) for d, e in zip(reversed(shape), (3, 3, 4, 1))) and 3 not in shape[:-4])
    constants = {
        "w": rng.normal(size=(4, 4 // group, 1, 1)).astype(np.float32),
        "k": rng.uniform(0.5, 2, shape).astype(np.float32),
        "b": rng.normal(size=4).astype(np.float32),
    }
    nodes = [
        helper.make_node(conv, ["x", "w", "b"] if biased else ["x", "w"], ["c"], group=group),
        helper.make_node(op, ["k", "c"] if swapped else ["c", "k"], ["y"]),
    ]
    proto = model(nodes, constants, [2, 4, 3, 3], max(4, len(shape)))
    result = from_proto(proto)
    optimize(result, passes_in(BASIC + "fold_conv"))
    per_channel = len(shape) <= 4 and all(d == 1 for i, d in enumerate((1,) * (4 - len(shape)) + shape) if i != 1)
    folds = per_channel and not (op == "Div" and swapped)
    assert ops(result.graph) == ([conv] if folds else [conv, op])
    x = rng.normal(size=(2, 4, 3, 3)).astype(np.float32)
    np.testing.assert_allclose(run(model_proto(result), {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_nodes_of_different_providers_stay_apart() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)'
        "{ a = Exp(x) b = Exp(x) c = Relu(a) d = Relu(c) e = Neg(b) y = Add(d, e) }"
    )
    result = from_proto(proto).graph
    for node in result:
        node.ep = "NNAPI" if node.out.name in ("a", "c") else ""
    passes = (*passes_in(BASIC + "cse"), *passes_in(BASIC + "eliminate"))
    assert not any(count for _, count in run_passes(result, passes, Context()))


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_run_stops_at_the_limit(limit: int) -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)'
        "<float one = {1}, float uno = {1}>"
        "{ a = Mul(x, one) b = Exp(a) c = Exp(x) d = Add(b, c) e = Identity(d) f = Neg(uno) g = Mul(e, f) y = Abs(g) }"
    )
    result = from_proto(proto)
    context = Context(PassSettings(limit=limit))
    for _ in run_passes(result.graph, passes_of("basic"), context):
        pass
    assert len(context.trace) == limit
    x = np.array([1, 2, -3, 0], np.float32)
    np.testing.assert_array_equal(run(model_proto(result), {"x": x})[0], run(proto, {"x": x})[0])


def redundant(blocks: int, fan_out: bool) -> Graph:
    """Blocks with something for every pass; in a row, or all reading the input."""
    nodes, constants = [], {"one": np.float32(1), "axis": np.array([0]), "shape": np.array([-1, 4])}
    last = "x"
    for i in range(blocks):
        constants[f"k{i}"] = np.full(4, 2, np.float32)
        constants[f"w{i}"] = np.full((4, 4), i, np.float32)
        steps = [
            ("Identity", [last]), ("Mul", ["_", "one"]), ("Unsqueeze", ["_", "axis"]), ("Squeeze", ["_", "axis"]),
            ("Reshape", ["_", "shape"]), ("Transpose", ["_"]), ("Transpose", ["_"]), ("MatMul", ["_", f"w{i}"]),
            ("Add", [f"k{i}", "_"]), ("Relu", ["_"]), ("Relu", ["_"]), ("Exp", ["_"]), ("Slice", ["_", "axis", "one64", "axis"]),
        ]  # fmt: skip
        current = last
        for j, (op, inputs) in enumerate(steps):
            nodes.append(helper.make_node(op, [current if v == "_" else v for v in inputs], [f"b{i}_{j}"]))
            current = f"b{i}_{j}"
        nodes.append(helper.make_node("Exp", [f"b{i}_10"], [f"b{i}_twin"]))
        nodes.append(helper.make_node("Add", [current, f"b{i}_twin"], [f"b{i}"]))
        last = "x" if fan_out else f"b{i}"
    ends = [f"b{i}" for i in range(blocks)] if fan_out else [last]
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    constants["one64"] = np.array([2**31 - 1])
    return from_proto(model(nodes, constants, [3, 4])).graph


@pytest.mark.slow
@pytest.mark.parametrize("fan_out", [False, True])
def test_cost_is_linear(fan_out: bool) -> None:
    def cost(blocks: int) -> int:
        graph = redundant(blocks, fan_out)
        return calls(lambda: list(run_passes(graph, passes_of("basic"), Context())))

    cost(2)
    small, large = cost(30), cost(120)
    assert large < 5 * small
