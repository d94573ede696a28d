"""Quantized operators against onnxruntime.

Signed weights stay within 64 of zero: beyond, onnxruntime's product of uint8 and int8 saturates on processors without VNNI.
"""

from itertools import product

import numpy as np
import pytest

from tests.batches import batched
from tests.executor.single_node import accelerated, assert_same, compare, run_kernel

MS = "com.microsoft"
EIGHT_BITS = [np.uint8, np.int8]


def codes(rng, shape, dtype, reach=None):
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if reach is None else (max(info.min, -reach), min(info.max, reach))
    return rng.integers(low, high + 1, shape).astype(dtype)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


def zero_point(dtype):
    return scalar(121 if dtype is np.uint8 else -7, dtype)


def same_codes(op, inputs, attributes=None, domain=MS, **options):
    compare(op, inputs, attributes, domain=domain, rtol=0, atol=0, **options)


CONVOLUTIONS = [
    ((2, 3, 8, 9), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 8, 9), (4, 3, 1, 1), {"strides": [2, 2]}),
    ((1, 6, 8, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 6, 8, 9), (4, 3, 3, 3), {"group": 2, "dilations": [2, 2]}),
    ((1, 600, 4, 4), (4, 600, 3, 3), {"auto_pad": "SAME_UPPER"}),
    ((2, 3, 9), (4, 3, 3), {"pads": [1, 1]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {}),
]


def convolution(rng, x, w, types, per_channel, bias):
    weights = codes(rng, w, types[1], None if types[1] is np.uint8 else 60)
    w_scale = (rng.random(w[0]) * 0.02 + 0.01).astype(np.float32) if per_channel else scalar(0.02)
    w_zero = np.zeros(w[0] if per_channel else (), types[1]) if types[1] is np.int8 else scalar(130, np.uint8)
    taps = float(np.prod(w[1:]))
    y_scale = scalar(0.02 * 0.05 * 70 * 40 * np.sqrt(taps) / 60)
    inputs = [
        codes(rng, x, types[0]),
        scalar(0.05),
        zero_point(types[0]),
        weights,
        w_scale,
        w_zero,
        y_scale,
        zero_point(types[0]),
    ]
    return [*inputs, rng.integers(-5000, 5000, w[0]).astype(np.int32)] if bias else inputs


@batched
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_qlinear_conv(rng, x, w, attributes, types, bias):
    inputs = convolution(rng, x, w, types, types[1] is np.int8, bias)
    compare("QLinearConv", inputs, attributes, opset=10)
    function = accelerated("QLinearConv", inputs, attributes, (3, 5))
    assert_same(function(*inputs), run_kernel("QLinearConv", inputs, attributes, opset=10)[0])


def test_qlinear_conv_channels_last(rng):
    inputs = convolution(rng, (2, 3, 8, 9), (4, 3, 3, 3), (np.uint8, np.int8), True, True)
    want = run_kernel("QLinearConv", inputs)[0]
    inputs[0] = np.ascontiguousarray(np.moveaxis(inputs[0], 1, -1))
    compare("QLinearConv", inputs, {"channels_last": 1}, domain=MS)
    got = run_kernel("QLinearConv", inputs, {"channels_last": 1}, domain=MS)[0]
    assert_same(got, np.moveaxis(want, 1, -1))


@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 5)), ((2, 3, 64), (64, 5)), ((2, 3, 4), (2, 4, 5)), ((7, 900), (900, 3))]
)
def test_qlinear_matmul(rng, a, b, types):
    inputs = [
        codes(rng, a, types[0]), scalar(0.05), zero_point(types[0]),
        codes(rng, b, types[1], None if types[1] is np.uint8 else 60), scalar(0.02), scalar(3, types[1]),
        scalar(0.02 * 0.05 * 60 * np.sqrt(a[-1])), zero_point(types[0]),
    ]  # fmt: skip
    compare("QLinearMatMul", inputs, opset=10)


