"""Regions of interest and box selection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.algorithms.rounding import round_away
from ortconv.executor.algorithms.steps import counted
from ortconv.executor.kernels.registry import float_kernel, kernel, table
from ortconv.ir.tensor import Array


@kernel("NonMaxSuppression")
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """(batch, class, box) of each box that no better one of its class overlaps by more than `iou_threshold`."""
    limit = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.item())
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.item())
    lowest = None if score_threshold is None else float(score_threshold.item())
    selected: list[tuple[int, int, int]] = []
    if limit > 0 and scores.size:
        for batch, (image, classes) in enumerate(zip(widen(boxes), widen(scores))):
            found, score = _Boxes.of(image, center_point_box), np.ascontiguousarray(classes)
            for label, of_class in enumerate(score):
                selected += [(batch, label, box) for box in _suppress(found, of_class, limit, overlap, lowest)]
    return np.array(selected, dtype=np.int64).reshape(-1, 3)


_CHUNK = 64
"""Number of candidates compared with each other at a time."""

_SORTED_PER_BOX = 4
"""Number of candidates sorted at first for every box that may be kept. Usually the others are not needed."""


class _Boxes(NamedTuple):
    """Low and high corners (2, ..., n), and areas (..., n), of n boxes."""

    low: Array
    high: Array
    area: Array

    @staticmethod
    def of(boxes: Array, center_point_box: int) -> _Boxes:
        """Boxes from (n, 4) corners, in either order, or centers."""
        first, second = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
        if center_point_box:
            first, second = first - second / 2, first + second / 2
        low, high = np.minimum(first, second), np.maximum(first, second)
        sides = high - low
        return _Boxes(low, high, sides[0] * sides[1])

    def some(self, places: Array | list[int]) -> _Boxes:
        return _Boxes(self.low.take(places, axis=1), self.high.take(places, axis=1), self.area.take(places))

    def clash(self, other: _Boxes, overlap: float) -> Array:
        """(..., n, m): true if the intersection over the union exceeds `overlap`."""
        end = np.minimum(self.high[..., None], other.high[..., None, :])
        sides = end - np.maximum(self.low[..., None], other.low[..., None, :])
        shared = sides[0] * sides[1]
        union = self.area[..., None] + other.area[..., None, :] - shared
        return np.asarray((np.minimum(sides[0], sides[1]) > 0) & (shared / union > overlap))


def _suppress(boxes: _Boxes, score: Array, limit: int, overlap: float, lowest: float | None) -> list[int]:
    """The kept boxes, best first: none overlaps a better one by more than `overlap`."""
    candidates = np.arange(len(score)) if lowest is None else np.flatnonzero(score > lowest)
    kept: list[int] = []
    for order in _best_first(candidates, score[candidates], _SORTED_PER_BOX * limit):
        for start in range(0, len(order), _CHUNK):
            chunk = order[start : start + _CHUNK]
            if kept:
                chunk = chunk[~boxes.some(kept).clash(boxes.some(chunk), overlap).any(axis=0)]
            some, free = boxes.some(chunk), np.ones(len(chunk), bool)
            apart = ~some.clash(some, overlap)
            for i, box in enumerate(chunk.tolist()):
                if free[i]:
                    kept.append(box)
                    if len(kept) == limit:
                        return kept
                    free &= apart[i]
    return kept


def _best_first(candidates: Array, score: Array, count: int) -> Iterator[Array]:
    """The candidates by falling score: about `count` of them, then the others. Equal ones keep their order."""
    if 2 * count < len(candidates):
        best = score >= np.partition(score, -count)[-count]
        yield candidates[best][np.argsort(-score[best], kind="stable")]
        candidates, score = candidates[~best], score[~best]
    yield candidates[np.argsort(-score, kind="stable")]


@kernel("RoiAlign", since=16)
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """The average or the maximum of bilinear samples in each bin of each region."""
    if (batch_indices < 0).any():
        raise GraphError(f"batch_indices {batch_indices.tolist()} must not be negative")
    half_pixel = coordinate_transformation_mode == "half_pixel"
    out = np.zeros((len(rois), x.shape[1], output_height, output_width), dtype=np.float64)
    images = widen(x).astype(np.float64)
    edges = widen(rois).astype(np.float64) * spatial_scale - (0.5 if half_pixel else 0.0)
    for i, (left, top, right, bottom) in enumerate(edges):
        width, height = right - left, bottom - top
        if not half_pixel:
            width, height = max(width, 1.0), max(height, 1.0)
        rows = _samples(top, height, output_height, sampling_ratio, x.shape[2])
        columns = _samples(left, width, output_width, sampling_ratio, x.shape[3])
        out[i] = _pooled(images[batch_indices[i]], rows, columns, mode)
    return out.astype(x.dtype)


table({
    "RoiAlign": lambda x, rois, at, **given: roi_align(x, rois, at, coordinate_transformation_mode="output_half_pixel", **given)
}, until=10)  # fmt: skip

_Samples = tuple[Array, Array, Array, Array]


def _samples(start: float, length: float, bins: int, ratio: int, size: int) -> _Samples:
    """Sampling points along one axis, each array (bins, samples): lower and upper cell and their weights."""
    count = ratio if ratio > 0 else max(math.ceil(length / bins), 0)
    step = length / bins
    points = start + step * (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / max(count, 1))
    inside = (points >= -1) & (points <= size)
    points = points.clip(0, size - 1)
    low = np.floor(points).astype(np.int64)
    fraction = points - low
    return low, np.minimum(low + 1, size - 1), (1 - fraction) * inside, fraction * inside


def _pooled(image: Array, rows: _Samples, columns: _Samples, mode: str) -> Array:
    """Bilinear samples of an image (channels, height, width), pooled per bin."""
    corners = []
    for y, wy in ((rows[0], rows[2]), (rows[1], rows[3])):
        for x, wx in ((columns[0], columns[2]), (columns[1], columns[3])):
            values = image[:, y[:, :, None, None], x[None, None]]
            corners.append(values * wy[:, :, None, None] * wx[None, None])
    # Samples are (channels, bin row, sample row, bin column, sample column).
    if not corners[0].size:
        return np.zeros((len(image), len(rows[0]), len(columns[0])))
    if mode == "avg":
        return np.asarray(np.add.reduce(corners).mean(axis=(2, 4)))
    return np.asarray(np.maximum.reduce(corners).max(axis=(2, 4)))


@float_kernel("MaxRoiPool")
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array:
    counted(prod(pooled_shape))
    out = np.zeros((len(rois), x.shape[1], *pooled_shape), dtype=x.dtype)
    for i, roi in enumerate(rois):
        left, top, right, bottom = (round_away(v * spatial_scale) for v in roi[1:].tolist())
        image = x[int(roi[0])]
        rows = _bins(top, max(bottom - top + 1, 1), pooled_shape[0], x.shape[2])
        columns = _bins(left, max(right - left + 1, 1), pooled_shape[1], x.shape[3])
        for r, (y0, y1) in enumerate(rows):
            for c, (x0, x1) in enumerate(columns):
                if y1 > y0 and x1 > x0:
                    out[i, :, r, c] = image[:, y0:y1, x0:x1].max(axis=(1, 2))
    return out


def _bins(start: int, length: int, bins: int, size: int) -> list[tuple[int, int]]:
    step = length / bins
    edges = [(start + math.floor(b * step), start + math.ceil((b + 1) * step)) for b in range(bins)]
    return [(min(max(low, 0), size), min(max(high, 0), size)) for low, high in edges]
