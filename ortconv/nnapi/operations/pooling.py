"""Pooling over windows of NHWC images."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortconv.executor.algorithms.pooling import lowest, reduce_windows
from ortconv.executor.algorithms.sliding_window import Window, channels_first, to_last
from ortconv.executor.replay.numerics import clip_to
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.operations.arithmetic import activate, activation_limits
from ortconv.nnapi.operations.checks import KEPT, rank
from ortconv.nnapi.operations.shapes import Pads, image_only, paddings, windows_dims
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

WINDOW = "stride_w:i stride_h:i filter_w:i filter_h:i activation:i [nchw:b=0 @3]"
FORMS = f"x:T pad_left:i pad_right:i pad_top:i pad_bottom:i {WINDOW}", f"x:T padding:i {WINDOW}"


def pads_of(c: OperationCall) -> Pads:
    return paddings(c, c.x.dims[1:3], (c.filter_h, c.filter_w))


def pool_dims(c: OperationCall) -> Dims:
    image_only(c.x)
    return windows_dims(c, (c.filter_h, c.filter_w), (1, 1), c.x.dims[3])


pooling = partial(operation, infer=pool_dims, checks=(rank("x", 4),), nchw=("x", "out"), zero_sized=True)


def windows_of(x: Array, c: OperationCall, work: Work = AT_ONCE) -> Array:
    """[batch, rows, columns, depth, window rows, window columns], a view."""
    rows, columns = pads_of(c)
    edges = (0, 0), rows, columns, (0, 0)
    padded = work.call(partial(np.pad, pad_width=edges), x) if any((*rows, *columns)) else x
    return sliding_window_view(padded, (c.filter_h, c.filter_w), axis=(1, 2))[:, :: c.stride_h, :: c.stride_w]


def cells(c: OperationCall) -> Array:
    """Number of cells of each window inside the image, [1, rows, columns, 1]."""
    inside = np.ones((1, *c.x.dims[1:3], 1), np.int32)
    return windows_of(inside, c).sum(axis=(4, 5), dtype=np.int32)


@pooling("AVERAGE_POOL_2D", *FORMS, types="F Q H@3 S@4", quantization=(KEPT,), recorded=("x",))
def average_pool_2d(c: OperationCall) -> Array:
    """The mean of the cells inside the image. If quantized, halves are rounded up, counted from the smallest element."""
    if not c.out.is_quantized:
        y = c.work.empty(c.out.dims, c.x.array.dtype)
        c.work.do(np.add.reduce, windows_of(c.x.array, c, c.work), (4, 5), None, y)
        c.work.do(np.divide, y, cells(c).astype(y.dtype), y)
        return activate(y, c.activation, c.work)
    return c.anew(quantized_average)


def quantized_average(c: OperationCall) -> Array:
    least = c.x.limits[0]
    sums = windows_of(c.x.array.astype(np.int32) - least, c).sum(axis=(4, 5), dtype=np.int64)
    count = cells(c)
    return np.clip((sums + count // 2) // count + least, *activation_limits(c.activation, c.out))


@pooling("MAX_POOL_2D", *FORMS, types="F Q H@3 S@4", quantization=(KEPT,), recorded=("x",))
def max_pool_2d(c: OperationCall) -> Array:
    begin, end = zip(*pads_of(c))
    kernel, strides, size = (c.filter_h, c.filter_w), (c.stride_h, c.stride_w), c.x.dims[1:3]
    w = Window(size, kernel, strides, (1, 1), begin, end, c.out.dims[1:3])
    x = channels_first(c.x.array)
    y = to_last(reduce_windows(c.work, x, w, np.maximum, lowest(c.x.array.dtype)))
    if not c.out.is_quantized:
        return activate(y, c.activation, c.work)
    limits = map(y.dtype.type, activation_limits(c.activation, c.out))
    c.work.do(clip_to, y, *limits, y)
    return y


@pooling("L2_POOL_2D", *FORMS, types="F H@3")
def l2_pool_2d(c: OperationCall) -> Array:
    """The root of the mean square of the cells inside the image."""
    squares = windows_of(np.square(c.x.array), c).sum(axis=(4, 5))
    return activate(np.sqrt(squares / cells(c).astype(squares.dtype)), c.activation)
