"""Rounding of floats to quantized values, with given scales or with scales that cover the numbers."""

from __future__ import annotations

import math
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
"""Lowest and highest quantized value of the integer types."""


def spread(parameter: Array, x: Array, axis: int, block_size: int = 0) -> Array:
    """A scale or zero point (one, per axis, or per block) shaped to broadcast against x. GraphError if it cannot."""
    if parameter.size == 1 and not block_size:
        return parameter.reshape(())
    axis = axis % x.ndim
    if block_size:
        return parameter.take(np.arange(x.shape[axis]) // block_size, axis)
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


def round_away(x: float) -> int:
    """The nearest integer; halves away from zero."""
    return math.floor(x + 0.5) if x >= 0 else math.ceil(x - 0.5)


def quantize_centered(x: Array, scale: Array, low: Array, high: Array, out: Array) -> None:
    """QuantizeLinear of float32 to centered values, limited to [low, high]. NaN becomes the lowest."""
    np.divide(x, scale, out)
    np.rint(out, out)
    if np.isnan(out.min(initial=0)):
        np.copyto(out, low, where=np.isnan(out))
    clip_to(out, low, high, out)


@recordable
def dynamic_centered(work: Work, x: Array) -> tuple[Array, Array, Array]:
    """DynamicQuantizeLinear with centered values, as float32."""
    y, scale, zero = work.like(x), work.empty((), np.float32), work.empty((), np.uint8)
    low, high = work.empty(()), work.empty(())
    elements = x.reshape(-1) if x.flags.c_contiguous else x
    work.do(_write_parameters, elements, scale, zero, low, high)
    work.do(quantize_centered, x, scale, low, high, y)
    return y, scale, zero


def _write_parameters(x: Array, scale: Array, zero: Array, low: Array, high: Array) -> None:
    """Write the scale and zero point that cover the range of x and zero, and the lowest and the highest centered value."""
    axis = 0 if x.ndim == 1 else None  # None takes longer
    np.minimum.reduce(x, axis, out=low, initial=0)
    np.maximum.reduce(x, axis, out=high, initial=0)
    scale[...] = (high - low) / _STEPS if high > low else 1
    origin = np.rint(-low / scale).clip(0, _STEPS)
    zero[...] = origin = origin if origin == origin else _ZERO
    low[...], high[...] = -origin, _STEPS - origin


_ZERO, _STEPS = f32(0), f32(255)
