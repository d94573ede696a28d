"""Quantized models: operators between DequantizeLinear and QuantizeLinear, as onnxruntime's integer kernels compute them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from qdq_net import MICROSOFT, Net, around, check, refused
from rewriting import ops, optimized, parse, random_feeds, run

from ortconv.ir.graph import Graph
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.extended.qdq import PASSES
from tests.batches import batched, sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

# ---------------------------------------------------------------------- operators that move elements


def moved(
    net: Net, op: str, *more: object, shape: tuple[int, ...] = (2, 4, 6, 6), at: float = 0.4, **attrs: object
) -> Net:
    x = net.activations(*shape, at=at)
    y = net.add(op, x, *(m if isinstance(m, str) else net.const(m) for m in more), **attrs)
    return net.quantized(y, 0.03, at)


MOVERS = {
    "Transpose": lambda n: moved(n, "Transpose", perm=[0, 2, 3, 1]),
    "Reshape": lambda n: moved(n, "Reshape", np.array([2, -1])),
    "Squeeze": lambda n: moved(n, "Squeeze", np.array([1]), shape=(2, 1, 6)),
    "Unsqueeze": lambda n: moved(n, "Unsqueeze", np.array([1])),
    "Flatten": lambda n: moved(n, "Flatten", axis=2),
    "Gather": lambda n: moved(n, "Gather", np.array([[0, 3], [-1, 2]]), axis=1),
    "GatherElements": lambda n: moved(n, "GatherElements", np.array([[0, 1, 0]]), shape=(2, 3), axis=0),
    "Slice": lambda n: moved(n, "Slice", np.array([1]), np.array([9]), np.array([2]), np.array([2])),
    "Expand": lambda n: moved(n, "Expand", np.array([3, 2, 4, 6, 6])),
    "Tile": lambda n: moved(n, "Tile", np.array([1, 2, 1, 1])),
}
SELECTORS = {
    "MaxPool": lambda n: moved(n, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "ReduceMax": lambda n: moved(n, "ReduceMax", axes=[1, 3], keepdims=0),
    "ReduceMin": lambda n: moved(n, "ReduceMin", axes=[1]),
    "DepthToSpace": lambda n: moved(n, "DepthToSpace", blocksize=2, mode="CRD"),
    "Resize": lambda n: moved(n, "Resize", "", np.array([1, 1, 2, 1.5], np.float32), mode="nearest"),
}


@sampled(4)
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("op", MOVERS)
def test_mover(op: str, kind: str) -> None:
    assert check(MOVERS[op](Net(kind, opset=21)), 0) == around(op)


@pytest.mark.parametrize("op", MOVERS)
def test_mover_between_nodes_of_the_other_domain(op: str) -> None:
    net = MOVERS[op](Net("uint16", domain="com.microsoft"))
    assert check(net, 0) == {op: 1, "com.microsoft.QuantizeLinear": 1, "com.microsoft.DequantizeLinear": 1}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("op", SELECTORS)
def test_selector(op: str, kind: str) -> None:
    assert check(SELECTORS[op](Net(kind)), 0) == around(op)


def test_unquantized_movers_between_pool_and_layer() -> None:
    """As Brevitas exports the end of a network: only the operators that compute are quantized."""
    net = Net()
    pooled = net.add("GlobalAveragePool", net.activations(2, 6, 4, 4))
    x = net.qdq(net.add("Flatten", pooled), 0.03, net.zero(0.4))
    y = net.qdq(net.add("Gemm", x, net.weights(6, 5)), 0.05, net.zero())
    net.quantized(net.add("Gemm", net.add("Flatten", y, axis=0), net.weights(10, 3)))
    assert check(net) == around(
        "Flatten", "Flatten", *(MICROSOFT + op for op in ("QLinearGlobalAveragePool", "QGemm", "QGemm"))
    )


def test_linear_resize_stays_since_integers_are_truncated() -> None:
    """onnxruntime's integer Resize gives 0 for 0.75 steps, which quantizing rounds to 1."""
    net = moved(Net(), "Resize", "", np.array([1, 1, 2, 2], np.float32), mode="linear")
    refused(net)
    text = """g (uint8[1,1,1,2] x) => (uint8[1,1,1,4] y) <float[4] k = {1, 1, 1, 2}> { y = Resize<mode = "linear">(x, , k) }"""
    (y,) = run(parse(text), {"x": np.array([[[[0, 1]]]], np.uint8)})
    assert y.reshape(-1).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "attrs",
    [
        {"mode": "cubic"},
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.5},
        {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.5},
    ],
)
def test_resize_that_leaves_the_range_stays(attrs: dict[str, object]) -> None:
    roi = np.array([0, 0, 0, 0, 1, 1, 1.5, 1.5], np.float32)
    refused(moved(Net(), "Resize", roi, np.array([1, 1, 2, 2], np.float32), **attrs))


