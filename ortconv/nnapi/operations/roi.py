"""Regions of interest of NHWC images: ROI_ALIGN, ROI_POOLING, HEATMAP_MAX_KEYPOINT. Regions are (x1, y1, x2, y2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import quantize, round_half_away
from ortconv.nnapi.codes import FeatureLevel
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import rank, same_quantization
from ortconv.nnapi.operations.table import Call, Check, Dims, operation

COORDINATE = 0.125  # the scale of quantized coordinates


def coordinates(*names: str) -> Check:
    """Quantized coordinates have scale 1/8 and zero point 0."""

    def check(c: Call) -> Iterator[str | FeatureLevel]:
        for name in names:
            one = c.args[name]
            if one.is_quantized and (one.scale != COORDINATE or one.zero_point):
                yield f"{name} has scale {one.scale:g} and zero point {one.zero_point}, not {COORDINATE:g} and 0"

    return check


def regions(c: Call) -> tuple[Array, Array]:
    """The regions in cells of the image, and the image of each. OP_FAILED for what does not lie in an image."""
    images, height, width, _ = c.x.dims
    if min(c.ratio_h, c.ratio_w) <= 0 or min(c.out_h, c.out_w) <= 0:
        raise op_failed(f"ratios {c.ratio_h:g} and {c.ratio_w:g} or the size {c.out_h} x {c.out_w} are not positive")
    boxes, batch = c.roi.real, c.batch.array
    if boxes.shape != (len(batch), 4):
        raise op_failed(f"regions of {list(boxes.shape)} for {len(batch)} indexes of images")
    if len(batch) and not 0 <= batch.min() <= batch.max() < images:
        raise op_failed(f"an index of an image is not below {images}")
    ratios = np.array([c.ratio_w, c.ratio_h] * 2, np.float32)
    limits = np.array([width, height] * 2, np.float32) * ratios
    if (boxes < 0).any() or (boxes > limits).any() or (boxes[:, 2:] < boxes[:, :2]).any():
        raise op_failed("a region lies outside of its image, or ends before it begins")
    return boxes / ratios, batch


def region_dims(c: Call) -> Dims:
    return c.roi.dims[0], c.out_h, c.out_w, c.x.dims[3]


def samples(start: float, size: float, bins: int, asked: int, cells: int) -> tuple[Array, Array, Array, int]:
    """Along one axis: the lower and upper cell of every sample, its distance from the lower, and the samples in each
    bin.
    """
    size = max(size, 1.0)
    count = asked if asked > 0 else int(np.ceil(size / bins))
    at = start + (np.arange(bins * count, dtype=np.float32) + np.float32(0.5)) * np.float32(size / bins / count)
    low = np.minimum(np.floor(at).astype(np.int64), cells - 1)
    return low, np.minimum(low + 1, cells - 1), np.where(low < cells - 1, at - low, 0).astype(np.float32), count


@operation(
    "ROI_ALIGN",
    "x:T roi:roi batch:I out_h:i out_w:i ratio_h:f ratio_w:f samples_h:i samples_w:i nchw:b",
    level=3, types="F H Q S@4", infer=region_dims, nchw=("x", "out"), zero_sized=True,
    checks=(rank("x", 4), rank("roi", 2), coordinates("roi")),
)  # fmt: skip
def roi_align(c: Call) -> Array:
    """The mean of bilinear samples at the centres of a grid in each bin."""
    if min(c.samples_h, c.samples_w) < 0:
        raise op_failed("the number of samples is negative")
    x = c.x.real if c.x.is_quantized else c.x.array
    y = np.zeros(c.out.dims, np.float32)
    boxes, batch = regions(c)
    for at, ((x1, y1, x2, y2), image) in enumerate(zip(boxes, batch)):
        top, bottom, down, rows = samples(y1, y2 - y1, c.out_h, c.samples_h, c.x.dims[1])
        left, right, across, columns = samples(x1, x2 - x1, c.out_w, c.samples_w, c.x.dims[2])
        down, across = down[:, None, None], across[:, None]
        upper = x[image][top][:, left] * (1 - across) + x[image][top][:, right] * across
        lower = x[image][bottom][:, left] * (1 - across) + x[image][bottom][:, right] * across
        grid = (upper * (1 - down) + lower * down).reshape(c.out_h, rows, c.out_w, columns, -1)
        y[at] = grid.mean(axis=(1, 3))
    return quantize(y, c.out) if c.out.is_quantized else y


@operation(
    "ROI_POOLING",
    "x:T roi:roi batch:I out_h:i out_w:i ratio_h:f ratio_w:f nchw:b",
    level=3, types="F H Q S@4", infer=region_dims, nchw=("x", "out"),
    checks=(rank("x", 4), rank("roi", 2), coordinates("roi"), same_quantization("x", "out")),
)  # fmt: skip
def roi_pooling(c: Call) -> Array:
    """The largest cell in each bin; a bin without cells gives what stands for 0."""
    y = np.full(c.out.dims, c.x.zero_point, c.x.array.dtype)
    boxes, batch = regions(c)
    for at, (box, image) in enumerate(zip(round_half_away(boxes).astype(np.int64), batch)):
        rows = _bins(box[1], box[3], c.out_h, c.x.dims[1])
        columns = _bins(box[0], box[2], c.out_w, c.x.dims[2])
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                cells = c.x.array[image, row, column]
                if cells.shape[0] and cells.shape[1]:
                    y[at, i, j] = cells.max(axis=(0, 1))
    return y


def _bins(first: int, last: int, count: int, limit: int) -> list[slice]:
    """Along one axis: the cells of each bin, which may overlap."""
    size = np.float32(max(last - first + 1, 1)) / np.float32(count)
    edges = [(int(np.floor(at * size)) + first, int(np.ceil((at + 1) * size)) + first) for at in range(count)]
    return [slice(min(max(low, 0), limit), min(max(high, 0), limit)) for low, high in edges]


def keypoint_dims(c: Call) -> list[Dims]:
    boxes, height, width, points = c.heatmap.dims
    if height != width or height < 2 or c.boxes.dims != (boxes, 4):
        raise op_failed(f"heatmaps of {list(c.heatmap.dims)} with boxes of {list(c.boxes.dims)}")
    return [(boxes, points), (boxes, points, 2)]


@operation(
    "HEATMAP_MAX_KEYPOINT", "heatmap:T boxes:roi nchw:b", outputs="scores:T keypoints:roi", level=3, types="F H Q S@4",
    infer=keypoint_dims, nchw=("heatmap",),
    checks=(rank("heatmap", 4), rank("boxes", 2), coordinates("boxes", "keypoints")),
)  # fmt: skip
def heatmap_max_keypoint(c: Call) -> list[Array]:
    """The largest cell of each heatmap, refined by a parabola through its neighbours; mapped into the box."""
    maps, boxes = c.heatmap.real, c.boxes.real
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise op_failed("a box ends before it begins")
    count, size, _, points = maps.shape
    scores, keypoints = np.zeros((count, points), np.float32), np.zeros((count, points, 2), np.float32)
    for at in range(count):
        start, extent = boxes[at, :2], boxes[at, 2:] - boxes[at, :2]
        for point in range(points):
            grid = maps[at, :, :, point]
            row, column = divmod(int(grid.argmax()), size)
            shift, scores[at, point] = refined(neighbours(grid, row, column))
            keypoints[at, point] = (np.array([column, row]) + shift + 0.5) / size * extent + start
    if c.scores.is_quantized:
        return [quantize(scores, c.scores), quantize(keypoints, c.keypoints)]
    return [scores, keypoints]


def neighbours(grid: Array, row: int, column: int) -> Array:
    """3 x 3 cells; those beyond the border are mirrored."""
    last = len(grid) - 1

    def around(at: int) -> list[int]:
        return [1 if at == 0 else at - 1, at, last - 1 if at == last else at + 1]

    return grid[np.ix_(around(row), around(column))].astype(np.float64)


def refined(f: Array) -> tuple[Array, float]:
    """Where the parabola has its top, at most 1.5 cells away, as (x, y), and its height there."""
    slope = np.array([f[1, 2] - f[1, 0], f[2, 1] - f[0, 1]]) / 2
    mixed = (f[2, 2] - f[2, 0] - f[0, 2] + f[0, 0]) / 4
    bend = np.array([[f[1, 2] - 2 * f[1, 1] + f[1, 0], mixed], [mixed, f[2, 1] - 2 * f[1, 1] + f[0, 1]]])
    if abs(bend[0, 0] * bend[1, 1] - mixed * mixed) < 1e-3:
        return np.zeros(2), float(f[1, 1])
    shift = -np.linalg.solve(bend, slope)
    shift *= min(1.0, 1.5 / max(np.abs(shift).max(), 1e-12))
    return shift, float(f[1, 1] + slope @ shift + shift @ bend @ shift / 2)
