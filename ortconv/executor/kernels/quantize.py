"""Quantization to and from integers and 8- or 4-bit floats."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.algorithms.rounding import (
    BYTE_LIMITS,
    INTEGER_RANGES,
    dynamic_quantization,
    round_to_integers,
    spread,
    to_bytes,
)
from ortconv.executor.kernels.cast import convert
from ortconv.executor.kernels.registry import kernel
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


@kernel("QuantizeLinear")
@kernel("QuantizeLinear", domain="com.microsoft")
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
    if (
        x.dtype == y_scale.dtype == np.float32
        and y_scale.size == 1
        and target in BYTE_LIMITS
        and not (precision or block_size)
    ):
        origin = np.zeros(()) if y_zero_point is None else y_zero_point.reshape(())
        return to_bytes(x, y_scale.reshape(()), np.asarray(origin, np.float32), target)
    scale = spread(widen(y_scale), x, axis, block_size)
    compute = compute_type(x.dtype)
    y = np.asarray(np.divide(x.astype(compute, copy=False), scale.astype(compute)))
    if precision:
        y = y.astype(DType(precision).numpy).astype(compute)
    if target not in INTEGER_RANGES:
        # Nobody adds a zero point to floats of 8 bits, where it stands for the type alone.
        if target.bits < 8 and y_zero_point is not None and y_zero_point.astype(compute).any():
            y += spread(y_zero_point, x, axis, block_size).astype(compute)
        return convert(y, target, saturate=bool(saturate))
    np.copyto(y, -np.inf, where=y != y)
    zero = 0 if y_zero_point is None else spread(y_zero_point, x, axis, block_size).astype(compute)
    return round_to_integers(y, zero, target)


def _dequantize(
    work: Work,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array | None:
    """In memory of its own."""
    if x_scale.dtype == object:
        return None
    target = DType(output_dtype).numpy if output_dtype else x_scale.dtype
    scale = spread(widen(x_scale), x, axis, block_size)
    if x.dtype == np.int32 and x_zero_point is not None and x_zero_point.any():
        zero = spread(x_zero_point, x, axis, block_size)
        y = work.arranged(lambda x: (x.astype(np.int64) - zero).astype(np.float32), x)
    else:
        y = work.like(x, np.float32)
        work.do(np.copyto, y, x, "unsafe")
        if x_zero_point is not None and x_zero_point.astype(np.float32).any():
            work.do(np.subtract, y, spread(x_zero_point, x, axis, block_size).astype(np.float32), y)
    work.do(np.multiply, y, scale, y)
    return y if y.dtype == target else work.arranged(lambda y: y.astype(target), y)


@kernel("DequantizeLinear", fast=_dequantize)
@kernel("DequantizeLinear", domain="com.microsoft", fast=_dequantize)
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    wide = np.float32 if DType.of(x.dtype).is_float else np.int64
    zero = 0 if x_zero_point is None else spread(x_zero_point.astype(wide), x, axis, block_size)
    y = (x.astype(wide) - zero).astype(compute_type(x_scale.dtype)) * spread(widen(x_scale), x, axis, block_size)
    return np.asarray(y).astype(DType(output_dtype).numpy if output_dtype else x_scale.dtype, copy=False)


@kernel("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """The range of x and zero in 255 steps."""
    if x.dtype != object:
        y, scale, zero = dynamic_quantization(x)
        return y, np.asarray(scale), np.asarray(zero)
    low, high = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
    step = np.asarray((high - low) / 255 if high > low else high * 0 + 1, object)
    origin = np.asarray(np.clip(np.rint(-low / step), 0, 255)).astype(np.uint8)
    return quantize_linear(x, step, origin), step, origin
