"""Object detection: boxes from anchors and deltas, suppression of overlapping boxes, key points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import Operand
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType
from ortconv.nnapi.operations.arithmetic import quantize
from ortconv.nnapi.operations.boxes import NmsKernel, hard_nms, require_indices, require_ordered, soft_nms, transformed
from ortconv.nnapi.operations.checks import BOX_SCALE, box_quantization, rank
from ortconv.nnapi.operations.shapes import fits
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

ZERO, HALF = np.float32(0), np.float32(0.5)


def stored(real: Array, out: OperandType) -> Array:
    """Real numbers as elements of an output's type."""
    return quantize(real, out) if out.is_quantized else real


def require_dims(name: str, found: Dims, wanted: Dims) -> None:
    if found != wanted:
        raise op_failed(f"{name} has dimensions {list(found)}, not {list(wanted)}")


def transform_dims(c: OperationCall) -> Dims:
    rows, columns = c.deltas.dims
    fits(c, {"roi": (rows, 4), "batches": (rows,)})
    require_dims("image sizes", c.images.dims, (c.images.dims[0], 2))
    if columns % 4:
        raise op_failed(f"{columns} deltas are not a multiple of 4")
    return rows, columns


@operation(
    "AXIS_ALIGNED_BBOX_TRANSFORM", "roi:roi deltas:T batches:I images:roi", outputs="out:roi", level=3,
    types="F H Q S@4", infer=transform_dims, zero_sized=True,
    checks=(rank("roi", 2), rank("deltas", 2), rank("images", 2)),
    quantization=(box_quantization("roi", "images", "out"),),
)  # fmt: skip
def bbox_transform(c: OperationCall) -> Array:
    batches, boxes = c.batches.array, c.roi.real[:, None]
    require_indices(batches, c.images.dims[0])
    require_ordered(boxes)
    deltas = c.deltas.real.reshape(len(batches), c.deltas.dims[1] // 4, 4)
    y = transformed(boxes, deltas, c.images.real[batches][:, None])
    return stored(y.reshape(c.out.dims), c.out)


def nms_kernel(c: OperationCall) -> NmsKernel:
    threshold, sigma = np.float32(c.iou_threshold), np.float32(c.sigma)
    if c.kernel == 0:
        return lambda iou: (iou < threshold).astype(np.float32)
    if c.kernel == 1:
        return lambda iou: np.where(iou < threshold, np.float32(1), 1 - iou)
    if c.kernel == 2:
        return lambda iou: np.exp(-iou * iou / sigma)
    raise op_failed(f"{c.kernel} is not a kernel; 0 is hard, 1 linear, 2 gaussian")


def runs(batches: Array) -> list[Array]:
    """The indices of each run of equal elements."""
    return np.split(np.arange(batches.size), np.flatnonzero(np.diff(batches)) + 1) if batches.size else []


@operation(
    "BOX_WITH_NMS_LIMIT",
    "x:T roi:roi batches:I score_threshold:f limit:i kernel:i iou_threshold:f sigma:f nms_threshold:f",
    outputs="scores:T boxes:roi classes:I found_batches:I", level=3, types="F H Q S@4", infer=None, zero_sized=True,
    checks=(rank("x", 2), rank("roi", 2)), quantization=(box_quantization("roi", "boxes"),),
)  # fmt: skip
def box_with_nms_limit(c: OperationCall) -> Sequence[Array]:
    """Class 0 is the background. In each batch, boxes are sorted by class, and within a class by score."""
    rows, classes = c.x.dims
    fits(c, {"roi": (rows, 4 * classes), "batches": (rows,)})
    scores, boxes = c.x.real, c.roi.real.reshape(rows, classes, 4)
    require_ordered(boxes)
    kernel = nms_kernel(c)
    found: list[tuple[float, int, int]] = []
    for run in runs(c.batches.array):
        best: list[tuple[float, int, int]] = []
        for label in range(1, classes):
            kept = run[scores[run, label] > np.float32(c.score_threshold)]
            order, lowered = soft_nms(scores[kept, label], boxes[kept, label], kernel, c.nms_threshold)
            best += [(float(score), label, int(row)) for score, row in zip(lowered, kept[order])]
        if 0 <= c.limit < len(best):
            best = sorted(sorted(best, key=lambda one: -one[0])[: c.limit], key=lambda one: (one[1], -one[0]))
        found += best
    labels = np.array([label for _, label, _ in found], np.int32)
    index = np.array([row for _, _, row in found], np.int64)
    kept_scores = np.array([score for score, _, _ in found], np.float32)
    return (stored(kept_scores, c.scores), stored(boxes[index, labels], c.boxes), labels, c.batches.array[index])


@operation(
    "GENERATE_PROPOSALS",
    "x:T deltas:T anchors:anchors images:roi stride_h:f stride_w:f before:i after:i threshold:f min_size:f nchw:b",
    outputs="scores:T boxes:roi batches:I", level=3, types="F H Q S@4", infer=None, nchw=("x", "deltas"),
    checks=(rank("x", 4), rank("deltas", 4), rank("anchors", 2), rank("images", 2)),
    quantization=(box_quantization("images", "boxes"),),
)  # fmt: skip
def generate_proposals(c: OperationCall) -> Sequence[Array]:
    batches, height, width, count = c.x.dims
    fits(c, {"deltas": (batches, height, width, 4 * count), "anchors": (count, 4)})
    require_dims("image sizes", c.images.dims, (batches, 2))
    if c.anchors.is_quantized and c.anchors.scale != BOX_SCALE:
        raise op_failed(f"the anchors' scale is {c.anchors.scale:g}, not {BOX_SCALE}")
    require_ordered(c.anchors.real)
    anchors = shifted(c.anchors.real, height, width, c.stride_h, c.stride_w)
    scores, deltas = c.x.real.reshape(batches, -1), c.deltas.real.reshape(batches, -1, 4)
    found = []
    for batch in range(batches):
        boxes = transformed(anchors, deltas[batch], c.images.real[batch])
        kept = proposals(scores[batch], boxes, c.images.real[batch], c)
        found.append((scores[batch][kept], boxes[kept], np.full(kept.size, batch, np.int32)))
    kept_scores, kept_boxes, kept_batches = (np.concatenate(parts) for parts in zip(*found))
    return stored(kept_scores, c.scores), stored(kept_boxes, c.boxes), kept_batches


def shifted(anchors: Array, height: int, width: int, stride_h: float, stride_w: float) -> Array:
    """The anchors shifted to every cell, [height * width * anchors, 4]."""
    down, across = np.meshgrid(np.arange(height) * stride_h, np.arange(width) * stride_w, indexing="ij")
    shifts = np.stack([across, down, across, down], axis=-1).astype(np.float32)
    return (shifts[:, :, None] + anchors).reshape(-1, 4)


def proposals(scores: Array, boxes: Array, image: Array, c: OperationCall) -> Array:
    """Indices of the best boxes that are large enough, have their center in the image and do not overlap."""
    order = np.argsort(-scores, kind="stable")
    order = order[: c.before] if c.before > 0 else order
    corners = boxes[order]
    large = (corners[:, 2:] - corners[:, :2] > np.float32(c.min_size)).all(1)
    inside = ((corners[:, :2] + corners[:, 2:]) * HALF < image[::-1]).all(1)
    order = order[large & inside]
    return order[hard_nms(scores[order], boxes[order], c.threshold, c.after if c.after > 0 else -1)]


def detection_dims(c: OperationCall) -> list[Dims]:
    batches, count, _ = c.x.dims
    require_dims("deltas", c.deltas.dims[:2], (batches, count))
    require_dims("anchors", c.anchors.dims, (count, 4))
    if c.x.dims[2] < 2 or c.deltas.dims[2] < 4:
        raise op_failed(f"{c.x.dims[2]} classes must be 2 or more, {c.deltas.dims[2]} deltas 4 or more")
    if min(c.scale_y, c.scale_x, c.scale_h, c.scale_w) <= 0 or min(c.score_threshold, c.iou_threshold) < 0:
        raise op_failed("scales must be positive, thresholds not negative")
    limits = {"limit": c.limit, **({"per_class": c.per_class} if c.regular else {"class_limit": c.class_limit})}
    if min(limits.values()) <= 0:
        raise op_failed(f"limits {limits} must be positive")
    rows = c.limit if c.regular else c.limit * c.class_limit
    return [(batches, rows), (batches, rows, 4), (batches, rows), (batches,)]


@operation(
    "DETECTION_POSTPROCESSING",
    "x:T deltas:T anchors:T scale_y:f scale_x:f scale_h:f scale_w:f regular:b limit:i class_limit:i per_class:i "
    "score_threshold:f iou_threshold:f background:b",
    outputs="scores:T boxes:T classes:I found:I", level=3, types="F H", infer=detection_dims,
    checks=(rank("x", 3), rank("deltas", 3), rank("anchors", 2)),
)  # fmt: skip
def detection_postprocessing(c: OperationCall) -> Sequence[Array]:
    """Rows after the last detection are 0. There are `limit` rows; if not `regular`, `class_limit` for each of `limit` boxes."""
    y = [np.zeros(out.dims, out.type.dtype if out.type.dtype == np.int32 else np.float32) for out in c.outputs]
    scores, boxes, classes, found = y
    select = regular_detections if c.regular else fast_detections
    for batch, rows in enumerate(c.x.array):
        decoded = from_anchors(c.deltas.array[batch], c)
        rows_found, labels = select(rows, decoded, c)
        count = len(rows_found)
        found[batch] = count
        scores[batch, :count] = rows[rows_found, labels]
        boxes[batch, :count] = decoded[rows_found]
        classes[batch, :count] = labels if c.background else labels - 1
    return y


def from_anchors(deltas: Array, c: OperationCall) -> Array:
    """Boxes (y1, x1, y2, x2) from anchors (y, x, height, width) and deltas in the same order."""
    scales = np.array([c.scale_y, c.scale_x, c.scale_h, c.scale_w], np.float32)
    anchors = c.anchors.array
    centers = anchors[:, :2] + anchors[:, 2:] * deltas[:, :2] / scales[:2]
    halves = anchors[:, 2:] * np.exp(deltas[:, 2:4] / scales[2:]) * HALF
    return np.concatenate([centers - halves, centers + halves], axis=1)


def regular_detections(scores: Array, boxes: Array, c: OperationCall) -> tuple[Array, Array]:
    """(boxes, classes): suppression within each class, then the best of all classes."""
    rows, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for label in range(1, scores.shape[1]):
        kept = np.flatnonzero(scores[:, label] > np.float32(c.score_threshold))
        kept = kept[hard_nms(scores[kept, label], boxes[kept], c.iou_threshold, c.per_class)]
        rows.append(kept)
        labels.append(np.full(kept.size, label))
    index = np.concatenate(rows), np.concatenate(labels)
    order = np.argsort(-scores[index], kind="stable")[: c.limit]
    return index[0][order], index[1][order]


def fast_detections(scores: Array, boxes: Array, c: OperationCall) -> tuple[Array, Array]:
    """(boxes, classes): suppression by the best class of each box, then the best classes of the boxes that remain."""
    best = scores[:, 1:].max(1)
    kept = np.flatnonzero(best > np.float32(c.score_threshold))
    kept = kept[hard_nms(best[kept], boxes[kept], c.iou_threshold, c.limit)]
    count = min(scores.shape[1] - 1, c.class_limit)
    labels = np.argsort(-scores[kept, 1:], axis=1, kind="stable")[:, :count] + 1
    return np.repeat(kept, count), labels.reshape(-1)


def heatmap_dims(c: OperationCall) -> list[Dims]:
    boxes, height, width, points = c.x.dims
    fits(c, {"boxes": (boxes, 4)})
    if height != width or height < 2:
        raise op_failed(f"a heat map of {height} x {width} is not square or too small")
    return [(boxes, points), (boxes, points, 2)]


@operation(
    "HEATMAP_MAX_KEYPOINT", "x:T boxes:roi nchw:b", outputs="scores:T points:roi", level=3, types="F H Q S@4",
    infer=heatmap_dims, nchw=("x",), checks=(rank("x", 4), rank("boxes", 2)),
    quantization=(box_quantization("boxes", "points"),),
)  # fmt: skip
def heatmap_max_keypoint(c: OperationCall) -> Sequence[Array]:
    """The peak of each map, refined between the cells, as a position in the box."""
    boxes = c.boxes.real
    require_ordered(boxes)
    count, size, _, points = c.x.dims
    maps = c.x.real.transpose(0, 3, 1, 2)
    row, column = np.divmod(maps.reshape(count, points, -1).argmax(-1), size)
    tolerance = 1e-3 if c.main is Operand.TENSOR_FLOAT16 else 1e-5
    across, down, scores = refined(around(maps, row, column), np.float32(tolerance))
    place = np.stack([column + across, row + down], axis=-1).astype(np.float32) + HALF
    places = place / np.float32(size) * (boxes[:, None, 2:] - boxes[:, None, :2]) + boxes[:, None, :2]
    return stored(scores, c.scores), stored(places, c.points)


def around(maps: Array, row: Array, column: Array) -> Array:
    """The 3 x 3 cells around each peak, in the first dimensions. Maps are mirrored at the border."""
    full = np.pad(maps, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
    first, second = np.indices(row.shape)
    return np.array([[full[first, second, row + i, column + j] for j in range(3)] for i in range(3)])


def refined(s: Array, tolerance: np.float32) -> tuple[Array, Array, Array]:
    """Steps (x, y) from the middle of 3 x 3 samples to the peak of their quadratic form, at most 1.5, and the height of
    the peak.

    No step if the form has (nearly) no peak.
    """
    gx, gy = (s[1, 2] - s[1, 0]) * HALF, (s[2, 1] - s[0, 1]) * HALF
    xx, yy = s[1, 0] - 2 * s[1, 1] + s[1, 2], s[0, 1] - 2 * s[1, 1] + s[2, 1]
    xy = (s[2, 2] - s[2, 0] - s[0, 2] + s[0, 0]) * np.float32(0.25)
    det = xx * yy - xy * xy
    flat = np.abs(det) < tolerance + tolerance * (xx * yy)
    x, y = ((xy * gy - yy * gx) / det, (xy * gx - xx * gy) / det)
    longest = np.maximum(np.abs(x), np.abs(y))
    shrink = np.where(longest > np.float32(1.5), np.float32(1.5) / longest, np.float32(1))
    x, y = np.where(flat, ZERO, x * shrink), np.where(flat, ZERO, y * shrink)
    return x, y, s[1, 1] + gx * x + gy * y + ((xx * x + xy * y) * x + (xy * x + yy * y) * y) * HALF