def test_pool_before_it_has_integers_stays() -> None:
    """MaxPool takes integers from opset 12 on."""
    refused(SELECTORS["MaxPool"](Net(opset=11)))


@pytest.mark.parametrize("change", [{"scale": 0.04}, {"zero": 7}, {"kind": "int8", "zero": 3}])
def test_mover_between_different_parameters_stays(change: dict[str, object]) -> None:
    net = Net()
    y = net.add("Transpose", net.activations(2, 3))
    options = {"scale": 0.03, "zero": net.zero(0.4)} | change
    net.quantized(net.add("Neg", net.dq(net.q(y, **options), **options)))  # type: ignore[arg-type]
    found = check(net, 0)
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (3, 3)


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("opset", [13, 21])
def test_split(kind: str, opset: int) -> None:
    if "16" in kind and opset < 21:
        pytest.skip("QuantizeLinear has no 16 bits yet")
    net = Net(kind, opset)
    x = net.activations(2, 6)
    net.add("Split", x, net.const(np.array([2, 3, 1])), outputs=3, axis=1)
    for part in net.nodes[-1].output:
        net.quantized(part, 0.03, 0.4)
    assert check(net, 0) == {"QuantizeLinear": 1, "Split": 1, "DequantizeLinear": 3}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_arg_max(kind: str) -> None:
    net = Net(kind)
    net.returned(net.add("ArgMax", net.activations(3, 7, scale=0.3), axis=1, keepdims=0))
    assert check(net, 0) == {"QuantizeLinear": 1, "ArgMax": 1}


@pytest.mark.parametrize("parameters", ["0.25, 3", "0.5, 4"])
def test_pair_with_different_parameters_stays(parameters: str) -> None:
    scale, zero = parameters.split(", ")
    text = f"""g (uint8[2,3] x) => (uint8[2,3] y)
        <float s = {{0.5}}, uint8 z = {{3}}, float t = {{{scale}}}, uint8 u = {{{zero}}}>
        {{ r = DequantizeLinear(x, s, z) y = QuantizeLinear(r, t, u) }}"""
    assert not optimized(parse(text), PASSES)[1].trace


# ---------------------------------------------------------------------- elementwise operators and pools


UNARY = {
    "Sigmoid": ({}, {"scale": 1 / 256, "at": 0.0}),
    "LeakyRelu": ({"alpha": 0.2}, {"scale": 0.02}),
    "LeakyRelu default": ({}, {"scale": 0.02}),
    "Softmax": ({"axis": -1}, {"scale": 1 / 256, "at": 0.0}),
    "Softmax middle": ({"axis": 1}, {"scale": 1 / 160, "at": 0.1}),
    "Softmax default": ({}, {"scale": 1 / 256, "at": 0.0}),
    "AveragePool": ({"kernel_shape": [2, 2]}, {"scale": 0.02}),
    "AveragePool padded": ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}, {"scale": 0.02}),
    "AveragePool whole": ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, {"scale": 0.02}),
    "AveragePool ceil": ({"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1}, {"scale": 0.02}),
    "AveragePool same": ({"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}, {"scale": 0.02}),
    "GlobalAveragePool": ({}, {"scale": 0.01}),
}


@sampled(4)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("case", UNARY)
def test_unary(case: str, opset: int, kind: str) -> None:
    attrs, result = UNARY[case]
    net = Net(kind, opset)
    op = case.split()[0]
    y = net.add(op, net.activations(2, 4, 7, 7), **attrs)
    assert check(net.quantized(y, **result)) == around(f"{MICROSOFT}QLinear{op}")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2, 4, 9), (1, 3, 5, 6, 7)])
@pytest.mark.parametrize("op", ["AveragePool", "GlobalAveragePool"])
def test_pool_of_other_rank(op: str, shape: tuple[int, ...]) -> None:
    net = Net()
    attrs = {} if op.startswith("G") else {"kernel_shape": [2] * (len(shape) - 2)}
    assert f"{MICROSOFT}QLinear{op}" in check(net.quantized(net.add(op, net.activations(*shape), **attrs), 0.02))


@pytest.mark.parametrize(("scale", "fits"), [(0.5, True), (1.0, False), (2.0**-17, False)])
def test_mean_of_much_smaller_or_larger_steps(scale: float, *, fits: bool) -> None:
    """onnxruntime's QLinearGlobalAveragePool fails if the scales differ too much."""
    net = Net()
    net.quantized(net.add("GlobalAveragePool", net.activations(2, 3, 1, 1, scale=scale)), 1 / 256, 0.5)
    if fits:
        assert f"{MICROSOFT}QLinearGlobalAveragePool" in check(net)
    else:
        refused(net)


