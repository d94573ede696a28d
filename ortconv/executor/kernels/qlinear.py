"""Operators on quantized tensors: exact integer sums, one rounding at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.kernels.cast import convert
from ortconv.executor.kernels.conv import EXACT_SUM, IntegerFilters, integer_filters
from ortconv.executor.kernels.fused_activation import leaky_relu, sigmoid
from ortconv.executor.kernels.matmul import centred, integer_product, integer_sums
from ortconv.executor.kernels.pool import average_pool
from ortconv.executor.kernels.precision import widen
from ortconv.executor.kernels.quantize import (
    dequantize_linear,
    dynamic_centred_codes,
    integer_range,
    quantize_linear,
    round_to_integers,
)
from ortconv.executor.kernels.windows import channels_first, channels_last, window
from ortconv.executor.registry import Function, kernel, prepare
from ortconv.executor.work import Work, with_record
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

_MS = "com.microsoft"


def _requantize(total: Array, factor: Array, zero_point: Array | None, dtype: np.dtype[Any]) -> Array:
    """Sums times `factor` plus the zero point: integers rounded half to even, or 8-bit floats."""
    y = np.multiply(total.astype(np.float32, copy=False), factor.astype(np.float32))
    y = np.asarray(y)
    zero = np.float32(0) if zero_point is None else zero_point.astype(np.float32)
    target = DType.of(dtype)
    return convert(y + zero, target) if integer_range(target) is None else round_to_integers(y, zero, target)


def _output_dtype(zero_point: Array | None) -> np.dtype[Any]:
    return np.dtype(np.uint8) if zero_point is None else zero_point.dtype


@kernel("QLinearConv")
@kernel("QLinearConv", domain=_MS)
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None,
    b: Array | None = None,
    *,
    group: int = 1,
    channels_last: int = 0,
    **geometry: Any,
) -> Array:
    run = _quantized_convolution(integer_filters(w, w_zero_point, group), channels_last, geometry)
    return np.asarray(run(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b))


@prepare("QLinearConv")
@prepare("QLinearConv", domain=_MS)
def prepare_qlinear_conv(
    operands: Sequence[Any], *, group: int = 1, channels_last: int = 0, **geometry: Any
) -> Function | None:
    """Centre the weights and lay them out once."""
    w, w_zero_point = operands[3], operands[5]
    if w is None or w_zero_point is None:
        return None
    return _quantized_convolution(integer_filters(w, w_zero_point, group), channels_last, geometry)


def _quantized_convolution(weights: IntegerFilters, is_channels_last: int, geometry: dict[str, Any]) -> Function:
    geometry = {k: v for k, v in geometry.items() if k != "kernel_shape"}

    def run(
        x: Array,
        x_scale: Array,
        x_zero_point: Array,
        w: Array,
        w_scale: Array,
        w_zero_point: Array | None,
        y_scale: Array,
        y_zero_point: Array | None,
        b: Array | None = None,
        **_: Any,
    ) -> Array:
        # Reordered while elements are bytes, so that the sums come channels last.
        x = channels_first(x if is_channels_last else channels_last(x))
        total = channels_last(
            weights.convolve(centred(x, x_zero_point), window(x.shape[2:], weights.kernel, **geometry))
        )
        if b is not None:
            total = _add_bias(total, b, weights.reach)
        factor = (x_scale * w_scale / y_scale).reshape(-1)
        y = _requantize(total, factor, y_zero_point, _output_dtype(y_zero_point))
        return y if is_channels_last else channels_first(y)

    return run


def _add_bias(total: Array, b: Array, reach: float) -> Array:
    """In float32 where every sum stays exact, else in int32."""
    if total.dtype == np.float32 and reach + float(np.abs(b.astype(np.float64)).max(initial=0)) > EXACT_SUM:
        total = total.astype(np.int32)
    total += b.astype(total.dtype)
    return total


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
    return integer_product(centred(a, zero_a), centred(b, zero_b))


def _prepared_sums(b: Array | None, b_zero_point: Array | None) -> Function | None:
    """`_sums` for constant weights; None where they are no matrix of bytes. float32 operands are codes less their zero point."""
    if b is None or b.ndim != 2 or b.dtype not in (np.uint8, np.int8):
        return None
    sums = integer_sums(b, None if b_zero_point is None else _per_column(b_zero_point, b))

    def run(a: Array, b: Array, a_zero_point: Array | None, zero_point: Array | None) -> Array:
        if (zero_point is None) != (b_zero_point is None):
            return _sums(a, b, a_zero_point, zero_point)
        return np.asarray(sums(a, a_zero_point))

    def record(work: Work, a: Array, b: Array, a_zero_point: Array | None, zero_point: Array | None) -> Any:
        return None if (zero_point is None) != (b_zero_point is None) else work.call(sums, a, a_zero_point)

    return with_record(run, record)


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
    return _requantize(total, np.asarray(factor), _per_row(y_zero_point, a), y_zero_point.dtype)


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
    factor = np.asarray(np.float32(alpha) * a_scale.reshape(()) * _per_column(b_scale, right))
    if y_scale is None:
        return np.asarray(total.astype(np.float32) * factor)
    return _requantize(total, factor / y_scale.reshape(()), y_zero_point, _output_dtype(y_zero_point))


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
    total = sums(a, b, a_zero_point, b_zero_point).astype(np.float32, copy=False)
    total *= _per_row(widen(a_scale), a) * _stacked_columns(widen(b_scale), b)
    if bias is not None:
        total += widen(bias)
    return np.asarray(total.astype(a_scale.dtype, copy=False))


@prepare("MatMulIntegerToFloat", domain=_MS)
def prepare_matmul_integer_to_float(operands: Sequence[Any]) -> Function | None:
    """Lay constant weights out once."""
    sums = _prepared_sums(operands[1], (*operands, None, None)[5])
    if sums is None:
        return None

    return with_record(partial(matmul_integer_to_float, sums=sums), partial(_record_scaled, sums))


def _record_scaled(
    sums: Function,
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
    if bias is not None:
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
    codes, scale, _ = dynamic_centred_codes(a)
    return np.asarray(matmul_integer_to_float(codes, b, scale, b_scale, None, b_zero_point, bias, sums=sums))


@prepare("DynamicQuantizeMatMul", domain=_MS)
def prepare_dynamic_quantize_matmul(operands: Sequence[Any]) -> Function | None:
    """Lay constant weights out once."""
    sums = _prepared_sums(operands[1], (*operands, None)[3])
    if sums is None:
        return None

    def record(work: Work, a: Array, b: Array, b_scale: Array, *others: Array | None) -> Array | None:
        if a.dtype != np.float32:
            return None
        codes, scale, _ = work.call(dynamic_centred_codes, a)
        return _record_scaled(sums, work, codes, b, scale, b_scale, None, *others)

    return with_record(partial(dynamic_quantize_matmul, sums=sums), record)


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
    codes = unpack_bits(b.reshape(N * blocks, -1), bits, block_size).reshape(N, blocks, block_size).astype(np.float32)
    if zero_points is None:
        codes -= np.float32(1 << (bits - 1))
    elif zero_points.dtype == np.uint8:
        codes -= unpack_bits(zero_points.reshape(N, -1), bits, blocks)[:, :, None].astype(np.float32)
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


@kernel("QLinearAdd", domain=_MS)
def qlinear_add(
    a: Array,
    a_scale: Array,
    a_zero_point: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    c_scale: Array,
    c_zero_point: Array | None = None,
) -> Array:
    """Two fused multiply-adds, b first, as ONNX Runtime: their rounding decides where the exact sum is half-way."""
    ratio_a, ratio_b = ((scale / c_scale).astype(np.float32).reshape(()) for scale in (a_scale, b_scale))
    zero_a, zero_b, zero_c = (
        np.float32(0) if zero is None else zero.astype(np.float32).reshape(())
        for zero in (a_zero_point, b_zero_point, c_zero_point)
    )
    offset = zero_c - (ratio_a * zero_a + ratio_b * zero_b)
    codes = np.arange(256, dtype=np.uint8).view(b.dtype)
    addend = (codes.astype(np.float64) * ratio_b + offset).astype(np.float32)
    y = np.multiply(a, ratio_a, dtype=np.float64) + addend[b.view(np.uint8)]
    return round_to_integers(np.asarray(y, np.float32), 0, DType.of(a.dtype))


@kernel("QLinearMul", domain=_MS)
def qlinear_mul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    c_scale: Array,
    c_zero_point: Array | None = None,
) -> Array:
    product = np.asarray(centred(a, a_zero_point) * centred(b, b_zero_point))
    return _requantize(product, np.asarray(a_scale * b_scale / c_scale), c_zero_point, a.dtype)


def _by_table(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None,
    function: Callable[[Array], Array] | None = None,
) -> Array:
    """An elementwise function of 8-bit values: computed once per code."""
    codes = np.arange(256, dtype=np.uint8).view(x.dtype)
    values = dequantize_linear(codes, x_scale.reshape(()), None if x_zero_point is None else x_zero_point.reshape(()))
    zero = np.zeros((), x.dtype) if y_zero_point is None else y_zero_point.reshape(())
    answers = quantize_linear(values if function is None else function(values), y_scale.reshape(()), zero)
    return np.asarray(answers[x.view(np.uint8)])


@kernel("QLinearSigmoid", domain=_MS)
def qlinear_sigmoid(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    return _by_table(x, x_scale, x_zero_point, y_scale, y_zero_point, sigmoid)


@kernel("QLinearLeakyRelu", domain=_MS)
def qlinear_leaky_relu(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    return _by_table(x, x_scale, x_zero_point, y_scale, y_zero_point, lambda v: leaky_relu(v, alpha))


@kernel("QLinearConcat", domain=_MS)
def qlinear_concat(y_scale: Array, y_zero_point: Array, *parts: Array, axis: int) -> Array:
    """`parts` are triples: tensor, scale, zero point."""
    triples = zip(parts[0::3], parts[1::3], parts[2::3])
    return np.concatenate([_by_table(x, s, z, y_scale, y_zero_point) for x, s, z in triples], axis=axis)


@kernel("QLinearWhere", domain=_MS)
def qlinear_where(
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    chosen = _by_table(x, x_scale, x_zero_point, z_scale, z_zero_point)
    return np.where(condition, chosen, _by_table(y, y_scale, y_zero_point, z_scale, z_zero_point))


@kernel("QLinearSoftmax", domain=_MS)
def qlinear_softmax(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int = -1,
    opset: int = 13,
) -> Array:
    values = x.astype(np.float32)
    shape = x.shape
    if opset < 13:
        axis = axis % x.ndim
        values = values.reshape(prod(shape[:axis]), -1)
        axis = 1
    values -= values.max(axis=axis, keepdims=True)
    values *= x_scale.reshape(())
    np.exp(values, out=values)
    values /= values.sum(axis=axis, keepdims=True)
    return np.asarray(quantize_linear(values.reshape(shape), y_scale.reshape(()), y_zero_point.reshape(())))


@kernel("QLinearAveragePool", domain=_MS)
def qlinear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    channels_last: int = 0,
    **attributes: Any,
) -> Array:
    values = centred(channels_first(x) if channels_last else x, x_zero_point) * np.float32(x_scale.reshape(()))
    zero = np.zeros((), x.dtype) if y_zero_point is None else y_zero_point.reshape(())
    y = quantize_linear(average_pool(values, **attributes), y_scale.reshape(()), zero)
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else np.asarray(y)


@kernel("QLinearGlobalAveragePool", domain=_MS)
def qlinear_global_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    channels_last: int = 0,
) -> Array:
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    size = prod(x.shape[a] for a in axes)
    zero = 0 if x_zero_point is None else int(x_zero_point.reshape(()))
    total = np.asarray(x.sum(axis=axes, dtype=np.int32, keepdims=True) - size * zero)
    return _requantize(total, np.asarray(x_scale / (y_scale * np.float32(size))).reshape(()), y_zero_point, x.dtype)
