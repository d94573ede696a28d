"""Products of quantized matrices: exact integer sums, scaled once at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms.gemm_exact import exact_sums, prepared_dynamic, prepared_to_float, stacked_columns
from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.kernels.qlinear import output_dtype, requantize
from ortconv.executor.kernels.quantize import dynamic_quantize_linear
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


def _per_row(v: Array, a: Array) -> Array:
    return v[:, None] if v.ndim == 1 and v.size > 1 and a.ndim > 1 else v.reshape(()) if v.size == 1 else v


def _per_column(v: Array) -> Array:
    return v.reshape(()) if v.size == 1 else v


@kernel("QLinearMatMul")
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    total = exact_sums(a, b, a_zero_point, b_zero_point)
    factor = np.asarray(_per_row(widen(a_scale), a) * _per_column(widen(b_scale)) / _per_row(widen(y_scale), a))
    return requantize(total, factor, _per_row(y_zero_point, a), y_zero_point.dtype)


@kernel("QGemm", domain=MICROSOFT)
def qgemm(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Array:
    left, right = (a.T if transA else a), (b.T if transB else b)
    total = exact_sums(left, right, a_zero_point.reshape(()), _per_column(b_zero_point))
    if c is not None:
        total = total.astype(np.int32, copy=False) + c
    factor = np.asarray(a_scale.dtype.type(alpha) * a_scale.reshape(()) * _per_column(b_scale))
    if y_scale is None:
        return np.asarray(total.astype(factor.dtype) * factor)
    return requantize(total, factor / y_scale.reshape(()), y_zero_point, output_dtype(y_zero_point))


@kernel("MatMulIntegerToFloat", domain=MICROSOFT, prepare=prepared_to_float)
def matmul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    total = exact_sums(a, b, a_zero_point, b_zero_point).astype(compute_type(a_scale.dtype), copy=False)
    y = total * (_per_row(widen(a_scale), a) * stacked_columns(widen(b_scale), b))
    y = y if bias is None else y + widen(bias)
    return np.asarray(y.astype(a_scale.dtype, copy=False))


@kernel("DynamicQuantizeMatMul", domain=MICROSOFT, prepare=prepared_dynamic)
def dynamic_quantize_matmul(
    a: Array, b: Array, b_scale: Array, b_zero_point: Array | None = None, bias: Array | None = None
) -> Array:
    quantized, scale, zero = dynamic_quantize_linear(a)
    return np.asarray(matmul_integer_to_float(quantized, b, scale, b_scale, zero, b_zero_point, bias))


@kernel("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Array:
    blocks = -(-K // block_size)
    centered = _without_zero_points(b, zero_points, N, blocks, bits, block_size, compute_type(a.dtype))
    scale = widen(scales).reshape(N, blocks)
    if g_idx is None:
        weights = (centered * scale[:, :, None]).reshape(N, -1)[:, :K]
    else:
        weights = centered.reshape(N, -1)[:, :K] * scale[:, g_idx[:K]]
    y = np.matmul(widen(a), weights.T)
    y = y if bias is None else y + widen(bias)
    return np.asarray(y.astype(a.dtype, copy=False))


def _without_zero_points(
    b: Array, zero_points: Array | None, n: int, blocks: int, bits: int, block_size: int, dtype: np.dtype[Any]
) -> Array:
    """Packed numbers minus their zero points, (n, blocks, block_size)."""
    numbers = unpack_bits(b.reshape(n * blocks, -1), bits, block_size).reshape(n, blocks, block_size).astype(dtype)
    if zero_points is None:
        return np.asarray(numbers - dtype.type(1 << (bits - 1)))
    if zero_points.dtype == np.uint8:
        numbers -= unpack_bits(zero_points.reshape(n, -1), bits, blocks)[:, :, None].astype(dtype)
        return numbers
    return np.asarray(numbers - widen(zero_points).reshape(n, blocks, 1))


def unpack_bits(packed: Array, bits: int, count: int) -> Array:
    """Rows of little-endian packed unsigned values as (rows, count) uint8."""
    flat = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little")
    codes = flat[:, : count * bits].reshape(len(packed), count, bits)
    return np.asarray(codes @ (1 << np.arange(bits, dtype=np.int64))).astype(np.uint8)
