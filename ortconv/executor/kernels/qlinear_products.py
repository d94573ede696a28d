"""Products of quantized matrices: exact integer sums, scaled once at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import adder
from ortconv.executor.algorithms.gemm_exact import centered, integer_product, integer_sums
from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.algorithms.rounding import dynamic_centered
from ortconv.executor.kernels.qlinear import output_dtype, requantize
from ortconv.executor.kernels.quantize import dynamic_quantize_linear
from ortconv.executor.kernels.registry import kernel, prepare
from ortconv.executor.replay.work import Function, Recordable, Work
from ortconv.ir.tensor import Array

_MS = "com.microsoft"


def _product_scales(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    """Scales of a product: per row of a (last axis but one), per column of b."""
    return np.asarray(_per_row(a_scale, a) * _per_column(b_scale, b))


def _per_row(v: Array, a: Array) -> Array:
    return v[:, None] if v.ndim == 1 and v.size > 1 and a.ndim > 1 else v.reshape(()) if v.size == 1 else v


def _per_column(v: Array, b: Array) -> Array:
    return v.reshape(()) if v.size == 1 else v


def _stacked_columns(v: Array, b: Array) -> Array:
    """Per column, or (batch..., N) per column of each matrix."""
    return v[..., None, :] if 1 < v.ndim == b.ndim - 1 else _per_column(v, b)


def _sums(a: Array, b: Array, a_zero_point: Array | None, b_zero_point: Array | None) -> Array:
    """The exact sums of MatMulInteger."""
    zero_a = None if a_zero_point is None else _per_row(a_zero_point, a)
    zero_b = None if b_zero_point is None else _stacked_columns(b_zero_point, b)
    return integer_product(centered(a, zero_a), centered(b, zero_b))


def _prepared_sums(b: Array | None, b_zero_point: Array | None) -> Function | None:
    """`_sums` for constant weights; None where they are no matrix of bytes. float32 operands are centered values."""
    if b is None or b.ndim != 2 or b.dtype not in (np.uint8, np.int8):
        return None
    sums = integer_sums(b, None if b_zero_point is None else _per_column(b_zero_point, b))

    def run(a: Array, b: Array, a_zero_point: Array | None, zero_point: Array | None) -> Array:
        if (zero_point is None) != (b_zero_point is None):
            return _sums(a, b, a_zero_point, zero_point)
        return np.asarray(sums(a, a_zero_point))

    def record(work: Work, a: Array, b: Array, a_zero_point: Array | None, zero_point: Array | None) -> Any:
        return None if (zero_point is None) != (b_zero_point is None) else work.call(sums, a, a_zero_point)

    return Recordable(run, record)


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
    *,
    sums: Function = _sums,
) -> Array:
    total = sums(a, b, a_zero_point, b_zero_point)
    factor = _product_scales(a, b, widen(a_scale), widen(b_scale)) / _per_row(widen(y_scale), a)
    return requantize(total, np.asarray(factor), _per_row(y_zero_point, a), y_zero_point.dtype)


@prepare("QLinearMatMul")
def prepare_qlinear_matmul(operands: Sequence[Any]) -> Function | None:
    """Lay constant weights out once."""
    sums = _prepared_sums(operands[3], operands[5])
    return None if sums is None else partial(qlinear_matmul, sums=sums)


@kernel("QGemm", domain=_MS)
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
    sums: Function = _sums,
) -> Array:
    left, right = (a.T if transA else a), (b.T if transB else b)
    total = sums(left, right, a_zero_point.reshape(()), _per_column(b_zero_point, right))
    if c is not None:
        total = total.astype(np.int32, copy=False) + c
    factor = np.asarray(a_scale.dtype.type(alpha) * a_scale.reshape(()) * _per_column(b_scale, right))
    if y_scale is None:
        return np.asarray(total.astype(factor.dtype) * factor)
    return requantize(total, factor / y_scale.reshape(()), y_zero_point, output_dtype(y_zero_point))


@prepare("QGemm", domain=_MS)
def prepare_qgemm(operands: Sequence[Any], *, transB: int = 0, **attributes: Any) -> Function | None:  # noqa: N803
    """Lay constant weights out once."""
    b, zero_point = operands[3], operands[5]
    sums = None if b is None or zero_point is None else _prepared_sums(b.T if transB else b, zero_point)
    return None if sums is None else partial(qgemm, transB=transB, sums=sums, **attributes)


@kernel("MatMulIntegerToFloat", domain=_MS)
def matmul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    sums: Function = _sums,
) -> Array:
    total = sums(a, b, a_zero_point, b_zero_point).astype(compute_type(a_scale.dtype), copy=False)
    total *= _per_row(widen(a_scale), a) * _stacked_columns(widen(b_scale), b)
    if bias is not None:
        total += widen(bias)
    return np.asarray(total.astype(a_scale.dtype, copy=False))


@prepare("MatMulIntegerToFloat", domain=_MS)
def prepare_matmul_integer_to_float(operands: Sequence[Any]) -> Function | None:
    """Lay constant weights out once."""
    b, b_zero_point, bias = ((*operands, None, None, None)[i] for i in (1, 5, 6))
    sums = _prepared_sums(b, b_zero_point)
    if sums is None:
        return None
    return Recordable(partial(matmul_integer_to_float, sums=sums), partial(_record_scaled, sums, _adder(b, bias)))


def _adder(b: Array, bias: Array | None) -> Callable[[Work, Array], None] | None:
    """What adds a constant bias of one number per column."""
    if bias is None or bias.dtype != np.float32 or not 0 < bias.size == b.shape[-1] == bias.shape[-1]:
        return None
    return adder(bias.reshape(-1))


def _record_scaled(
    sums: Function,
    add_bias: Callable[[Work, Array], None] | None,
    work: Work,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array | None:
    """MatMulIntegerToFloat recorded; None but for float32, one scale of the input and weights of two dimensions."""
    floats = [x for x in (a_scale, b_scale, bias) if x is not None]
    if a_scale.size != 1 or b.ndim != 2 or b_scale.ndim > 1 or any(x.dtype != np.float32 for x in floats):
        return None
    total: Array = work.call(sums, a, b, a_zero_point, b_zero_point)
    if total.dtype != np.float32:
        integers, total = total, work.empty(total.shape)
        work.do(np.copyto, total, integers, "unsafe")
    factor = work.empty(b_scale.shape)
    work.do(np.multiply, b_scale, a_scale.reshape(()), factor)
    work.do(np.multiply, total, factor, total)
    if bias is not None and add_bias is not None and total.flags.c_contiguous:
        add_bias(work, total)
    elif bias is not None:
        work.do(np.add, total, bias, total)
    return total


@kernel("DynamicQuantizeMatMul", domain=_MS)
def dynamic_quantize_matmul(
    a: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    sums: Function = _sums,
) -> Array:
    if a.dtype == object:
        codes, scale, zero = dynamic_quantize_linear(a)
        return np.asarray(matmul_integer_to_float(codes, b, scale, b_scale, zero, b_zero_point, bias))
    codes, scale, _ = dynamic_centered(a)
    return np.asarray(matmul_integer_to_float(codes, b, scale, b_scale, None, b_zero_point, bias, sums=sums))


@prepare("DynamicQuantizeMatMul", domain=_MS)
def prepare_dynamic_quantize_matmul(operands: Sequence[Any]) -> Function | None:
    """Lay constant weights out once."""
    b, b_zero_point, bias = ((*operands, None, None)[i] for i in (1, 3, 4))
    sums = _prepared_sums(b, b_zero_point)
    if sums is None:
        return None
    add_bias = _adder(b, bias)

    def record(work: Work, a: Array, b: Array, b_scale: Array, *others: Array | None) -> Array | None:
        if a.dtype != np.float32:
            return None
        codes, scale, _ = work.call(dynamic_centered, a)
        return _record_scaled(sums, add_bias, work, codes, b, scale, b_scale, None, *others)

    return Recordable(partial(dynamic_quantize_matmul, sums=sums), record)


@kernel("MatMulNBits", domain=_MS)
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
    codes = (
        unpack_bits(b.reshape(N * blocks, -1), bits, block_size)
        .reshape(N, blocks, block_size)
        .astype(compute_type(a.dtype))
    )
    if zero_points is None:
        codes -= codes.dtype.type(1 << (bits - 1))
    elif zero_points.dtype == np.uint8:
        codes -= unpack_bits(zero_points.reshape(N, -1), bits, blocks)[:, :, None].astype(codes.dtype)
    else:
        codes -= widen(zero_points).reshape(N, blocks, 1)
    scale = widen(scales).reshape(N, blocks)
    if g_idx is None:
        weights = (codes * scale[:, :, None]).reshape(N, -1)[:, :K]
    else:
        weights = codes.reshape(N, -1)[:, :K] * scale[:, g_idx[:K]]
    y = np.matmul(widen(a), weights.T)
    if bias is not None:
        y += widen(bias)
    return np.asarray(y.astype(a.dtype, copy=False))


def unpack_bits(packed: Array, bits: int, count: int) -> Array:
    """Rows of little-endian packed unsigned codes as (rows, count) uint8."""
    flat = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little")
    codes = flat[:, : count * bits].reshape(len(packed), count, bits)
    return np.asarray(codes @ (1 << np.arange(bits, dtype=np.int64))).astype(np.uint8)
