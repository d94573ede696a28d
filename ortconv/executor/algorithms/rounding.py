"""Rounding of floats to quantized values, with given scales or with scales that cover the numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import Work, recordable
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

INTEGER_RANGES = {
    DType.UINT2: (0, 3), DType.INT2: (-2, 1), DType.UINT4: (0, 15), DType.INT4: (-8, 7),
    DType.UINT8: (0, 255), DType.INT8: (-128, 127),
    DType.UINT16: (0, 65535), DType.INT16: (-32768, 32767), DType.INT32: (-(2**31), 2**31 - 1),
}  # fmt: skip


def integer_range(dtype: DType) -> tuple[int, int] | None:
    """Lowest and highest quantized value of an integer type; None for a float type."""
    return INTEGER_RANGES.get(dtype)


def spread(parameter: Array, x: Array, axis: int, block_size: int = 0) -> Array:
    """A scale or zero point (one, per axis, or per block) shaped to broadcast against x. GraphError if it cannot."""
    if parameter.size == 1 and not block_size:
        return parameter.reshape(())
    axis = axis % x.ndim
    if block_size:
        return np.repeat(parameter, min(block_size, x.shape[axis]), axis=axis)[
            (slice(None),) * axis + (slice(0, x.shape[axis]),)
        ]
    if parameter.ndim != 1 or parameter.size != x.shape[axis]:
        raise GraphError(
            f"scale or zero point {list(parameter.shape)} does not go with axis {axis} of shape {list(x.shape)}"
        )
    return parameter.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def round_to_integers(y: Array, zero_point: Any, dtype: DType) -> Array:
    """Round float32 or float64, which may be overwritten: half to even, plus the zero point, saturated."""
    low, high = INTEGER_RANGES[dtype]
    np.rint(y, out=y)
    if dtype is DType.INT32 and y.dtype != object:
        y = y.astype(np.float64)
    y += zero_point
    np.clip(y, y.dtype.type(low), y.dtype.type(high), out=y)
    if dtype.bits < 8:
        return y.astype(np.int8).astype(dtype.numpy)
    return y.astype(dtype.numpy)


def quantize_centered(x: Array, scale: Array, low: Array, high: Array, out: Array) -> None:
    """QuantizeLinear of float32 to centered values, limited to [low, high]. NaN becomes the lowest."""
    np.divide(x, scale, out)
    np.rint(out, out)
    if np.isnan(out.min()):
        np.copyto(out, low, where=np.isnan(out))
    clip_to(out, low, high, out)


def _dynamic_range(low: float, high: float) -> tuple[float, int, bool]:
    """The scale and zero point for float32 between two numbers, and True if quotients by the scale are finite.

    Rounding doubles after each step gives the same as float32 arithmetic, and is faster for single numbers.
    """
    scale = _rounded(_rounded(high - low) / 255) if high > low else 1.0
    if not (scale > 0 and isfinite(low) and isfinite(high)):
        return scale, 255 if scale == 0 and low < 0 else 0, False
    return scale, min(max(round(_rounded(-low / scale)), 0), 255), True


def _rounded(number: float) -> float:
    return float(np.float32(number))


def _write_extremes(x: Array, low: Array, high: Array) -> None:
    """Write the lowest and the highest element, or zero."""
    axis = 0 if x.ndim == 1 else None  # None takes longer
    _MINIMUM(x, axis, None, low, False, 0)
    _MAXIMUM(x, axis, None, high, False, 0)


_MINIMUM: Callable[..., Any] = np.minimum.reduce
_MAXIMUM: Callable[..., Any] = np.maximum.reduce


_ZERO, _LARGEST = f32(0), f32(255)


def dynamic_quantization(x: Array) -> tuple[Array, np.float32, np.uint8]:
    """x as uint8 with the scale and zero point that cover its range and zero."""
    low, high = np.empty((), np.float32), np.empty((), np.float32)
    _write_extremes(x, low, high)
    scale, zero, _ = _dynamic_range(float(low), float(high))
    y = np.asarray(x / np.float32(scale))
    np.rint(y, out=y)
    np.add(y, np.float32(zero), out=y)
    return y.clip(_ZERO, _LARGEST, out=y).astype(np.uint8), np.float32(scale), np.uint8(zero)


@recordable
def dynamic_centered(work: Work, x: Array) -> tuple[Array, Array, Array]:
    """DynamicQuantizeLinear with centered values, as float32."""
    y, scale, zero = work.like(x), work.empty((), np.float32), work.empty((), np.uint8)
    low, high, makes_numbers = work.empty(()), work.empty(()), work.empty((), np.bool_)
    elements = x.reshape(-1) if x.flags.c_contiguous else x
    work.do(_write_parameters, elements, scale, zero, low, high, makes_numbers)
    work.do(np.divide, x, scale, y)
    work.do(np.rint, y, y)
    work.do(clip_to, y, low, high, y)
    work.do(_write_again, x, y, zero, makes_numbers)
    return y, scale, zero


def _write_parameters(x: Array, scale: Array, zero: Array, low: Array, high: Array, makes_numbers: Array) -> None:
    """Write the parameters for x, and the lowest and the highest of the centered values."""
    _write_extremes(x, low, high)
    scale[...], origin, makes_numbers[...] = _dynamic_range(float(low), float(high))
    zero[...], low[...], high[...] = origin, -origin, 255 - origin


def _write_again(x: Array, y: Array, zero: Array, makes_numbers: Array) -> None:
    """Write the quantized values again, by the slower form, if a quotient by the scale is not finite."""
    if not makes_numbers:
        np.subtract(dynamic_quantization(x)[0], np.float32(zero), y)
