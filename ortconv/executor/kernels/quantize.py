"""Quantization to and from integers and 8- or 4-bit floats."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.algorithms.rounding import INTEGER_RANGES, round_to_integers, spread
from ortconv.executor.kernels.cast import convert
from ortconv.executor.kernels.registry import kernel
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
