"""Regions of images resampled to one size: ROI_ALIGN, ROI_POOLING."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from ortconv.executor.algorithms.rounding import round_away
from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.arithmetic import requantize, round_half_away
from ortconv.nnapi.operations.boxes import require_indices, require_ordered
from ortconv.nnapi.operations.checks import KEPT, box_quantization, rank
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

REGIONS = "x:T roi:roi batches:I height:i width:i ratio_h:f ratio_w:f"
STEP = np.float32(1) / np.float32(255)  # of integer weights


def regions_dims(c: OperationCall) -> Dims:
    count = c.roi.dims[0]
    if c.roi.dims[1:] != (4,) or c.batches.dims != (count,):
        raise op_failed(f"regions {list(c.roi.dims)} and batches {list(c.batches.dims)} must be [n, 4] and [n]")
    if c.height <= 0 or c.width <= 0 or c.ratio_h <= 0 or c.ratio_w <= 0:
        raise op_failed(f"size {c.height} x {c.width} and ratios {c.ratio_h:g}, {c.ratio_w:g} must be positive")
    return count, c.height, c.width, c.x.dims[3]


def regions(c: OperationCall) -> Array:
    """The regions in pixels of the input. Raises OP_FAILED if one is not inside the image."""
    boxes = c.roi.real
    boxes = boxes * (1 / np.array([c.ratio_w, c.ratio_h] * 2, np.float32)).astype(boxes.dtype)
    require_indices(c.batches.array, c.x.dims[0])
    require_ordered(boxes)
    height, width = c.x.dims[1:3]
    if not ((boxes >= 0) & (boxes <= [width, height] * 2)).all():
        raise op_failed(f"a region is not within an image of {height} x {width} pixels")
    return boxes


def align_dims(c: OperationCall) -> Dims:
    if c.samples_h < 0 or c.samples_w < 0:
        raise op_failed(f"numbers of samples {c.samples_h} and {c.samples_w} are negative")
    return regions_dims(c)


@operation(
    "ROI_ALIGN", f"{REGIONS} samples_h:i samples_w:i nchw:b", level=3, types="F H Q S@4", infer=align_dims,
    checks=(rank("x", 4), rank("roi", 2)), quantization=(box_quantization("roi"),), nchw=("x", "out"), zero_sized=True,
    native_half=True,
)  # fmt: skip
def roi_align(c: OperationCall) -> Array:
    """The mean of bilinear samples in each cell of a grid over the region, in the precision of the input.

    For quantized inputs, the weights are integers that add up to about 255.
    """
    exact = c.x.is_quantized
    x = c.x.centered if exact else c.x.array
    y = np.zeros(c.out.dims, c.out.type.dtype)
    for index, (batch, (x1, y1, x2, y2)) in enumerate(zip(c.batches.array, regions(c))):
        rows, down = samples(y1, y2, c.height, c.samples_h, c.x.dims[1])
        columns, across = samples(x1, x2, c.width, c.samples_w, c.x.dims[2])
        points = sum(
            x[batch][np.ix_(rows[i], columns[j])] * weights(down[i], across[j], exact) for i in (0, 1) for j in (0, 1)
        )
        high, wide = rows.shape[1] // c.height, columns.shape[1] // c.width
        cells = np.asarray(points).reshape(c.height, high, c.width, wide, -1)
        total = np.asarray(sum(cells[:, i, :, j] for i in range(high) for j in range(wide)))
        count = high * wide
        if exact:
            factor = np.float32(c.x.scale) * STEP / np.float32(c.out.scale) / np.float32(count)
            y[index] = requantize(total, float(factor), c.out)
        else:
            y[index] = total / total.dtype.type(count)
    return y


def weights(down: Array, across: Array, exact: bool) -> Array:
    """The weights of one neighbor of every sample; integers if they multiply quantized elements."""
    product = (down[:, None] * across)[..., None]
    return round_half_away(product / STEP).astype(np.int32) if exact else product


def samples(start: Any, end: Any, count: int, asked: int, size: int) -> tuple[Array, Array]:
    """Along one axis: lower and upper neighbor [2, samples] in an image of `size` pixels, and their weights.

    The samples are in the middle of equal parts of `count` cells from start to end.
    """
    kind = type(start)
    cell = max(end - start, kind(1)) / kind(count)
    each = asked or math.ceil(cell)
    part = cell / kind(each)
    starts = cell * np.arange(count, dtype=kind) + start
    at = ((starts + part / kind(2))[:, None] + part * np.arange(each, dtype=kind)).reshape(-1)
    lower = np.minimum(at.astype(np.int64), size - 1)
    weight = np.where(lower < size - 1, at - lower.astype(kind), kind(0))
    return np.stack([lower, np.minimum(lower + 1, size - 1)]), np.stack([kind(1) - weight, weight])


@operation(
    "ROI_POOLING", f"{REGIONS} nchw:b", level=3, types="F H Q S@4", infer=regions_dims,
    checks=(rank("x", 4), rank("roi", 2)), quantization=(box_quantization("roi"), KEPT),
    nchw=("x", "out"), native_half=True,
)  # fmt: skip
def roi_pooling(c: OperationCall) -> Array:
    """The largest element in each cell of a grid over the region. Its borders are rounded to pixels."""
    y = np.full(c.out.dims, c.x.zero_point, c.x.array.dtype)
    for index, (batch, box) in enumerate(zip(c.batches.array, regions(c))):
        rows = cells(box[1], box[3], c.height, c.x.dims[1])
        columns = cells(box[0], box[2], c.width, c.x.dims[2])
        for row, (top, bottom) in enumerate(rows):
            for column, (left, right) in enumerate(columns):
                if top < bottom and left < right:
                    y[index, row, column] = c.x.array[batch, top:bottom, left:right].max((0, 1))
    return y


def cells(start: Any, end: Any, count: int, size: int) -> list[tuple[int, int]]:
    """Borders in pixels of `count` cells from start to end, of an image with `size` pixels."""
    kind = type(start)
    first, last = round_away(float(start)), round_away(float(end))
    step = kind(max(last - first + 1, 1)) / kind(count)
    edges = step * np.arange(count + 1, dtype=kind) + kind(first)
    return [(min(math.floor(a), size), min(math.ceil(b), size)) for a, b in pairwise(edges)]
