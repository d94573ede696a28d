"""Boxes: transforming them, choosing the best, proposing them. Boxes are (x1, y1, x2, y2) unless said otherwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import quantize
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.roi import coordinates
from ortconv.nnapi.operations.table import Call, Dims, operation


def in_type(x: Array, out: OperandType) -> Array:
    return quantize(x, out) if out.is_quantized else x


def moved(boxes: Array, deltas: Array, height: Array | float, width: Array | float) -> Array:
    """Boxes shifted by multiples (dx, dy) of their size, grown by exp(dw) and exp(dh), cut off at the image's
    borders.
    """
    size = boxes[..., 2:] - boxes[..., :2]
    centre = boxes[..., :2] + size / 2 + deltas[..., :2] * size
    half = np.exp(deltas[..., 2:]) * size / 2
    limits = np.stack(np.broadcast_arrays(np.float32(width), np.float32(height)), axis=-1)
    low, high = (np.minimum(np.maximum(one, 0), limits) for one in (centre - half, centre + half))
    return np.concatenate([low, high], axis=-1)


def transformed_dims(c: Call) -> Dims:
    if c.roi.dims != (c.batch.size, 4) or c.deltas.dims[0] != c.batch.size or c.deltas.dims[1] % 4:
        raise op_failed(
            f"regions of {list(c.roi.dims)} with deltas of {list(c.deltas.dims)} for {c.batch.size} indexes"
        )
    return c.deltas.dims


@operation(
    "AXIS_ALIGNED_BBOX_TRANSFORM", "roi:roi deltas:T batch:I image_info:roi", outputs="out:roi", level=3, types="F H Q S@4",
    infer=transformed_dims, zero_sized=True,
    checks=(rank("roi", 2), rank("deltas", 2), rank("batch", 1), coordinates("roi", "image_info", "out")),
)  # fmt: skip
def axis_aligned_bbox_transform(c: Call) -> Array:
    boxes, batch, info = c.roi.real, c.batch.array, c.image_info.real
    if len(batch) and not 0 <= batch.min() <= batch.max() < len(info):
        raise op_failed(f"an index of an image is not below {len(info)}")
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise op_failed("a region ends before it begins")
    deltas = c.deltas.real.reshape(len(boxes), c.deltas.dims[1] // 4, 4)
    height, width = (info[batch, side][:, None] for side in (0, 1))
    return in_type(moved(boxes[:, None], deltas, height, width).reshape(c.out.dims), c.out)


def overlap(box: Array, others: Array) -> Array:
    """Intersection over union."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0).astype(np.float32)


Kernel = Callable[[Array], Array]
"""What the score of a box is multiplied by, from its overlap with a better one."""


def suppressed(boxes: Array, scores: Array, kernel: Kernel, threshold: float, limit: int) -> tuple[list[int], Array]:
    """Non-maximum suppression: the best box, then the best of the rest with its score lowered, and so on while scores
    are at or above the threshold. Indexes in that order, and scores; a limit that is not positive is none.
    """
    scores = scores.astype(np.float32).copy()
    left = list(range(len(scores)))
    chosen: list[int] = []
    while left and (limit <= 0 or len(chosen) < limit):
        best = max(left, key=lambda index: scores[index])
        left.remove(best)
        chosen.append(best)
        factors = kernel(overlap(boxes[best], boxes[left])) if left else np.zeros(0)
        scores[left] *= factors
        left = [index for index, factor in zip(left, factors) if factor > 0 and scores[index] >= threshold]
    return chosen, scores


def hard(iou_threshold: float) -> Kernel:
    return lambda iou: (iou < iou_threshold).astype(np.float32)


def kernel_of(c: Call) -> Kernel:
    if c.kernel == 0:
        return hard(c.iou_threshold)
    if c.kernel == 1:
        return lambda iou: np.where(iou >= c.iou_threshold, 1 - iou, 1).astype(np.float32)
    if c.kernel == 2:
        return lambda iou: np.exp(-iou * iou / np.float32(c.sigma))
    raise op_failed(f"{c.kernel} is no kernel")


