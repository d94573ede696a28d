"""Convolutions and matrix products of quantized models, as onnxruntime's integer kernels compute them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_net import MICROSOFT, PER_CHANNEL, Net, around, check, refused
from rewriting import check as check_text
from rewriting import ops, optimized, parse, random_feeds, run

from ortconv.onnxio.proto import model_proto
from ortconv.optimizer import extended
from ortconv.optimizer.extended.qdq import PASSES
from tests.batches import batched, sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

# ---------------------------------------------------------------------- convolutions and products


def convolution(net: Net, weights: str, *bias: str, groups: int = 1, scale: float = 0.05) -> Net:
    x = net.activations(2, 4, 9, 9)
    y = net.add("Conv", x, weights, *bias, group=groups, pads=[1, 0, 1, 2], strides=[2, 1])
    return net.quantized(y, scale)


@sampled(4)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.004, PER_CHANNEL / 5], ids=["tensor", "channel"])
@pytest.mark.parametrize("bias", ["none", "int32", "float", "other scale"])
def test_conv(kind: str, weights: str, scale: object, bias: str) -> None:
    net = Net(kind)
    w = net.weights(6, 4, 3, 3, scale=scale, kind=weights, zero=0 if weights == "int8" else 40)
    assert check(convolution(net, w, *_bias(net, bias, scale, 6))) == around("QLinearConv")


def _bias(net: Net, bias: str, scale: object, count: int) -> list[str]:
    unit = np.float32(0.03) * np.asarray(scale, np.float32)
    if bias == "none":
        return []
    if bias == "float":
        return [net.const(net.rng.normal(size=count).astype(np.float32))]
    factor = 1.0 if bias == "int32" else 1.7
    codes = net.const(net.rng.integers(-3000, 3000, count).astype(np.int32))
    zero = np.zeros(np.shape(unit), np.int32)
    axis = {"axis": 0} if np.ndim(unit) else {}
    return [net.dq(codes, unit * np.float32(factor), zero, "int32", **axis)]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_in_groups(groups: int) -> None:
    net = Net()
    w = net.weights(8, 4 // groups, 3, 3, scale=0.004)
    assert check(convolution(net, w, groups=groups)) == around("QLinearConv")


def test_conv_of_one_axis() -> None:
    net = Net()
    y = net.add("Conv", net.activations(2, 4, 9), net.weights(3, 4, 3, scale=0.01), auto_pad="SAME_UPPER")
    assert check(net.quantized(y)) == around("QLinearConv")


@pytest.mark.parametrize("case", ["axis", "zero points", "coarse bias", "computed bias", "int16"])
def test_conv_that_stays(case: str) -> None:
    net = Net("int16" if case == "int16" else "uint8", opset=21)
    scale: object = np.full(4, 0.01) if case == "axis" else PER_CHANNEL
    zero = np.arange(6) if case == "zero points" else 0
    w = net.weights(6, 4, 3, 3, scale=scale, zero=zero, axis=1 if case == "axis" else 0)
    bias: list[str] = []
    if case == "coarse bias":
        bias = _bias(net, "float", scale, 6)
    if case == "computed bias":
        bias = [net.input(6)]
    refused(convolution(net, w, *bias, scale=0.001 if case == "coarse bias" else 0.05))


def test_conv_of_which_the_result_has_another_reader_stays() -> None:
    net = Net()
    y = net.add("Conv", net.activations(1, 4, 5, 5), net.weights(3, 4, 3, 3))
    net.returned(net.add("Neg", y))
    refused(net.quantized(y))


@sampled(4)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.004, PER_CHANNEL / 5], ids=["tensor", "column"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_matmul(kind: str, weights: str, scale: object, shape: tuple[int, ...]) -> None:
    for quantize in (True, False):
        net = Net(kind)
        w = net.weights(5, 6, scale=scale, kind=weights, axis=1, zero=0 if weights == "int8" else 40)
        y = net.add("MatMul", net.activations(*shape), w)
        if quantize:
            assert check(net.quantized(y, 0.01)) == around("QLinearMatMul")
        else:
            assert check(net.returned(y)) == {"QuantizeLinear": 1, f"{MICROSOFT}MatMulIntegerToFloat": 1}


@pytest.mark.parametrize("case", ["rows", "as many rows", "several matrices", "float operand"])
def test_matmul_that_stays(case: str) -> None:
    net = Net()
    x = net.input(2, 3, 5) if case == "float operand" else net.activations(2, 3, 5)
    shapes = {"rows": (5, 6), "as many rows": (5, 5), "several matrices": (2, 6, 5)}
    shape = shapes.get(case, (5, 6))
    scale = np.array([0.01, 0.02, 0.03, 0.01, 0.02]) if case in shapes else 0.02
    w = net.weights(*shape, scale=scale, axis=0 if len(shape) == 2 else 2)
    x = net.activations(2, 3, 6) if len(shape) == 3 else x
    refused(net.quantized(net.add("MatMul", x, w)))


def test_matmul_whose_result_has_another_type() -> None:
    net = Net()
    y = net.add("MatMul", net.activations(3, 5), net.weights(5, 6))
    net.step = 0.05
    found = check(net.returned(net.qdq(y, 0.05, 3, "int8")), platform="arm")
    assert found == {"QuantizeLinear": 2, f"{MICROSOFT}MatMulIntegerToFloat": 1, "DequantizeLinear": 1}


@pytest.mark.parametrize("case", ["rows", "bias of rows"])
def test_gemm_that_stays(case: str) -> None:
    """The matrix and the result are square."""
    net = Net()
    scale = np.array([0.01, 0.02, 0.005], np.float32)
    w = net.weights(3, 3, scale=scale, axis=0 if case == "rows" else 1)
    bias = [] if case == "rows" else [_stored_bias(net, scale, "int32", 0, 3, 3)]
    refused(net.quantized(net.add("Gemm", net.activations(3, 3), w, *bias), 0.05))


def _stored_bias(net: Net, scale: np.ndarray, kind: str, zero: int, *shape: int) -> str:
    codes = net.const(net.rng.integers(-99, 99, shape).astype(kind))
    return net.dq(codes, np.float32(0.03) * scale, np.full(3, zero), kind, axis=0)


@pytest.mark.parametrize(("kind", "zero"), [("int32", 5), ("int8", 0), ("int16", -3)])
def test_gemm_with_a_bias_of_other_integers(kind: str, zero: int) -> None:
    net = Net(opset=21)
    scale = np.array([0.01, 0.02, 0.005], np.float32)
    bias = _stored_bias(net, scale, kind, zero, 3)
    y = net.add("Gemm", net.activations(3, 3), net.weights(3, 3, scale=scale, axis=1), bias)
    assert check(net.quantized(y, 0.05)) == around(f"{MICROSOFT}QGemm")


@sampled(6)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.004, PER_CHANNEL / 5], ids=["tensor", "column"])
@pytest.mark.parametrize("trans", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("bias", ["none", "int32"])
def test_gemm(kind: str, weights: str, scale: object, trans: tuple[int, int], bias: str) -> None:
    for quantize in (True, False):
        net = Net(kind)
        shape = (6, 5) if trans[1] else (5, 6)
        w = net.weights(
            *shape, scale=scale, kind=weights, axis=0 if trans[1] else 1, zero=0 if weights == "int8" else 40
        )
        x = net.activations(*((5, 3) if trans[0] else (3, 5)))
        y = net.add("Gemm", x, w, *_bias(net, bias, scale, 6), transA=trans[0], transB=trans[1])
        if quantize:
            assert check(net.quantized(y, 0.01)) == around(f"{MICROSOFT}QGemm")
        else:
            assert check(net.returned(y)) == {"QuantizeLinear": 1, f"{MICROSOFT}QGemm": 1}


@pytest.mark.parametrize("bias", ["none", "int32", "float", "other scale"])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
def test_gemm_with_factors(bias: str, alpha: float, beta: float) -> None:
    """As in ONNX Runtime, a bias needs factors of 1."""
    net = Net()
    inputs = [net.activations(3, 5), net.weights(5, 6, scale=0.004), *_bias(net, bias, 0.004, 6)]
    net.quantized(net.add("Gemm", *inputs, alpha=alpha, beta=beta), 0.01)
    if bias == "none" or alpha == beta == 1:
        assert check(net) == around(f"{MICROSOFT}QGemm")
    else:
        refused(net)


@pytest.mark.parametrize("shape", [(3, 6), (1, 6), (3, 1), ()])
def test_gemm_with_a_float_bias_of_another_rank_stays(shape: tuple[int, ...]) -> None:
    net = Net()
    bias = net.const(net.rng.normal(size=shape).astype(np.float32))
    refused(net.quantized(net.add("Gemm", net.activations(3, 5), net.weights(5, 6, scale=0.004), bias), 0.01))


def test_gemm_with_one_computed_scale_per_column() -> None:
    """QGemm requires that the scale and the zero point of the matrix have the same shape."""
    net = Net()
    x, scale, zero = net.activations(3, 5), net.input(1), net.const(np.zeros(1, np.int8))
    codes = net.const(net.rng.integers(-60, 60, (5, 1)).astype(np.int8))
    net.quantized(net.add("Gemm", x, net.add("DequantizeLinear", codes, scale, zero)), 0.05)
    feeds = random_feeds(net.proto()) | {scale: np.array([0.01], np.float32)}
    assert check(net, feeds=feeds) == around(f"{MICROSOFT}QGemm")


# ---------------------------------------------------------------------- dynamic quantization


def dynamic(
    *, columns: bool, bias: bool, shared: bool = False, swapped: bool = False, zero: bool = True
) -> onnx.ModelProto:
    net = Net()
    x = net.input(2, 3, 8)
    net.add("DynamicQuantizeLinear", x, outputs=3)
    a, a_scale, a_zero = net.nodes[-1].output
    for _ in range(1 + shared):
        b = net.const(net.rng.integers(-60, 60, (8, 6)).astype(np.int8))
        b_scale = net.const((PER_CHANNEL if columns else np.asarray(0.02)).astype(np.float32))
        b_zero = [net.const(np.zeros(6 if columns else (), np.int8) + np.int8(3))] if zero else []
        product = net.add("Cast", net.add("MatMulInteger", a, b, a_zero, *b_zero), to=TensorProto.FLOAT)
        scales = net.add("Mul", *((b_scale, a_scale) if swapped else (a_scale, b_scale)))
        y = net.add("Mul", *((scales, product) if swapped else (product, scales)))
        net.returned(net.add("Add", y, net.const(net.rng.normal(size=6).astype(np.float32))) if bias else y)
    return net.proto()


@batched
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_dynamic_product(*, columns: bool, bias: bool, shared: bool, swapped: bool, zero: bool) -> None:
    proto = dynamic(columns=columns, bias=bias, shared=shared, swapped=swapped, zero=zero)
    model, _ = optimized(proto, PASSES)
    feeds = random_feeds(proto)
    for want, got in zip(run(proto, feeds), run(model_proto(model), feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if shared:
        assert ops(model.graph) == {"DynamicQuantizeLinear": 1, f"{MICROSOFT}MatMulIntegerToFloat": 2}
    else:
        assert ops(model.graph) == {f"{MICROSOFT}DynamicQuantizeMatMul": 1}


def _constant(proto: onnx.ModelProto, kind: int, shape: tuple[int, ...]) -> None:
    """Give the first constant of this type another shape, with equal elements."""
    tensor = next(t for t in proto.graph.initializer if t.data_type == kind)
    first = numpy_helper.to_array(tensor).reshape(-1)[0]
    tensor.CopyFrom(numpy_helper.from_array(np.full(shape, first), tensor.name))


@pytest.mark.parametrize("shape", [(3, 1), (1, 1, 6)], ids=["rows", "wide scale"])
def test_dynamic_product_that_stays(shape: tuple[int, ...]) -> None:
    proto = dynamic(columns=False, bias=False)
    _constant(proto, TensorProto.FLOAT, shape)
    assert not optimized(proto, PASSES)[1].trace


def left(source: onnx.ModelProto | str) -> set[str]:
    """The operators after the passes, which keep the numbers."""
    return set(ops(check_text(source, PASSES)[0]))


PRODUCT = """
  p = MatMulInteger(a, b, az, bz)
  c = Cast<to = {to}>(p)
  s = Mul(t, u)
  y = Mul(c, s)