@pytest.mark.parametrize("include", [0, 1])
def test_pool_with_windows_beyond_the_padding(include: int) -> None:
    """onnxruntime's QLinearAveragePool divides by another number than AveragePool where ceil_mode lets windows stick out."""
    net = Net()
    x = net.activations(1, 2, 7, 7)
    net.quantized(
        net.add("AveragePool", x, kernel_shape=[1, 3], strides=[3, 3], ceil_mode=1, count_include_pad=include)
    )
    if include:
        refused(net)
    else:
        assert f"{MICROSOFT}QLinearAveragePool" in check(net)


@pytest.mark.parametrize(("shape", "opset", "fits"), [((3, 1), 13, False), ((3, 2), 13, True), ((3, 2, 1), 12, True)])
def test_softmax_of_few_elements(shape: tuple[int, ...], opset: int, *, fits: bool) -> None:
    """onnxruntime's QLinearSoftmax overflows, and gives 0 for 1, where the sum is short and the steps are fine."""
    net = Net(opset=opset)
    y = net.quantized(net.add("Softmax", net.activations(*shape, scale=0.3), axis=1), 1 / 255, 0.0)
    if fits:
        assert check(y) == around(f"{MICROSOFT}QLinearSoftmax")
    else:
        refused(y)


@pytest.mark.parametrize(("zero", "fits"), [(-128, True), (0, False)])
def test_softmax_beyond_the_largest_integer(zero: int, *, fits: bool) -> None:
    """Before ONNX Runtime 1.32, the kernel of QLinearSoftmax wraps around there. For arm, int8 stays int8."""
    net = Net("int8")
    net.quantized(net.add("Softmax", net.activations(3, 4, scale=0.3), axis=1), 1 / 256, zero=zero)
    assert (f"{MICROSOFT}QLinearSoftmax" in check(net, platform="arm")) == fits


@pytest.mark.parametrize("steps", [63, 255, 256])
def test_softmax_whose_steps_are_a_whole_share_of_1(steps: int) -> None:
    """1 / 63 and 1 / 255 are larger in float32, and the kernel truncates their reciprocals to 62 and 254."""
    net = Net()
    net.quantized(net.add("Softmax", net.activations(3, 2, scale=0.5), axis=1), 1 / steps, 0.0)
    feeds = {net.inputs[0].name: np.array([[9, -9], [1, -1], [0.5, -0.5]], np.float32)}
    assert check(net, 0, feeds) == around(f"{MICROSOFT}QLinearSoftmax")


@batched
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((1,), (2, 3)), ((2, 1), (1, 3)), ((), (3,))]
)
def test_binary(op: str, kind: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    net = Net(kind)
    a, b = net.activations(*shapes[0]), net.activations(*shapes[1], scale=0.05, at=0.6)
    found = check(net.quantized(net.add(op, a, b), 0.06, 0.45))
    assert found == {"QuantizeLinear": 2, f"{MICROSOFT}QLinear{op}": 1, "DequantizeLinear": 1}


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_binary_with_a_signed_constant_stays(op: str) -> None:
    """Its integer kernel rounds ties another way, and ONNX Runtime leaves it in float32."""
    net = Net()
    a, b = net.activations(2, 3), net.weights(3, zero=5)
    refused(net.quantized(net.add(op, b, a), 0.06, 0.45))


@pytest.mark.parametrize("op", ["Sub", "Div", "Max", "Min", "Pow"])
def test_binary_without_integer_kernel_stays(op: str) -> None:
    net = Net()
    refused(net.quantized(net.add(op, net.activations(2, 3), net.activations(2, 3))))


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [1, -1])
def test_concat(axis: int, kind: str) -> None:
    net = Net(kind)
    parts = [net.activations(2, 3, 3, scale=s, at=t) for s, t in ((0.03, 0.4), (0.05, 0.5), (0.02, 0.6))]
    found = check(net.quantized(net.add("Concat", *parts, axis=axis)))
    assert found == {"QuantizeLinear": 3, f"{MICROSOFT}QLinearConcat": 1, "DequantizeLinear": 1}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_where(kind: str) -> None:
    net = Net(kind)
    a, b = net.activations(2, 3), net.activations(3, scale=0.05, at=0.6)
    found = check(net.quantized(net.add("Where", net.input(2, 1, kind=TensorProto.BOOL), a, b)))
    assert found == {"QuantizeLinear": 2, f"{MICROSOFT}QLinearWhere": 1, "DequantizeLinear": 1}


# ---------------------------------------------------------------------- clamps


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("clamp", ["Relu", "Clip", "Clip half"])
def test_redundant_clamp(clamp: str, kind: str) -> None:
    net = Net(kind)
    w = net.weights(6, 4, 3, 3, scale=0.004)
    y = net.add("Conv", net.activations(1, 4, 5, 5), w)
    if clamp == "Relu":
        y = net.add("Relu", y)
    else:
        y = net.add("Clip", y, net.const(np.float32(0)), *([net.const(np.float32(2))] if clamp == "Clip" else []))
    assert check(net.quantized(y, np.float32(2 / 255), 0.0)) == around("QLinearConv")  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["relu", "clip low", "clip high", "computed", "scales"])