@operation(
    "BOX_WITH_NMS_LIMIT",
    "scores:T roi:roi batch:I score_threshold:f max_detections:i kernel:i iou_threshold:f sigma:f nms_score_threshold:f",
    outputs="scores_out:T roi_out:roi classes:I batches:I", level=3, types="F H Q S@4", infer=None, zero_sized=True,
    checks=(rank("scores", 2), rank("roi", 2), rank("batch", 1), coordinates("roi", "roi_out")),
)  # fmt: skip
def box_with_nms_limit(c: Call) -> list[Array]:
    """Each class but the first, the background, by itself; then the best of every image over all classes, by class
    and score.
    """
    scores, batch = c.scores.real, c.batch.array
    rows, classes = c.scores.dims
    if c.roi.dims != (rows, 4 * classes) or batch.shape != (rows,):
        raise op_failed(f"scores of {[rows, classes]} with regions of {list(c.roi.dims)} for {batch.size} indexes")
    boxes, kernel = c.roi.real.reshape(rows, classes, 4), kernel_of(c)
    kept: list[tuple[int, int, int, float]] = []  # image, class, row, score
    for image in dict.fromkeys(batch.tolist()):
        found = [
            (image, label, row, score)
            for label in range(1, classes)
            for row, score in _of_class(c, kernel, boxes[:, label], scores[:, label], batch == image)
        ]
        if 0 < c.max_detections < len(found):
            best = sorted(range(len(found)), key=lambda at: -found[at][3])[: c.max_detections]
            found = [found[at] for at in sorted(best)]
        kept += found
    images, labels, chosen, values = (np.array(column) for column in zip(*kept)) if kept else (np.zeros(0, int),) * 4
    picked = c.roi.array.reshape(rows, classes, 4)[chosen, labels].reshape(-1, 4)
    return [in_type(values.astype(np.float32), c.scores_out), picked, labels, images]


def _of_class(c: Call, kernel: Kernel, boxes: Array, scores: Array, mine: Array) -> list[tuple[int, float]]:
    """Rows and scores that are left of one class of one image, the best first."""
    rows = np.flatnonzero(mine & (scores > np.float32(c.score_threshold)))
    order, lowered = suppressed(boxes[rows], scores[rows], kernel, c.nms_score_threshold if c.kernel else -np.inf, 0)
    return [(int(rows[at]), float(lowered[at])) for at in order]


@operation(
    "GENERATE_PROPOSALS",
    "scores:T deltas:T anchors:anchor image_info:roi stride_h:f stride_w:f pre_nms:i post_nms:i iou_threshold:f min_size:f nchw:b",
    outputs="scores_out:T roi:roi batches:I", level=3, types="F H Q S@4", infer=None, nchw=("scores", "deltas"),
    checks=(rank("scores", 4), rank("deltas", 4), rank("anchors", 2), coordinates("image_info", "roi")),
)  # fmt: skip
def generate_proposals(c: Call) -> list[Array]:
    """Anchors laid over every cell, moved by the deltas; the best of each image that are large enough, without those
    that overlap.
    """
    images, height, width, anchors = c.scores.dims
    if (
        c.deltas.dims != (images, height, width, 4 * anchors)
        or c.anchors.dims != (anchors, 4)
        or c.image_info.dims != (images, 2)
    ):
        raise op_failed(
            f"scores of {list(c.scores.dims)} with deltas of {list(c.deltas.dims)} and anchors of {list(c.anchors.dims)}"
        )
    across, down = np.arange(width) * np.float32(c.stride_w), np.arange(height) * np.float32(c.stride_h)
    shifts = np.stack([*np.meshgrid(across, down)] * 2, axis=-1).astype(np.float32)
    boxes = (shifts[:, :, None] + c.anchors.real).reshape(-1, 4)
    parts = []
    for image in range(images):
        scores, deltas = c.scores.real[image].reshape(-1), c.deltas.real[image].reshape(-1, 4)
        order = np.argsort(-scores, kind="stable")[: c.pre_nms if c.pre_nms > 0 else None]
        rows, columns = c.image_info.real[image]
        found = moved(boxes[order], deltas[order], rows, columns)
        size, centre = found[:, 2:] - found[:, :2], (found[:, 2:] + found[:, :2]) / 2
        fits = (size > c.min_size).all(axis=1) & (centre < np.array([columns, rows])).all(axis=1)
        found, left = found[fits], scores[order][fits]
        chosen, _ = suppressed(found, left, hard(c.iou_threshold), -np.inf, c.post_nms)
        parts.append((left[chosen], found[chosen], np.full(len(chosen), image)))
    values, roi, batches = (np.concatenate(column) for column in zip(*parts))
    return [in_type(values, c.scores_out), in_type(roi, c.roi), batches]