"""


@pytest.mark.parametrize(
    ("a", "b", "operands", "to"),
    [
        ("int8[3,5]", "uint8[5,6]", "float t = {0.5}, float u = {0.25}, int8 az = {3}, uint8 bz = {7}", 1),
        ("uint8[3,5]", "uint8[5,6]", "double t = {0.5}, double u = {0.25}, uint8 az = {3}, uint8 bz = {7}", 11),
        (
            "uint8[3,2]",
            "uint8[2,2]",
            "float[2] t = {0.5, 2}, float[2] u = {0.25, 1}, uint8 az = {3}, uint8 bz = {7}",
            1,
        ),
        ("uint8[2,3,5]", "uint8[2,5,2]", "float t = {0.5}, float[2] u = {0.25, 1}, uint8 az = {3}, uint8 bz = {7}", 1),
    ],
    ids=["int8 by uint8", "double", "scales of columns", "matrices with scales of columns"],
)
def test_product_of_integers_that_stays(a: str, b: str, operands: str, to: int) -> None:
    kind = "double" if to == TensorProto.DOUBLE else "float"
    assert "MatMulInteger" in left(f"g ({a} a, {b} b) => ({kind} y) <{operands}> {{ {PRODUCT.format(to=to)} }}")


@pytest.mark.parametrize(
    ("bias", "beside"),
    [
        ("bias = Constant<value = float[1,1,2] {1, 2}>()", {"Add"}),
        ("bias = Constant<value = float[2,1] {1, 2}>()", {"Add"}),
        ("bias = Constant<value = float {1}>()", {"Add"}),
        ("bias = Constant<value = float[1,2] {1, 2}>()", set()),
        ("bias = DequantizeLinear(codes, t, zero)", set()),
        ("bias = DequantizeLinear<axis = 0>(plane, pair)", {"Add", "DequantizeLinear"}),
        ("bias = DequantizeLinear<axis = 0>(codes, pair)", set()),
    ],
    ids=["more axes", "rows", "number", "plane", "zero point", "scales of rows", "scales of columns"],
)
def test_bias_of_a_dynamic_product(bias: str, beside: set[str]) -> None:
    constants = """float t = {0.5}, float u = {0.25}, uint8 az = {3}, uint8 bz = {7}, int32[2] codes = {4, -6}, int32 zero = {1},
        int32[2,2] plane = {4, -6, 2, 9}, float[2] pair = {0.5, 2}"""
    text = f"g (uint8[2,5] a, uint8[5,2] b) => (float z) <{constants}> {{ {PRODUCT.format(to=1)} {bias} z = Add(y, bias) }}"
    assert left(text) == {f"{MICROSOFT}MatMulIntegerToFloat"} | beside


def test_dynamic_product_of_a_vector() -> None:
    operands = "float t = {0.5}, float[2] u = {0.25, 1}, uint8 az = {3}, uint8 bz = {7}"
    text = f"g (uint8[5] a, uint8[5,2] b) => (float y) <{operands}> {{ {PRODUCT.format(to=1)} }}"
    assert left(text) == {f"{MICROSOFT}MatMulIntegerToFloat"}


def test_product_with_the_scale_of_another_quantizer_stays() -> None:
    text = """g (float[3,5] x, float[3,5] z) => (float y) <int8[5,2] b = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, float u = {0.25}> {
        a, s, o = DynamicQuantizeLinear(x)
        c, t, p = DynamicQuantizeLinear(z)
        y = com.microsoft.MatMulIntegerToFloat(a, b, t, u, o) }"""
    assert left(text) == {"DynamicQuantizeLinear", f"{MICROSOFT}MatMulIntegerToFloat"}


# ---------------------------------------------------------------------- weights in blocks


def transposed(matrix: onnx.TensorProto) -> onnx.TensorProto:
    array = numpy_helper.to_array(matrix).T
    return helper.make_tensor(matrix.name, matrix.data_type, array.shape, array.reshape(-1))


def blocked(kind: int, *, block: int, zero: bool, op: str = "MatMul", rows: int = 64, axis: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    columns, blocks = 6, -(-rows // block) if block else 1
    bits = 4 if kind in (TensorProto.INT4, TensorProto.UINT4) else 8
    low = -(1 << (bits - 1)) if kind in (TensorProto.INT4, TensorProto.INT8) else 0
    codes = rng.integers(low, low + (1 << bits), (rows, columns))
    shape = (blocks, columns) if block else (columns,)
    constants = [
        helper.make_tensor("w", kind, [rows, columns], codes.reshape(-1)),
        numpy_helper.from_array(rng.uniform(0.01, 0.1, shape).astype(np.float32), "s"),
        numpy_helper.from_array(rng.normal(size=columns).astype(np.float32), "b"),
    ]
    if zero:
        zeros = rng.integers(low, low + (1 << bits), shape)
        constants.append(helper.make_tensor("z", kind, shape, zeros.reshape(-1)))
    attrs = {"axis": axis, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", *(["z"] if zero else [])], ["d"], **attrs),
        helper.make_node(op, ["x", "d", *(["b"] if "Gemm" in op else [])], ["p" if op == "Biased" else "y"]),
    ]
    if op == "transposed Gemm":
        nodes[0].attribute[0].i = 1 - nodes[0].attribute[0].i
        nodes[1].op_type = "Gemm"
        nodes[1].attribute.append(helper.make_attribute("transB", 1))
        constants = [transposed(tensor) if len(tensor.dims) == 2 else tensor for tensor in constants]
    if op == "Biased":
        nodes[1].op_type = "MatMul"
        nodes.append(helper.make_node("Add", ["b", "p"], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, columns])
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


(ACCURACY_LEVEL_4,) = (p for p in extended.OPT_IN if p.name == "MatMulNBitsAccuracyLevel4")


@sampled(5)
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "transposed Gemm", "Biased"])
@pytest.mark.parametrize("rows", [64, 40])
def test_few_bits(kind: int, block: int, op: str, rows: int, *, zero: bool) -> None:
    if block and rows % block:
        pytest.skip("ONNX wants whole blocks")
    proto = blocked(kind, block=block, zero=zero, op=op, rows=rows)
    model, _ = optimized(proto, PASSES)
    allowed = 1e-4
    if kind in (TensorProto.INT8, TensorProto.UINT8):
        assert ops(model.graph)["DequantizeLinear"] == 1
        model, _ = optimized(proto, (ACCURACY_LEVEL_4, *PASSES))
        allowed = 5e-2  # of the largest element, for activations of 8 bits
    assert ops(model.graph) == {f"{MICROSOFT}MatMulNBits": 1}
    (node,) = model.graph
    assert node.attrs["accuracy_level"] == (1 if allowed == 1e-4 else 4)
    feeds = random_feeds(proto)
    want = run(proto, feeds)[0]
    np.testing.assert_allclose(run(model_proto(model), feeds)[0], want, rtol=1e-4, atol=allowed * np.abs(want).max())


@pytest.mark.parametrize(
    ("scale", "node", "fires"),
    [
        ("float[2] s = {0.5, 2}", "DequantizeLinear<axis = 0>(w, s) y = MatMul(x, d)", False),
        ("float[2] s = {0.5, 2}", "DequantizeLinear<axis = -1>(w, s) y = MatMul(x, d)", True),
        ("float[2] s = {0.5, 2}", "DequantizeLinear(w, s) y = Gemm(x, d, m)", False),
        ("float[2] s = {0.5, 2}", "DequantizeLinear(w, s) y = Gemm(x, d, s)", True),
        ("float s = {0.5}", "DequantizeLinear(w, s) y = Gemm<alpha = 2.0>(x, d)", False),
        ("float s = {0.5}", "DequantizeLinear(w, s) y = Gemm<transA = 1>(t, d)", False),
        ("float[2] s = {0.5, 2}", "DequantizeLinear<axis = 0>(w, s) y = Gemm<transB = 1>(x, d)", True),
        ("float[2] s = {0.5, 2}", "DequantizeLinear(w, s) y = Gemm<transB = 1>(x, d)", False),
        ("float s = {0.5}", "DequantizeLinear(w, s) y = Gemm(x, d, s)", False),
        ("float s = {0.5}", "DequantizeLinear(w, s) y = MatMul(v, d)", False),
        ("float s = {0.5}", "DequantizeLinear(w, s) p = MatMul(x, d) y = Add(p, m)", True),
    ],
)
def test_few_bits_with_one_scale_or_one_per_column(scale: str, node: str, *, fires: bool) -> None:
    """The matrix is square, so that rows and columns are as many."""
    proto = parse(
        f"g (float[3,2] x, float[2,3] t, float[2] v) => (float y) <{scale}, float[1,2] m = {{1, 2}}> {{ d = {node} }}",
        21,
    )
    proto.ir_version = 10
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, (2, 2), (-8, 7, 3, -1)))
    assert (f"{MICROSOFT}MatMulNBits" in left(proto)) == fires


def test_few_bits_of_several_matrices_stay() -> None:
    proto = parse("g (float[3,2] x) => (float y) <float s = {0.5}> { d = DequantizeLinear(w, s) y = MatMul(x, d) }", 21)
    proto.ir_version = 10
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, (2, 2, 1), (-8, 7, 3, -1)))
    assert left(proto) == {"DequantizeLinear", "MatMul"}


@pytest.mark.parametrize("change", [{"block": 8}, {"block": 2, "axis": 1}])
def test_few_bits_in_other_blocks_stay(change: dict[str, int]) -> None:
    proto = blocked(TensorProto.INT4, **{"block": 16, "zero": False} | change)  # type: ignore[arg-type]
    if "axis" in change:
        shape = np.full((64, 3), 0.02, np.float32)
        proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(shape, "s"))
    assert not optimized(proto, PASSES)[1].trace
