"""Quantization to integers and small floats, and operators on quantized tensors: exact integer sums, one rounding at the end."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.algorithms.rounding import INTEGER_RANGES, round_to_integers, spread
from ortconv.executor.algorithms.sliding_window import channels_first, to_last
from ortconv.executor.kernels.activation import FORMULAS
from ortconv.executor.kernels.cast import convert
from ortconv.executor.kernels.conv import conv_integer
from ortconv.executor.kernels.pool import average_pool
from ortconv.executor.kernels.registry import Function, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


@kernel("QuantizeLinear")
@kernel("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    target = DType.of(y_zero_point.dtype) if y_zero_point is not None else DType(output_dtype or DType.UINT8)
    scale = spread(widen(y_scale), x, axis, block_size)
    compute = compute_type(x.dtype)
    y = np.asarray(np.divide(x.astype(compute, copy=False), scale.astype(compute)))
    if precision:
        y = y.astype(DType(precision).numpy).astype(compute)
    if target not in INTEGER_RANGES:
        # The zero point of 8-bit floats only states the type; runtimes do not add it.
        if target.bits < 8 and y_zero_point is not None and y_zero_point.astype(compute).any():
            y += spread(y_zero_point, x, axis, block_size).astype(compute)
        return convert(y, target, saturate=bool(saturate))
    np.copyto(y, -np.inf, where=y != y)
    zero = 0 if y_zero_point is None else spread(y_zero_point, x, axis, block_size).astype(compute)
    return round_to_integers(y, zero, target)


@kernel("DequantizeLinear")
@kernel("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(
    x: Array, x_scale: Array, x_zero: Array | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Array:
    is_exact = x.dtype == np.int32 or (x_scale.dtype == object and not DType.of(x.dtype).is_float)
    wide = np.int64 if is_exact else np.float32  # either holds all differences
    zero = 0 if x_zero is None else spread(x_zero.astype(wide), x, axis, block_size)
    y = (x.astype(wide) - zero).astype(compute_type(x_scale.dtype), copy=False) * spread(
        widen(x_scale), x, axis, block_size
    )
    return np.asarray(y).astype(DType(output_dtype).numpy if output_dtype else x_scale.dtype, copy=False)


@kernel("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """The range of x and zero in 255 steps."""
    low, high = np.asarray(x.min(initial=0)), np.asarray(x.max(initial=0))
    scale = np.asarray((high - low) / 255 if high > low else high * 0 + 1, x.dtype)
    zero = np.clip(np.rint(np.asarray(-low / scale)), 0, 255)
    origin = np.where(zero == zero, zero, 0).astype(np.uint8)
    return quantize_linear(x, scale, origin), scale, origin


def requantize(total: Array, factor: Array, zero_point: Array | None) -> Array:
    """Sums times `factor` plus the zero point: integers rounded half to even, or 8-bit floats. uint8 without a zero point."""
    compute = compute_type(factor.dtype)
    y = np.asarray(np.multiply(total.astype(compute, copy=False), factor.astype(compute)))
    given = np.uint8(0) if zero_point is None else zero_point
    zero, target = given.astype(compute), DType.of(given.dtype)
    return round_to_integers(y, zero, target) if target in INTEGER_RANGES else convert(y + zero, target)


@kernel("QLinearConv")
@kernel("QLinearConv", domain=MICROSOFT)
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None,
    b: Array | None = None,
    *,
    channels_last: int = 0,
    **geometry: Any,
) -> Array:
    per_channel = (-1, *(1,) * (x.ndim - 2))
    total = conv_integer(channels_first(x) if channels_last else x, w, x_zero, w_zero, **geometry)
    total = total if b is None else total + b.reshape(per_channel)
    factor = np.asarray(x_scale * w_scale / y_scale).reshape(per_channel)
    y = requantize(total, factor, y_zero)
    return to_last(y) if channels_last else y


@kernel("QLinearAdd", domain=MICROSOFT)
def qlinear_add(
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero: Array | None,
    c_scale: Array,
    c_zero: Array | None = None,
) -> Array:
    """Two fused multiply-adds, b first, as in ONNX Runtime: their rounding decides ties of the exact sum."""
    if c_scale.dtype == object:
        values = [dequantize_linear(x, s, z) for x, s, z in ((a, a_scale, a_zero), (b, b_scale, b_zero))]
        return np.asarray(quantize_linear(np.add(*values), c_scale, _zero_of(c_zero, a.dtype)))
    ratio_a, ratio_b = ((scale / c_scale).astype(np.float32).reshape(()) for scale in (a_scale, b_scale))
    zero_a, zero_b, zero_c = (_zero_of(zero, a.dtype).astype(np.float32) for zero in (a_zero, b_zero, c_zero))
    offset = zero_c - (ratio_a * zero_a + ratio_b * zero_b)
    codes = np.arange(256, dtype=np.uint8).view(b.dtype)
    addend = (codes.astype(np.float64) * ratio_b + offset).astype(np.float32)
    y = np.multiply(a, ratio_a, dtype=np.float64) + addend[b.view(np.uint8)]
    return round_to_integers(np.asarray(y, np.float32), 0, DType.of(a.dtype))


@kernel("QLinearMul", domain=MICROSOFT)
def qlinear_mul(
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero: Array | None,
    c_scale: Array,
    c_zero: Array | None = None,
) -> Array:
    product = np.asarray(centered(a, a_zero) * centered(b, b_zero))
    compute = compute_type(c_scale.dtype)
    scaled = product.astype(compute) * np.asarray(a_scale * b_scale / c_scale).astype(compute).reshape(())
    return _round_shifted(np.asarray(scaled), c_zero, a.dtype)


def _round_shifted(y: Array, zero_point: Array | None, dtype: np.dtype[Any]) -> Array:
    """Add the zero point, then round: with an odd zero point, ties differ by one step from QuantizeLinear."""
    y += _zero_of(zero_point, dtype).astype(y.dtype)
    return round_to_integers(y, 0, DType.of(dtype))


def _zero_of(zero_point: Array | None, dtype: np.dtype[Any]) -> Array:
    return np.zeros((), dtype) if zero_point is None else zero_point.reshape(())


def _by_table(function: Function) -> Function:
    """An elementwise function of 8-bit values, computed once for each of the 256 values."""

    def run(
        x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None, **attributes: Any
    ) -> Array:
        codes = np.arange(256, dtype=np.uint8).view(x.dtype)
        values = dequantize_linear(codes, x_scale.reshape(()), _zero_of(x_zero, x.dtype))
        answers = quantize_linear(function(values, **attributes), y_scale.reshape(()), _zero_of(y_zero, x.dtype))
        return np.asarray(answers[x.view(np.uint8)])

    return run


table({f"QLinear{op}": _by_table(FORMULAS[op]) for op in ("Sigmoid", "LeakyRelu")}, domain=MICROSOFT)

_rescaled = _by_table(lambda values: values)


@kernel("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(y_scale: Array, y_zero: Array, *parts: Array, axis: int) -> Array:
    """`parts` are triples: tensor, scale, zero point."""
    triples = zip(parts[0::3], parts[1::3], parts[2::3])
    return np.concatenate([_rescaled(*triple, y_scale, y_zero) for triple in triples], axis=axis)


@kernel("QLinearWhere", domain=MICROSOFT)
def qlinear_where(condition: Array, *operands: Array) -> Any:
    """Two triples of tensor, scale and zero point; then scale and zero point of the result."""
    return np.where(condition, *(_rescaled(*triple, *operands[6:]) for triple in (operands[:3], operands[3:6])))


@kernel("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array, *, axis: int = -1, opset: int = 13
) -> Array:
    """Exponentials are looked up in a table, and 1 / y_scale is rounded down, as in ONNX Runtime."""
    moved = np.moveaxis(x, axis, -1) if opset >= 13 else x.reshape(prod(x.shape[: axis % x.ndim]), -1)
    if y_scale.dtype == object:
        powers = np.exp(dequantize_linear(moved, x_scale, x_zero))
        shares = np.asarray(powers / powers.sum(axis=-1, keepdims=True) * np.floor(1 / y_scale.reshape(())))
    else:
        steps = moved.astype(np.int32)
        steps = steps - steps.max(axis=-1, keepdims=True) + 255
        exponentials = _exponentials(x_scale.reshape(()), moved.shape[-1])[steps]
        total = np.add.accumulate(exponentials, axis=-1)[..., -1:]
        shares = exponentials * np.floor(np.float32(1) / y_scale.reshape(())) / total
    y = round_to_integers(shares, y_zero.reshape(()).astype(shares.dtype), DType.of(x.dtype))
    return y.reshape(x.shape) if opset < 13 else np.ascontiguousarray(np.moveaxis(y, -1, axis))


def _exponentials(scale: Array, length: int) -> Array:
    """exp((i - 255) * scale) for i from 0 to 255, multiplied by a factor such that sums of `length` of them still fit float32."""
    reach = max(0.0, np.log(np.finfo(np.float32).max / np.float32(length)) - 5)
    steps = np.arange(256.0) - 255 + reach / np.float64(scale)
    return np.asarray(np.exp(steps * np.float64(scale)), np.float32)


@kernel("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    channels_last: int = 0,
    **attributes: Any,
) -> Array:
    exact = centered(channels_first(x) if channels_last else x, x_zero).astype(compute_type(x_scale.dtype))
    averages = np.asarray(average_pool(exact * x_scale.reshape(()), **attributes) / y_scale.reshape(()))
    y = _round_shifted(averages, y_zero, x.dtype)
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else np.asarray(y)


@kernel("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    channels_last: int = 0,
) -> Array:
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    size = prod(x.shape[a] for a in axes)
    zero = 0 if x_zero is None else int(x_zero.reshape(()))
    total = np.asarray(x.sum(axis=axes, dtype=np.int32, keepdims=True) - size * zero)
    factor = np.asarray(x_scale / (y_scale * x_scale.dtype.type(size))).reshape(())
    return requantize(total, factor, _zero_of(y_zero, x.dtype))