def detection_dims(c: Call) -> list[Dims]:
    batch, anchors, classes = c.scores.dims
    if c.deltas.dims[:2] != (batch, anchors) or c.deltas.dims[2] < 4 or c.anchors.dims != (anchors, 4) or classes < 2:
        raise op_failed(
            f"scores of {list(c.scores.dims)} with deltas of {list(c.deltas.dims)}, anchors of {list(c.anchors.dims)}"
        )
    if c.max_detections <= 0:
        raise op_failed(f"{c.max_detections} detections")
    rows = (batch, c.max_detections)
    return [rows, (*rows, 4), rows, (batch,)]


@operation(
    "DETECTION_POSTPROCESSING",
    "scores:T deltas:T anchors:T scale_y:f scale_x:f scale_h:f scale_w:f regular_nms:b max_detections:i classes_per_detection:i "
    "detections_per_class:i score_threshold:f iou_threshold:f background_in_label:b",
    outputs="scores_out:T boxes:T labels:I counts:I", level=3, types="F H", infer=detection_dims,
    checks=(rank("scores", 3), rank("deltas", 3), rank("anchors", 2)),
)  # fmt: skip
def detection_postprocessing(c: Call) -> list[Array]:
    """Boxes are (y1, x1, y2, x2), anchors (y, x, height, width) by their centres. What is left of the outputs is 0."""
    scores, boxes = np.zeros(c.scores_out.dims, np.float32), np.zeros(c.boxes.dims, np.float32)
    labels, counts = np.zeros(c.labels.dims, np.int32), np.zeros(c.counts.dims, np.int32)
    choose = _best_of_classes if c.regular_nms else _best_of_anchors
    for image, candidates in enumerate(c.scores.array):
        decoded = _decoded(c, c.deltas.array[image])
        found = choose(c, decoded, candidates)[: c.max_detections]
        counts[image] = len(found)
        for at, (anchor, label, score) in enumerate(found):
            scores[image, at], boxes[image, at] = score, decoded[anchor]
            labels[image, at] = label if c.background_in_label else label - 1
    return [scores, boxes, labels, counts]


def _decoded(c: Call, deltas: Array) -> Array:
    scale = np.array([c.scale_y, c.scale_x, c.scale_h, c.scale_w], np.float32)
    anchors = c.anchors.array
    scaled = deltas[:, :4] / scale
    centre = scaled[:, :2] * anchors[:, 2:] + anchors[:, :2]
    half = np.exp(scaled[:, 2:]) * anchors[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def _chosen(c: Call, boxes: Array, scores: Array, limit: int) -> list[int]:
    """The anchors that are left, the best first."""
    above = np.flatnonzero(scores > np.float32(c.score_threshold))
    order, _ = suppressed(boxes[above], scores[above], hard(c.iou_threshold), -np.inf, limit)
    return above[order].tolist()


def _best_of_classes(c: Call, boxes: Array, scores: Array) -> list[tuple[int, int, float]]:
    """Every class by itself; the best of all (anchor, class, score)."""
    found = [
        (anchor, label, float(scores[anchor, label]))
        for label in range(1, scores.shape[1])
        for anchor in _chosen(c, boxes, scores[:, label], c.detections_per_class)
    ]
    return sorted(found, key=lambda one: -one[2])


def _best_of_anchors(c: Call, boxes: Array, scores: Array) -> list[tuple[int, int, float]]:
    """Every anchor by its best class; then the best classes of those left."""
    labels = scores[:, 1:]
    count = min(labels.shape[1], c.classes_per_detection)
    best = np.argsort(-labels, axis=1, kind="stable")[:, :count]
    chosen = _chosen(c, boxes, labels.max(axis=1), c.max_detections)
    return [(anchor, int(label) + 1, float(labels[anchor, label])) for anchor in chosen for label in best[anchor]]
