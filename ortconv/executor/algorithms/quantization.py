"""Fast forms of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.algorithms.rounding import BYTE_LIMITS, spread, to_bytes
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def quantize(
    work: Work,
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    **_: int,
) -> Array | None:
    """float32 to bytes with one scale."""
    target = DType.of(y_zero_point.dtype) if y_zero_point is not None else DType(output_dtype or DType.UINT8)
    is_float32 = x.dtype == y_scale.dtype == np.float32
    if work is not AT_ONCE or not is_float32 or y_scale.size != 1 or target not in BYTE_LIMITS:
        return None
    if precision or block_size:
        return None
    origin = np.zeros(()) if y_zero_point is None else y_zero_point.reshape(())
    return to_bytes(x, y_scale.reshape(()), np.asarray(origin, np.float32), target)


def dequantize(
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
    if x_scale.dtype == object or (x.dtype == np.int32 and x_zero_point is not None and x_zero_point.any()):
        return None
    target = DType(output_dtype).numpy if output_dtype else x_scale.dtype
    y = work.like(x, np.float32)
    work.do(np.copyto, y, x, "unsafe")
    if x_zero_point is not None and x_zero_point.astype(np.float32).any():
        work.do(np.subtract, y, spread(x_zero_point, x, axis, block_size).astype(np.float32), y)
    work.do(np.multiply, y, spread(widen(x_scale), x, axis, block_size), y)
    return y if y.dtype == target else work.arranged(lambda y: y.astype(target), y)
