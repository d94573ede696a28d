"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ortconv.executor.algorithms.row_tiles import rows_per_tile
from ortconv.executor.algorithms.steps import spans
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import KEPT, rank
from ortconv.nnapi.operations.shapes import taken
from ortconv.nnapi.operations.table import Dims, Findings, OperationCall, operation

SIZES = ("width:i height:i", "width:f height:f")
CENTRES = "[corners:b=0 @4] [centers:b=0 @4]"


def by_scale(c: OperationCall) -> Findings:
    """Scales instead of sizes need level 3."""
    if c.width.type is not Operand.INT32:
        yield FeatureLevel.LEVEL_3


def resized_dims(c: OperationCall) -> Dims:
    batch, height, width, depth = c.x.dims
    rows, columns = _size(height, c.height), _size(width, c.width)
    if rows <= 0 or columns <= 0:
        raise op_failed(f"the output would have {rows} x {columns} pixels")
    if c.corners and c.centers:
        raise op_failed("corners and centers of pixels cannot both be aligned")
    return batch, rows, columns, depth


def _size(size: int, wanted: int | float) -> int:
    """The output size; a float is a scale."""
    if isinstance(wanted, int):
        return wanted
    if not math.isfinite(wanted):
        raise op_failed(f"{wanted} is not a scale")
    return math.floor(np.float32(size) * np.float32(wanted))


def positions(c: OperationCall, axis: int) -> Array:
    """The positions of the output's pixels along an axis of the input; without `centers`, left edges are aligned."""
    size, count = c.x.dims[axis], c.out.dims[axis]
    step = np.float32(size - 1) / np.float32(count - 1) if c.corners and count > 1 else np.float32(size / count)
    places = np.arange(count, dtype=np.float32)
    return (places + np.float32(0.5)) * step if c.centers else places * step


def neighbors(c: OperationCall, axis: int) -> tuple[Array, Array, Array]:
    """Lower and upper neighbor of each pixel, and the weight of the upper one."""
    at = positions(c, axis) - np.float32(0.5) if c.centers else positions(c, axis)
    low = np.maximum(np.floor(at), np.float32(0))
    lower = np.minimum(low.astype(np.int64), c.x.dims[axis] - 1)
    return lower, np.minimum(lower + 1, c.x.dims[axis] - 1), np.maximum(at - low, np.float32(0))


resizing = partial(
    operation, infer=resized_dims, checks=(rank("x", 4),), quantization=(KEPT,), nchw=("x", "out"),
    zero_sized=True, recorded=("x",),
)  # fmt: skip


@resizing(
    "RESIZE_BILINEAR", *(f"x:T {sizes} [nchw:b=0 @3] {CENTRES}" for sizes in SIZES), types="F H@3 Q@3 S@4",
    checks=(rank("x", 4), by_scale),
)  # fmt: skip
def resize_bilinear(c: OperationCall) -> Array:
    """Computed a few rows at a time, so that intermediate results stay in the cache."""
    rows, columns = neighbors(c, 1), neighbors(c, 2)
    y = c.work.empty(c.out.dims)
    batch, height, width, depth = c.out.dims
    in_rows = y.reshape(batch, height, width * depth)
    for part in spans(height, rows_per_tile(height, 4 * y.nbytes // height)):
        c.work.do(_blend, c.x.array, tuple(one[part] for one in rows), columns, in_rows[:, part])
    if c.x.is_quantized:
        c.work.do(np.add, y, np.float32(0.5), y)
        c.work.do(np.floor, y, y)
    return y


def _blend(x: Array, rows: tuple[Array, ...], columns: tuple[Array, ...], out: Array) -> None:
    """Write rows to `out`, [batch, rows, width * depth]: numpy multiplies long rows faster than pixels of few channels."""
    (top, bottom, down), (left, right, across) = rows, columns
    down, across = down[:, None, None], np.repeat(across, x.shape[3])
    upper, lower = x[:, top] * (1 - down), x[:, bottom] * down
    np.multiply(upper[:, :, left].reshape(out.shape), 1 - across, out=out)
    for part, places, share in ((lower, left, 1 - across), (upper, right, across), (lower, right, across)):
        out += part[:, :, places].reshape(out.shape) * share


@resizing("RESIZE_NEAREST_NEIGHBOR", *(f"x:T {sizes} nchw:b {CENTRES}" for sizes in SIZES), level=3, types="F H Q S@4")
def resize_nearest_neighbor(c: OperationCall) -> Array:
    rows, columns = nearest(c, 1), nearest(c, 2)
    return taken(c.work, taken(c.work, c.x.array, rows, 1), columns, 2)


def nearest(c: OperationCall, axis: int) -> Array:
    at = positions(c, axis)
    pixel = np.floor(at + np.float32(0.5)) if c.corners else np.floor(at)
    return np.minimum(pixel.astype(np.int64), c.x.dims[axis] - 1)
