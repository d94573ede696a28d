"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import rank, same_quantization
from ortconv.nnapi.operations.table import Call, Dims, operation

FLAGS = "[align_corners:b=0 @4] [half_pixel:b=0 @4]"
CHECKS = (rank("x", 4), same_quantization("x", "out"))


def scales_need_level_3(c: Call) -> Iterator[str | FeatureLevel]:
    if c.get("scale_w") is not None:
        yield FeatureLevel.LEVEL_3


def resized_dims(c: Call) -> Dims:
    if c.align_corners and c.half_pixel:
        raise op_failed("corners cannot be aligned with half-pixel centres")
    batch, height, width, depth = c.x.dims
    if c.get("width") is None:
        rows, columns = int(height * c.scale_h), int(width * c.scale_w)
    else:
        rows, columns = c.height, c.width
    if min(rows, columns) <= 0:
        raise op_failed(f"the output size {columns} x {rows} is not positive")
    return batch, rows, columns, depth


def positions(c: Call, size: int, out: int) -> Array:
    """Where each output cell lies among the input's, as float32."""
    by = np.float32((size - 1) / (out - 1) if c.align_corners and out > 1 else size / out)
    at = np.arange(out, dtype=np.float32)
    return (at + np.float32(0.5)) * by if c.half_pixel else at * by


@operation(
    "RESIZE_BILINEAR",
    f"x:T width:i height:i [nchw:b=0 @3] {FLAGS}",
    f"x:T scale_w:f scale_h:f [nchw:b=0 @3] {FLAGS}",
    types="F H@3 Q@3 S@4", infer=resized_dims, checks=(*CHECKS, scales_need_level_3), nchw=("x", "out"), zero_sized=True,
)  # fmt: skip
def resize_bilinear(c: Call) -> Array:
    """Quantized elements are weighted as they are, and rounded."""
    y = c.x.array.astype(np.float32)
    for axis in (1, 2):
        size = y.shape[axis]
        at = positions(c, size, c.out.dims[axis]) - np.float32(0.5 if c.half_pixel else 0)
        low = np.maximum(np.floor(at), 0).astype(np.int64)
        high = np.minimum(np.ceil(at), size - 1).astype(np.int64)
        weight = (at - low).reshape([-1 if one == axis else 1 for one in range(4)])
        y = np.take(y, np.minimum(low, size - 1), axis) * (1 - weight) + np.take(y, np.maximum(high, 0), axis) * weight
    return np.floor(y + np.float32(0.5)) if c.out.is_quantized else y


@operation(
    "RESIZE_NEAREST_NEIGHBOR",
    f"x:T width:i height:i nchw:b {FLAGS}",
    f"x:T scale_w:f scale_h:f nchw:b {FLAGS}",
    level=3, types="F H Q S@4", infer=resized_dims, checks=CHECKS, nchw=("x", "out"), zero_sized=True,
)  # fmt: skip
def resize_nearest_neighbor(c: Call) -> Array:
    y = c.x.array
    for axis in (1, 2):
        at = positions(c, c.x.dims[axis], c.out.dims[axis])
        index = np.floor(at + np.float32(0.5)) if c.align_corners else np.floor(at)
        y = np.take(y, np.minimum(index.astype(np.int64), c.x.dims[axis] - 1), axis)
    return y
