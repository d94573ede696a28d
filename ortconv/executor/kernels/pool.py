"""Pooling. Windows are reduced one spatial axis after the other, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import ones
from ortconv.executor.algorithms.half_precision import in_float32
from ortconv.executor.algorithms.row_tiles import rows_per_tile
from ortconv.executor.algorithms.sliding_window import (
    Place,
    Window,
    channels_first,
    channels_last,
    pad_channels_last,
    reached,
    sliding,
    window,
)
from ortconv.executor.kernels.registry import kernel
from ortconv.executor.replay.work import AT_ONCE, Work, copy_to, recordable, spans, with_attributes
from ortconv.ir.tensor import Array

_LONG_ROW = 64


def _reduce(work: Work, x: Array, w: Window, ufunc: Any, identity: Any) -> Array:
    """(N, C, spatial...) to (N, C, output...) with every window reduced by a binary ufunc, in the memory order of x.

    Padding is not there to be read: it counts as the identity. The output is made in row tiles along its first spatial axis.
    """
    # Short rows are dear: their channels make longer ones, unless they are few.
    last = not x.flags.c_contiguous or x.shape[-1] < min(_LONG_ROW, 4 * x.shape[1])
    given, first = (channels_last(x, work), 1) if last else (x, 2)
    rank, rows = len(w.output), w.output[0]
    out = work.empty((*given.shape[:first], *w.output, *given.shape[first + rank :]), x.dtype)
    most = rows_per_tile(rows, 2 * given.nbytes // max(rows, 1))
    if parts := spans(rows, most):
        for part in parts:
            with work.scratch():
                y, made = given, out[(slice(None),) * first + (part,)]
                for i, size in enumerate(w.output):
                    taps: Sequence[Place] = reached(w, i)
                    if i == 0:
                        taps, size = [_within(tap, part) for tap in taps], part.stop - part.start
                    y = _reduce_axis(work, y, first + i, size, taps, ufunc, identity, made if i == rank - 1 else None)
    return channels_first(out) if last else out


def _within(tap: Place, part: slice) -> Place:
    """Where a kernel element has inputs among the outputs of a part, which begin with its first one."""
    outputs, inputs = tap
    start = min(max(outputs.start, part.start), part.stop)
    stop = max(min(outputs.stop, part.stop), start)
    step = inputs.step or 1
    first, last = (inputs.start + (at - outputs.start) * step for at in (start, stop))
    return slice(start - part.start, stop - part.start), slice(first, last, step)


def _reduce_axis(
    work: Work, x: Array, axis: int, size: int, taps: Sequence[Place], ufunc: Any, identity: Any, out: Array | None
) -> Array:
    """`out` if that is given, else new memory or a part of x."""
    before = (slice(None),) * axis
    widest = sorted((tap for tap in taps if tap[0].stop > tap[0].start), key=lambda tap: tap[0].start - tap[0].stop)
    whole = [x[(*before, source)] for target, source in widest[:2] if target.stop - target.start == size]
    if len(widest) == 1 and whole and out is None:
        return whole[0]
    y = work.empty((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) if out is None else out
    if len(whole) > 1:
        work.do(partial(ufunc, out=y), whole[0], whole[1])
    elif whole:
        work.do(copy_to, whole[0], y)
    else:
        work.do(y.fill, identity)
    for target, source in widest[len(whole) :]:
        inside = y[(*before, target)]
        work.do(partial(ufunc, out=inside), inside, x[(*before, source)])
    return y


@lru_cache(maxsize=64)
def _counts(w: Window, declared_padding: bool) -> Array:
    """(output...): how many elements of each window lie in the input, or also in its declared padding.

    A scalar where all agree.
    """
    counts = np.ones(())
    for i, n in enumerate(w.size):
        low, high = (-w.begin[i], n + w.end[i]) if declared_padding else (0, n)
        at = np.arange(w.output[i])[:, None] * w.strides[i] + np.arange(w.kernel[i]) * w.dilations[i] - w.begin[i]
        counts = np.multiply.outer(counts, ((at >= low) & (at < high)).sum(axis=1))
    uniform = counts.size > 0 and counts.min() == counts.max()
    return np.asarray(counts.max() if uniform else counts)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


@kernel("MaxPool")
@in_float32
@recordable
def max_pool(
    work: Work,
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    n_outputs: int = 1,
) -> Any:
    w = window(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    if n_outputs > 1:
        return work.call(partial(_max_with_indices, w=w, column_major=storage_order), x)
    return _reduce(work, x, w, np.maximum, _lowest(x.dtype))


def _max_with_indices(x: Array, w: Window, column_major: int) -> tuple[Array, Array]:
    """The maxima, and where the first of each lies in the flattened (N, C, spatial...) input."""
    padded = pad_channels_last(x, w, _lowest(x.dtype))
    rank, n, c = len(w.size), padded.shape[0], padded.shape[-1]
    windows = np.moveaxis(sliding(padded, w), -1, 1).reshape(n, c, *w.output, prod(w.kernel))
    outside = ~np.moveaxis(sliding(_inside(w), w), -1, 1).reshape(1, 1, *w.output, prod(w.kernel))
    first = np.argmax(np.where(outside, _lowest(padded.dtype), windows), axis=-1)
    values = np.take_along_axis(windows, first[..., None], axis=-1)[..., 0]
    # A window of nothing but the lowest value must not point into the padding.
    padding = np.take_along_axis(np.broadcast_to(outside, windows.shape), first[..., None], axis=-1)[..., 0]
    first = np.where(padding, np.argmin(outside, axis=-1), first)
    tap = np.unravel_index(first, w.kernel)
    position = []
    for axis, t in enumerate(tap):
        start = np.arange(w.output[axis]) * w.strides[axis] - w.begin[axis]
        position.append(start.reshape(-1, *(1,) * (rank - 1 - axis)) + t * w.dilations[axis])
    flat = np.ravel_multi_index(tuple(position), w.size, mode="clip", order="F" if column_major else "C")
    plane = np.arange(n * c, dtype=np.int64).reshape(n, c, *(1,) * rank) * prod(w.size)
    return values, (plane + flat).astype(np.int64)


def _inside(w: Window) -> Array:
    """(1, padded..., 1), true where the input is."""
    inside = np.zeros((1, *w.padded, 1), bool)
    place = [slice(max(b, 0), max(b + n, 0)) for n, b in zip(w.size, w.begin)]
    index: tuple[Any, ...] = (0, *place, 0)
    inside[index] = True
    return inside


@kernel("NhwcMaxPool", domain="com.microsoft")
@recordable
def nhwc_max_pool(work: Work, x: Array, **attributes: Any) -> Array:
    return channels_last(work.call(with_attributes(max_pool, attributes), channels_first(x)), work)


@kernel("AveragePool")
@in_float32
@recordable
def average_pool(
    work: Work,
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    w = window(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    total = _reduce(work, x, w, np.add, 0)
    counts = np.maximum(_counts(w, bool(count_include_pad)), 1)  # a window may lie in the padding alone
    work.do(np.divide, total, counts.astype(x.dtype), total)
    return total


@kernel("LpPool")
@in_float32
def lp_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    w = window(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    return _root(_reduce(AT_ONCE, _power(x, p), w, np.add, 0), p)


def _power(x: Array, p: float) -> Array:
    return np.square(x) if p == 2 else np.abs(x) ** x.dtype.type(p)


def _root(x: Array, p: float) -> Array:
    return np.asarray(np.sqrt(x) if p == 2 else x if p == 1 else x ** x.dtype.type(1 / p))


@kernel("GlobalAveragePool")
@in_float32
@recordable
def global_average_pool(work: Work, x: Array) -> Array:
    total = sums_of_channels(work, x)
    work.do(np.divide, total, np.asarray(prod(x.shape[2:]), x.dtype), total)
    return total.reshape(*x.shape[:2], *(1,) * (x.ndim - 2))


def sums_of_channels(work: Work, x: Array) -> Array:
    """(N, C, spatial...) to (N, C)."""
    n, c, *spatial = x.shape
    size = prod(spatial)
    total, each = work.empty((n, c), x.dtype), ones(size, x.dtype)
    if x.flags.c_contiguous:
        work.do(np.matmul, x.reshape(n * c, size), each, total.reshape(n * c))
    else:
        work.do(np.matmul, each, channels_last(x, work).reshape(n, size, c), total)
    return total


@kernel("GlobalMaxPool")
@in_float32
def global_max_pool(x: Array) -> Array:
    return np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


@kernel("GlobalLpPool")
@in_float32
def global_lp_pool(x: Array, *, p: float = 2) -> Array:
    return _root(_power(x, p).sum(axis=tuple(range(2, x.ndim)), keepdims=True), p)


@kernel("MaxUnpool")
def max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    rank = len(kernel_shape)
    steps, pads = strides or (1,) * rank, pads or (0,) * (2 * rank)
    inferred = [
        (n - 1) * s + k - b - e for n, s, k, b, e in zip(x.shape[2:], steps, kernel_shape, pads[:rank], pads[rank:])
    ]
    inferred_shape = (*x.shape[:2], *inferred)
    if output_shape is None:
        y = np.zeros(inferred_shape, x.dtype)
        y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
        return y
    # The indices count in the inferred shape; a larger output only adds zeros behind it.
    y = np.zeros(tuple(int(d) for d in output_shape), x.dtype)
    place = np.unravel_index(indices.reshape(-1), inferred_shape)
    y[place] = x.reshape(-1)
    return y