@batched
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize(("trans_a", "trans_b", "bias", "quantized"), list(product((0, 1), repeat=4)))
def test_qgemm(rng, trans_a, trans_b, bias, quantized, types):
    a, b = (
        codes(rng, (40, 6) if trans_a else (6, 40), types[0]),
        codes(rng, (5, 40) if trans_b else (40, 5), types[1], 60),
    )
    b_scale = (rng.random(5) * 0.02 + 0.01).astype(np.float32)
    inputs = [a, scalar(0.05), zero_point(types[0]), b, b_scale, np.zeros(5, types[1])]
    inputs.append(rng.integers(-3000, 3000, 5).astype(np.int32) if bias else None)
    inputs += [scalar(1.5), zero_point(types[0])] if quantized else []
    while inputs[-1] is None:
        inputs.pop()
    attributes = {"alpha": 0.5, "transA": trans_a, "transB": trans_b}
    if quantized:
        same_codes("QGemm", inputs, attributes)
    else:
        compare("QGemm", inputs, attributes, domain=MS)


@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_integer_to_float(rng, types, bias):
    inputs = [codes(rng, (2, 3, 40), types[0]), codes(rng, (40, 5), types[1], 60), scalar(0.05)]
    inputs += [(rng.random(5) + 0.1).astype(np.float32), zero_point(types[0]), np.arange(5).astype(types[1])]
    inputs += [rng.standard_normal(5).astype(np.float32)] * bias
    compare("MatMulIntegerToFloat", inputs, domain=MS, atol=1e-4)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_quantize_matmul(rng, dtype, bias):
    x = rng.standard_normal((2, 3, 40)).astype(np.float32)
    inputs = [x, codes(rng, (40, 5), dtype, 60), (rng.random(5) + 0.1).astype(np.float32), np.arange(5).astype(dtype)]
    inputs += [rng.standard_normal(5).astype(np.float32)] * bias
    compare("DynamicQuantizeMatMul", inputs, domain=MS, atol=1e-4)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(
    ("bits", "k", "block_size"), [(4, 64, 32), (4, 70, 16), (4, 128, 128), (8, 64, 32), (2, 64, 16)]
)
def test_matmul_nbits(rng, bits, k, block_size, zero_points):
    n, blocks = 6, -(-k // block_size)
    b = rng.integers(0, 256, (n, blocks, block_size * bits // 8)).astype(np.uint8)
    inputs = [rng.standard_normal((2, 3, k)).astype(np.float32), b, (rng.random((n, blocks)) + 0.1).astype(np.float32)]
    if zero_points:
        inputs.append(rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8))
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block_size}
    compare("MatMulNBits", inputs, attributes, domain=MS, rtol=1e-4, atol=1e-3)


@batched
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(
    ("a", "b"), [((3, 40), (3, 40)), ((2, 3, 40), (40,)), ((40,), ()), ((3, 1), (1, 40)), ((0, 3), (3,))]
)
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_binary(rng, op, a, b, dtype):
    c_scale = scalar(0.0913 if op == "QLinearAdd" else 0.1137)
    inputs = [
        codes(rng, a, dtype), scalar(0.05), zero_point(dtype), codes(rng, b, dtype), scalar(0.03), scalar(5, dtype),
        c_scale, zero_point(dtype),
    ]  # fmt: skip
    same_codes(op, inputs)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("c_scale", [0.0625, 0.046875])
def test_ties_of_all_pairs(op, dtype, c_scale):
    """With these scales many results lie halfway between two integers, and the zero point is odd."""
    every = np.arange(256, dtype=np.uint8).view(dtype)
    operand = [scalar(0.03125), zero_point(dtype)]
    inputs = [
        every[:, None],
        *operand,
        every[None, :],
        *operand,
        scalar(c_scale * (op == "QLinearMul" or 2)),
        zero_point(dtype),
    ]
    same_codes(op, inputs)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_ties_of_average_pools(rng, dtype, count_include_pad):
    x = codes(rng, (2, 3, 9, 9), dtype)
    inputs = [x, scalar(0.25), zero_point(dtype), scalar(0.125), zero_point(dtype)]
    attributes = {"kernel_shape": [2, 4], "pads": [1, 0, 1, 1], "count_include_pad": count_include_pad}
    same_codes("QLinearAveragePool", inputs, attributes)


@pytest.mark.parametrize(("op", "attributes"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2})])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_unary(op, attributes, dtype):
    x = np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16)
    y_scale = 1 / 256 if op == "QLinearSigmoid" else 0.06
    inputs = [x, scalar(0.05), zero_point(dtype), scalar(y_scale), scalar(0 if dtype is np.uint8 else -20, dtype)]
    same_codes(op, inputs, attributes)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(rng, axis, dtype):
    parts = []
    for n, scale in ((2, 0.05), (3, 0.02), (1, 0.07)):
        shape = [2, 3, 4]
        shape[axis] = n
        parts += [codes(rng, shape, dtype), scalar(scale), zero_point(dtype)]
    inputs = [scalar(0.05), scalar(4, dtype), *parts]
    assert_same(run_kernel("QLinearConcat", inputs, {"axis": axis}, domain=MS)[0], concatenated(parts, axis, dtype))
    compare("QLinearConcat", inputs, {"axis": axis}, domain=MS)


