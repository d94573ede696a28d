"""Quantization against onnxruntime."""

import ml_dtypes
import numpy as np
import pytest

from ortconv.errors import GraphError
from ortconv.ir.types import DType
from tests.batches import batched
from tests.executor.single_node import assert_same, compare, run_kernel

EIGHT_BITS = [np.uint8, np.int8]
INTEGERS = [*EIGHT_BITS, np.uint16, np.int16]
VALUES = np.array([0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.49, 100, -100, 1e9, -1e9, 1e-20, np.inf, -np.inf], np.float32)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


@batched
@pytest.mark.parametrize("scale", [1, 0.1, 0.5, 3])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_quantize_rounds_half_to_even_and_saturates(dtype, scale):
    for zero in (0, 3, np.iinfo(dtype).max):
        compare("QuantizeLinear", [VALUES, scalar(scale), scalar(zero, dtype)], opset=21)
    compare("QuantizeLinear", [VALUES, scalar(scale), scalar(3, np.uint8)], opset=10)


def test_quantize_without_zero_point_makes_uint8():
    compare("QuantizeLinear", [VALUES, scalar(0.3)], opset=13)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_axis(rng, axis, dtype):
    x = (rng.standard_normal((3, 4, 5)) * 50).astype(np.float32)
    n = x.shape[axis]
    scale, zero = (rng.random(n) + 0.1).astype(np.float32), rng.integers(0, 5, n).astype(dtype)
    compare("QuantizeLinear", [x, scale, zero], {"axis": axis}, opset=21)
    q = run_kernel("QuantizeLinear", [x, scale, zero], {"axis": axis}, opset=21)[0]
    compare("DequantizeLinear", [q, scale, zero], {"axis": axis}, opset=21)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("block_size", [2, 3, 4])
def test_blocked(rng, block_size, dtype):
    x = (rng.standard_normal((3, 8, 5)) * 50).astype(np.float32)
    blocks = -(-8 // block_size)
    scale, zero = (
        (rng.random((3, blocks, 5)) + 0.1).astype(np.float32),
        rng.integers(0, 5, (3, blocks, 5)).astype(dtype),
    )
    attributes = {"axis": 1, "block_size": block_size}
    compare("QuantizeLinear", [x, scale, zero], attributes, opset=21)
    q = run_kernel("QuantizeLinear", [x, scale, zero], attributes, opset=21)[0]
    compare("DequantizeLinear", [q, scale, zero], attributes, opset=21)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_dequantize(dtype):
    info = np.iinfo(dtype)
    q = np.array([info.min, info.max, 0, 1, 7, 100], dtype)
    for zero in (0, 5, info.max):
        compare("DequantizeLinear", [q, scalar(0.1), scalar(zero, dtype)], opset=21)
    compare("DequantizeLinear", [q, scalar(0.1)], opset=21)


def test_dequantize_int32_is_not_rounded_first():
    q = np.array([2**31 - 1, -(2**31), 2**24 + 1, 0], np.int32)
    compare("DequantizeLinear", [q, scalar(0.5)], opset=13)
    compare("DequantizeLinear", [q, np.array([0.5, 1, 2, 3], np.float32), np.zeros(4, np.int32)], {"axis": 0}, opset=13)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_microsoft_domain(rng, dtype):
    x = (rng.standard_normal((3, 4)) * 50).astype(np.float32)
    compare("QuantizeLinear", [x, scalar(0.3), scalar(5, dtype)], domain="com.microsoft")
    q = run_kernel("QuantizeLinear", [x, scalar(0.3), scalar(5, dtype)], domain="com.microsoft")[0]
    compare("DequantizeLinear", [q, scalar(0.3), scalar(5, dtype)], domain="com.microsoft")


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_half_precision_scales(rng, dtype):
    x = (rng.standard_normal((3, 4)) * 50).astype(np.float16)
    q = run_kernel("QuantizeLinear", [x, scalar(0.5, np.float16), scalar(5, dtype)], opset=21)[0]
    compare("DequantizeLinear", [q, scalar(0.5, np.float16), scalar(5, dtype)], opset=21)
    compare("QuantizeLinear", [x, scalar(0.5, np.float16), scalar(5, dtype)], opset=21)


@pytest.mark.parametrize(("name", "low", "high"), [("INT4", -8, 7), ("UINT4", 0, 15), ("INT2", -2, 1), ("UINT2", 0, 3)])
def test_narrow_integers(name, low, high):
    dtype = DType[name].numpy
    got = run_kernel("QuantizeLinear", [VALUES, scalar(1), np.array(1).astype(dtype)], opset=25)[0]
    assert got.dtype == dtype
    want = np.clip(np.rint(VALUES) + 1, low, high)
    assert got.astype(np.float32).tolist() == want.tolist()
    back = run_kernel("DequantizeLinear", [got, scalar(0.5), np.array(1).astype(dtype)], opset=25)[0]
    assert_same(back, ((want - 1) / 2).astype(np.float32))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("saturate", [0, 1])
def test_float8(dtype, saturate):
    zero = np.zeros((), dtype)
    x = VALUES[np.isfinite(VALUES)]
    got = run_kernel("QuantizeLinear", [x, scalar(2), zero], {"saturate": saturate}, opset=21)[0]
    limit = float(ml_dtypes.finfo(dtype).max)
    want = (np.clip(x / 2, -limit, limit) if saturate else x / 2).astype(dtype)
    assert_same(got.astype(np.float32), want.astype(np.float32), rtol=0)
    back = run_kernel("DequantizeLinear", [got, scalar(2), zero], opset=21)[0]
    assert_same(back, want.astype(np.float32) * 2, rtol=0)


@pytest.mark.parametrize("values", [[0, 2, -3, -2.5, 1.34, 0.5], [1, 2.1, 3], [-1, -2.1, -4], [0, 0], [1e-30], [5]])
def test_dynamic_quantize(values):
    compare("DynamicQuantizeLinear", [np.array(values, np.float32)], opset=11, n_outputs=3)


def test_dynamic_quantize_at_random(rng):
    for shape in ((7,), (3, 4, 5), (), (1000,)):
        x = np.asarray(rng.standard_normal(shape) * 3).astype(np.float32)
        compare("DynamicQuantizeLinear", [x], opset=11, n_outputs=3)


def test_a_scale_that_does_not_fit_is_refused():
    with pytest.raises(GraphError, match="axis 1"):
        run_kernel("QuantizeLinear", [np.zeros((2, 3), np.float32), np.ones(2, np.float32)], {"axis": 1})
