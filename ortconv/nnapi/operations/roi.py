"""Regions of images brought to one size: ROI_ALIGN, ROI_POOLING."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import quantize, round_half_away
from ortconv.nnapi.boxes import require_indices, require_ordered
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import box_quantization, rank, same_quantization
from ortconv.nnapi.operations.table import Call, Dims, operation

REGIONS = "x:T roi:roi batches:I height:i width:i ratio_h:f ratio_w:f"
ONE = np.float32(1)


def regions_dims(c: Call) -> Dims:
    count = c.roi.dims[0]
    if c.roi.dims[1:] != (4,) or c.batches.dims != (count,):
        raise op_failed(f"regions {list(c.roi.dims)} and batches {list(c.batches.dims)} must be [n, 4] and [n]")
    if c.height <= 0 or c.width <= 0 or c.ratio_h <= 0 or c.ratio_w <= 0:
        raise op_failed(f"size {c.height} x {c.width} and ratios {c.ratio_h:g}, {c.ratio_w:g} must be positive")
    return count, c.height, c.width, c.x.dims[3]


def regions(c: Call) -> Array:
    """The regions in pixels of the input. OP_FAILED for those that are not inside."""
    boxes = c.roi.real
    ratios = np.array([c.ratio_w, c.ratio_h] * 2, np.float32)
    limits = np.array([c.x.dims[2], c.x.dims[1]] * 2, np.float32) * ratios
    require_indices(c.batches.array, c.x.dims[0])
    require_ordered(boxes)
    if (boxes < 0).any() or (boxes > limits).any():
        raise op_failed(f"a region is not within an image of {limits[1]:g} x {limits[0]:g}")
    return boxes / ratios


def align_dims(c: Call) -> Dims:
    if c.samples_h < 0 or c.samples_w < 0:
        raise op_failed(f"numbers of samples {c.samples_h} and {c.samples_w} are negative")
    return regions_dims(c)


@operation(
    "ROI_ALIGN", f"{REGIONS} samples_h:i samples_w:i nchw:b", level=3, types="F H Q S@4", infer=align_dims,
    checks=(rank("x", 4), rank("roi", 2), box_quantization("roi")), nchw=("x", "out"), zero_sized=True,
)  # fmt: skip
def roi_align(c: Call) -> Array:
    """The mean of bilinear samples in each cell of a grid over the region."""
    x, y = c.x.real, np.zeros(c.out.dims, np.float32)
    for index, (batch, (x1, y1, x2, y2)) in enumerate(zip(c.batches.array, regions(c))):
        rows = sampled(x[batch], 0, y1, y2, c.height, c.samples_h)
        y[index] = sampled(rows, 1, x1, x2, c.width, c.samples_w)
    return quantize(y, c.out) if c.out.is_quantized else y


def sampled(x: Array, axis: int, start: Array, end: Array, count: int, samples: int) -> Array:
    """Means of the samples in each of `count` cells from start to end, along one axis."""
    size = np.maximum(end - start, ONE)
    samples = samples or math.ceil(size / np.float32(count))
    step = size / np.float32(count * samples)
    at = start + (np.arange(count * samples, dtype=np.float32) + np.float32(0.5)) * step
    last = x.shape[axis] - 1
    lower = np.minimum(at.astype(np.int64), last)
    shape = [-1 if one == axis else 1 for one in range(3)]
    weight = np.where(lower < last, at - lower, np.float32(0)).reshape(shape)
    low, high = np.take(x, lower, axis), np.take(x, np.minimum(lower + 1, last), axis)
    points = low * (ONE - weight) + high * weight
    return points.reshape(*x.shape[:axis], count, samples, *x.shape[axis + 1 :]).mean(axis + 1)


@operation(
    "ROI_POOLING", f"{REGIONS} nchw:b", level=3, types="F H Q S@4", infer=regions_dims,
    checks=(rank("x", 4), rank("roi", 2), box_quantization("roi"), same_quantization("x", "out")), nchw=("x", "out"),
)  # fmt: skip
def roi_pooling(c: Call) -> Array:
    """The largest element in each cell of a grid over the region, whose borders are rounded to pixels."""
    y = np.full(c.out.dims, c.x.zero_point, c.x.array.dtype)
    for index, (batch, box) in enumerate(zip(c.batches.array, round_half_away(regions(c)))):
        rows = cells(box[1], box[3], c.height, c.x.dims[1])
        columns = cells(box[0], box[2], c.width, c.x.dims[2])
        for row, (top, bottom) in enumerate(rows):
            for column, (left, right) in enumerate(columns):
                if top < bottom and left < right:
                    y[index, row, column] = c.x.array[batch, top:bottom, left:right].max((0, 1))
    return y


def cells(start: Array, end: Array, count: int, size: int) -> list[tuple[int, int]]:
    """Borders in pixels of `count` cells from start to end, of an image with `size` pixels."""
    step = np.maximum(end - start + ONE, ONE) / np.float32(count)
    edges = start + np.arange(count + 1, dtype=np.float32) * step
    low, high = np.clip(np.floor(edges[:-1]), 0, size), np.clip(np.ceil(edges[1:]), 0, size)
    return [(int(a), int(b)) for a, b in zip(low, high)]