def concatenated(parts, axis, dtype):
    real = np.concatenate(
        [(x.astype(np.float32) - z) * s for x, s, z in zip(parts[::3], parts[1::3], parts[2::3])], axis
    )
    info = np.iinfo(dtype)
    return np.clip(np.rint(real.astype(np.float32) / np.float32(0.05)) + 4, info.min, info.max).astype(dtype)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_where(rng, dtype):
    inputs = [
        rng.random((3, 4)) > 0.5, codes(rng, (3, 4), dtype), scalar(0.05), zero_point(dtype), codes(rng, (4,), dtype),
        scalar(0.03), scalar(5, dtype), scalar(0.06), scalar(9, dtype),
    ]  # fmt: skip
    same_codes("QLinearWhere", inputs)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 12), (2, 9)])
def test_softmax(rng, axis, opset, dtype):
    y_scale, y_zero = scalar(1 / 256), scalar(0 if dtype is np.uint8 else -128, dtype)
    inputs = [codes(rng, (3, 5, 7), dtype), scalar(0.03), zero_point(dtype), y_scale, y_zero]
    same_codes("QLinearSoftmax", inputs, {"axis": axis, "opset": opset})


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_average_pools(rng, dtype, channels_last):
    x = codes(rng, (2, 7, 8, 3) if channels_last else (2, 3, 7, 8), dtype)
    inputs = [x, scalar(0.05), zero_point(dtype), scalar(0.0317), scalar(9, dtype)]
    same_codes("QLinearGlobalAveragePool", inputs, {"channels_last": channels_last})
    attributes = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "channels_last": channels_last}
    same_codes("QLinearAveragePool", inputs, attributes)


def prepared_cases(rng):
    """Name, attributes, inputs, and which of them are constant in any case."""
    a, b, tall = codes(rng, (2, 5, 24), np.uint8), codes(rng, (24, 48), np.int8), codes(rng, (48, 24), np.int8)
    s, zero = scalar(0.03), zero_point(np.uint8)
    column = (rng.random(48) * 0.02 + 0.01).astype(np.float32), rng.integers(-9, 9, 48).astype(np.int8)
    bias, c = rng.standard_normal(48).astype(np.float32), rng.integers(-900, 900, 48).astype(np.int32)
    x = rng.standard_normal((2, 5, 24)).astype(np.float32)
    yield "QLinearMatMul", "", {}, [a, s, zero, b, *column, scalar(0.5), zero], (3, 5)
    yield "QGemm", MS, {"alpha": 0.5}, [a[0], s, zero, b, *column, c, scalar(0.5), zero], (3, 5)
    yield "QGemm", MS, {"transB": 1, "transA": 1}, [a[0].T.copy(), s, zero, tall, s, zero_point(np.int8)], (3, 5)
    yield "MatMulIntegerToFloat", MS, {}, [a, b, s, column[0], zero, column[1], bias], (1, 5)
    yield "MatMulIntegerToFloat", MS, {}, [a, b, s, s], (1,)
    yield "DynamicQuantizeMatMul", MS, {}, [x, b, *column, bias], (1, 3)
    yield "DynamicQuantizeMatMul", MS, {}, [x, b, s], (1,)
    image, w = codes(rng, (1, 4, 9, 8), np.uint8), codes(rng, (6, 2, 3, 3), np.int8)
    geometry = {"group": 2, "pads": [1, 0, 1, 0], "kernel_shape": [3, 3]}
    yield "ConvInteger", "", geometry, [image, w, zero, np.arange(-3, 3, dtype=np.int8)], (1, 3)
    yield "ConvInteger", "", {"group": 2}, [image, w], (1,)


def test_constant_weights_make_the_same(rng):
    for op, domain, attributes, inputs, constant in prepared_cases(rng):
        want = run_kernel(op, inputs, attributes, domain=domain)[0]
        for known in (constant, constant[:1]):
            function = accelerated(op, inputs, attributes, known, domain=domain)
            np.testing.assert_array_equal(function(*inputs), want, err_msg=op)
