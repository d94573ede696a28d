"""Overlap, suppression and transformation of boxes: float32, (x1, y1, x2, y2) in the last dimension."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.shapes import are_within

HALF = np.float32(0.5)
NmsKernel = Callable[[Array], Array]
"""Maps the overlap with a better box to the factor by which a score is multiplied."""


def overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of one box with each of the others; 0 where the union is empty."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, np.float32(0)), axis=1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return np.where(union > 0, shared / union, np.float32(0))


def hard_nms(scores: Array, boxes: Array, threshold: float, limit: int) -> Array:
    """Indices of the boxes that do not overlap a better box by `threshold` or more, best first; at most `limit` if it is >= 0."""
    left = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while left.size and len(kept) != limit:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        left = left[overlaps(boxes[best], boxes[left]) < threshold]
    return np.array(kept, np.int64)


def soft_nms(scores: Array, boxes: Array, kernel: NmsKernel, threshold: float) -> tuple[Array, Array]:
    """Indices of boxes, best first, and their scores. Each score is multiplied by `kernel` for every better box. Boxes
    whose score falls below `threshold` are left out.
    """
    scores, left = scores.copy(), np.arange(scores.size)
    kept: list[int] = []
    while left.size:
        at = int(np.argmax(scores[left]))
        best, left = int(left[at]), np.delete(left, at)
        kept.append(best)
        scores[left] *= kernel(overlaps(boxes[best], boxes[left]))
        left = left[scores[left] >= threshold]
    order = np.array(kept, np.int64)
    return order, scores[order]


def transformed(boxes: Array, deltas: Array, image: Array) -> Array:
    """Boxes moved and scaled by (dx, dy, dw, dh) relative to their sizes, and clipped to an image of (height, width).

    All dimensions except the last broadcast.
    """
    sides = boxes[..., 2:] - boxes[..., :2]
    centers = (boxes[..., :2] + boxes[..., 2:]) * HALF + deltas[..., :2] * sides
    halves = np.exp(deltas[..., 2:]) * sides * HALF
    limits = np.asarray(image)[..., ::-1]
    corners = centers - halves, centers + halves
    return np.concatenate([np.clip(corner, np.float32(0), limits) for corner in corners], axis=-1)


def require_ordered(boxes: Array) -> None:
    """Raise OP_FAILED if a box ends before it starts, or has a NaN coordinate."""
    if not (boxes[..., :2] <= boxes[..., 2:]).all():
        raise op_failed("a box ends before it starts")


def require_indices(indices: Array, count: int) -> None:
    """Raise OP_FAILED for a batch index that is not below `count`."""
    if not are_within(indices, count):
        raise op_failed(f"batches {indices.min()} to {indices.max()} are not within {count}")
