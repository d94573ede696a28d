"""Pooling, resizing and rearranging of images."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand
from ortconv.nnapi.operations.table import OperationCall
from ortconv.tflite.layout import ElementType, Padding
from ortconv.tflite.products import margins, padded, padding_code
from ortconv.tflite.table import emits, translated
from ortconv.tflite.translation import RefusedOperationError, Translation

FLOATS = (Operand.TENSOR_FLOAT32, Operand.TENSOR_FLOAT16)

emits("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", inputs="x", types="F H Q S", either_sign=True, block_size="block")
emits("SPACE_TO_BATCH_ND", inputs="x block paddings", types="F H Q S", either_sign=True)


@translated("MAX_POOL_2D", types="F H Q S", either_sign=True)
def max_pool(t: Translation, u: OperationCall) -> None:
    code, x = padding_code(t, u, (u.filter_h, u.filter_w)), t.read(u.x)
    if code is None:
        is_float = t.kind(u.x).type in FLOATS
        fill = float("-inf") if is_float else -128.0 if t.model.tensors[x].type is ElementType.INT8 else 0.0
        code, x = Padding.VALID, padded(t, u, fill)
    _pool(t, u, x, code, t.write(u.out))


@translated("AVERAGE_POOL_2D", types="F H Q S")
@translated("L2_POOL_2D", types="F H")
def pool(t: Translation, u: OperationCall) -> None:
    """Explicit padding of floats: add zeros around the image, then take the mean over the image's own elements."""
    code = padding_code(t, u, (u.filter_h, u.filter_w))
    if code is not None:
        _pool(t, u, t.read(u.x), code, t.write(u.out))
        return
    if u.operation.name != "AVERAGE_POOL_2D" or u.main not in FLOATS or u.activation or not all(t.dims(u.x)[1:3]):
        raise RefusedOperationError("it has no explicit padding of pools, and counts the padding's cells")
    x, out = padded(t, u), t.write(u.out)
    factors = _cells(t, u)
    dims = (t.dims(u.x)[0], *factors.shape[1:3], t.dims(u.x)[3])
    made = t.temporary(out, dims)
    _pool(t, u, x, Padding.VALID, made)
    t.emit("MUL", [made, t.floats(factors)], [out], fused_activation_function=0)


def _pool(t: Translation, u: OperationCall, x: int, code: Padding, out: int) -> None:
    t.emit(
        u.operation.name, [x], [out], padding=code, stride_w=u.stride_w, stride_h=u.stride_h, filter_width=u.filter_w,
        filter_height=u.filter_h, fused_activation_function=u.activation,
    )  # fmt: skip


def _cells(t: Translation, u: OperationCall) -> Array:
    """The number of elements in each window, divided by the number of those in the image; [1, rows, columns, 1]."""
    found = margins(u)
    assert found is not None
    counts = []
    for size, window, stride, (head, tail) in zip(
        t.dims(u.x)[1:3], (u.filter_h, u.filter_w), (u.stride_h, u.stride_w), found
    ):
        starts = np.arange(0, size + head + tail - window + 1, stride) - head
        counts.append(np.minimum(starts + window, size) - np.maximum(starts, 0))
    if min(one.min(initial=1) for one in counts) < 1:
        raise RefusedOperationError("some windows have no cell of the image")
    rows, columns = counts
    factors: Array = (u.filter_h * u.filter_w / (rows[:, None] * columns))[None, :, :, None].astype(np.float32)
    return factors


@translated("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", types="F H Q S", either_sign=True)
def resize(t: Translation, u: OperationCall) -> None:
    width, height = u.width, u.height
    if isinstance(width, float):
        rows, columns = t.dims(u.x)[1:3]
        if not rows or not columns:
            raise RefusedOperationError("scales need known dimensions")
        width, height = int(columns * width), int(rows * height)
    options = {"align_corners": bool(u.corners), "half_pixel_centers": bool(u.centers)}
    t.emit(u.operation.name, [t.read(u.x), t.ints((height, width))], [t.write(u.out)], **options)


@translated("BATCH_TO_SPACE_ND", types="F H Q S", either_sign=True)
def batch_to_space(t: Translation, u: OperationCall) -> None:
    crops = t.ints([(0, 0), (0, 0)])
    t.emit("BATCH_TO_SPACE_ND", [t.read(u.x), t.read(u.block), crops], [t.write(u.out)])