def test_clamp_that_matters_stays(case: str) -> None:
    net = Net()
    x = net.input(2, 3)
    if case == "relu":
        y = net.quantized(net.add("Relu", x), 0.02, 0.1)
    elif case == "clip low":
        y = net.quantized(net.add("Clip", x, net.const(np.float32(0.1))), 0.02, 0.0)
    elif case == "clip high":
        y = net.quantized(net.add("Clip", x, "", net.const(np.float32(5.0))), 0.02, 0.0)
    elif case == "computed":
        y = net.quantized(net.add("Clip", x, net.input()), 0.02, 0.0)
    else:
        q = net.q(net.add("Relu", x), np.full(3, 0.02), np.array([0, 1, 0]))
        y = net.returned(net.dq(q, np.full(3, 0.02), np.array([0, 1, 0])))
    refused(y)


def test_clamp_of_nan_and_infinities() -> None:
    net = Net()
    net.quantized(net.add("Clip", net.input(2, 3), net.const(np.float32(0)), net.const(np.float32(6))), 6 / 255, 0.0)
    feeds = {net.inputs[0].name: np.array([[np.nan, np.inf, -np.inf], [-0.0, 6.1, -1]], np.float32)}
    assert check(net, 0, feeds) == around()


# ---------------------------------------------------------------------- signed activations


def types_of(graph: Graph) -> set[str]:
    return {v.dtype.name for n in graph for v in n.outputs if v is not None and v.dtype is not None}


def test_signed_activations_become_unsigned() -> None:
    net = Net("int8")
    y = net.add("Tanh", net.activations(2, 3))
    net.quantized(y, 0.01)
    proto = net.proto()
    model, context = optimized(proto, PASSES)
    assert context.counts() == {"QDQS8ToU8Transformer": 2}
    assert types_of(model.graph) == {"FLOAT", "UINT8"}
    feeds = random_feeds(proto)
    np.testing.assert_array_equal(run(proto, feeds)[0], run(model_proto(model), feeds)[0])


def test_signed_activations_that_are_read_with_another_zero_point_stay() -> None:
    net = Net("int8")
    refused(net.returned(net.dq(net.q(net.input(2, 3), 0.05, 3), 0.05, 5)))


# ---------------------------------------------------------------------- whatever the operator


@pytest.mark.parametrize("number", range(3))
def test_other_precisions_stay(number: int) -> None:
    """Scales of float16, or in blocks, have no integer kernel."""
    texts = (
        """g (float16[2,16] x) => (float16 y) <uint8 z = {3}> {
            f = Constant<value_float = 0.5>() s = Cast<to = 10>(f)
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Sigmoid(d)
            p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z) }""",
        """g (float[2,4] x) => (float y) <float[2,2] s = {0.5, 0.25, 0.5, 0.25}, uint8[2,2] z = {3, 4, 5, 6}> {
            q = QuantizeLinear<axis = 1, block_size = 2>(x, s, z)
            d = DequantizeLinear<axis = 1, block_size = 2>(q, s, z) r = Sigmoid(d)
            p = QuantizeLinear<axis = 1, block_size = 2>(r, s, z)
            y = DequantizeLinear<axis = 1, block_size = 2>(p, s, z) }""",
        """g (float[2,3] x) => (float y) <float[3] s = {0.5, 0.25, 0.5}, uint8[3] z = {3, 4, 5}> {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Sigmoid(d)
            p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z) }""",
    )
    proto = parse(texts[number], opset=21)
    if number == 0:
        del proto.graph.node[:2]
        proto.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float16), "s"))
    assert not optimized(proto, PASSES)[1].trace


def where_number(kind: str, number: object, *, first: bool) -> Net:
    net = Net(kind)
    a, k = net.activations(2, 3), net.const(np.asarray(number, np.float32))
    condition = net.input(2, 3, kind=TensorProto.BOOL)
    return net.quantized(net.add("Where", condition, *((k, a) if first else (a, k))))


@sampled(4)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, 0.1, -0.7, 1e-20, -3.4e38, [2.5], [[-1.5]]])
@pytest.mark.parametrize("first", [True, False])
def test_where_with_a_number(kind: str, number: object, first: bool) -> None:
    assert check(where_number(kind, number, first=first), steps=0) == around(MICROSOFT + "QLinearWhere")


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1e-40, [1.0, 2.0, 3.0]])
def test_where_with_what_has_no_integer(number: object) -> None:
    model, _ = optimized(where_number("uint8", number, first=True).proto(), PASSES)
    assert ops(model.graph)["Where"] == 1
