"""Reduction of sliding windows, one spatial axis after another, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import ones
from ortconv.executor.algorithms.half_precision import is_native
from ortconv.executor.algorithms.sliding_window import Window, channels_first, channels_last, reached, trimmed, window
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array

_LONG_ROW = 64
_LONG_SUM = 4096


def lowest(dtype: np.dtype[Any]) -> Any:
    """The lowest value of a type: -inf for floats."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def max_pool(
    work: Work, x: Array, *, kernel_shape: Sequence[int], n_outputs: int = 1, storage_order: int = 0, **geometry: Any
) -> Array | None:
    if n_outputs > 1 or not is_native(x):
        return None
    return reduce_windows(work, x, window(x.shape[2:], kernel_shape, **geometry), np.maximum, lowest(x.dtype))


def nhwc_max_pool(work: Work, x: Array, **attributes: Any) -> Array | None:
    y = max_pool(work, channels_first(x), **attributes)
    return None if y is None else channels_last(y, work)


def average_pool(
    work: Work, x: Array, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **geometry: Any
) -> Array | None:
    if not is_native(x):
        return None
    w = window(x.shape[2:], kernel_shape, **geometry)
    total = reduce_windows(work, x, w, np.add, 0)
    work.do(np.divide, total, window_counts(w, bool(count_include_pad)).astype(x.dtype), total)
    return total


def global_average_pool(work: Work, x: Array) -> Array | None:
    if not is_native(x):
        return None
    (n, c), image, count = x.shape[:2], x.shape[2:], prod(x.shape[2:])
    # The error grows with the length of a sum, so a large image is summed axis by axis.
    sizes = image if count > _LONG_SUM else (count,)
    if x.flags.c_contiguous:
        total = x.reshape(n, c, *sizes)
        for size in reversed(sizes):
            rows, total = total.reshape(-1, size), work.empty(total.shape[:-1], x.dtype)
            work.do(np.matmul, rows, ones(size, x.dtype), total.reshape(-1))
    else:
        total = channels_last(x, work).reshape(n, *sizes, c)
        for size in reversed(sizes):
            rows, total = total, work.empty((*total.shape[:-2], c), x.dtype)
            work.do(np.matmul, ones(size, x.dtype), rows, total)
    work.do(np.divide, total, np.asarray(count, x.dtype), total)
    return total.reshape(n, c, *(1,) * (x.ndim - 2))


def mean_of_channels(
    work: Work, x: Array, axes: Array | Sequence[int] | None = None, *, keepdims: int = 1, **_: Any
) -> Array | None:
    """ReduceMean over the axes of an image, which may be an input or an attribute."""
    over = axes.reshape(-1).tolist() if isinstance(axes, np.ndarray) else axes or ()
    if x.ndim < 3 or x.dtype not in (np.float32, np.float64) or not x.size:
        return None
    if sorted(a % x.ndim for a in over) != list(range(2, x.ndim)):
        return None
    y = global_average_pool(work, x)
    return y if y is None or keepdims else y.reshape(x.shape[:2])


def reduce_windows(work: Work, x: Array, w: Window, ufunc: Any, identity: Any) -> Array:
    """(N, C, spatial...) to (N, C, output...) with every window reduced by a binary ufunc, in the memory order of x.

    Padding counts as the identity and is not materialized.
    """
    # Short rows are slow. Rows of channels are longer, unless the channels are few.
    last = not x.flags.c_contiguous or x.shape[-1] < min(_LONG_ROW, 4 * x.shape[1])
    y, first = (channels_last(x, work), 1) if last else (x, 2)
    w = trimmed(w)
    for i in range(len(w.output)):
        y = _reduce_axis(
            work, y, first + i, w.output[i], reached(w, i), ufunc, identity, is_last=i == len(w.output) - 1
        )
    return channels_first(y) if last else y


_Taps = Sequence[tuple[slice, slice]]
"""For each offset in the window: the results that it reaches, and the elements there."""


def _reduce_axis(
    work: Work, x: Array, axis: int, size: int, taps: _Taps, ufunc: Any, identity: Any, is_last: bool
) -> Array:
    """New memory, or a part of x if this axis is not the last one."""
    before = (slice(None),) * axis
    parts = [(target, x[(*before, source)]) for target, source in taps if target.stop > target.start]
    parts.sort(key=lambda part: -part[1].shape[axis])  # taps that read only padding have no part
    whole = [part for _, part in parts[:2] if part.shape[axis] == size]
    if len(parts) == 1 and whole and not is_last:
        return whole[0]
    y = work.empty((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
    if len(whole) > 1:
        work.do(partial(ufunc, out=y), *whole)
    elif whole:
        work.do(np.copyto, y, whole[0])
    else:
        work.do(y.fill, identity)
    for target, part in parts[len(whole) :]:
        inside = y[(*before, target)]
        work.do(partial(ufunc, out=inside), inside, part)
    return y


@lru_cache(maxsize=64)
def window_counts(w: Window, declared_padding: bool) -> Array:
    """(output...): the number of elements of each window in the input, or in the input and its declared padding; at least 1.

    A scalar if all are equal.
    """
    counts = np.ones(())
    for i, n in enumerate(w.size):
        start = np.arange(w.output[i]) * w.strides[i] - w.begin[i]
        edges = (-w.begin[i], n + w.end[i]) if declared_padding else (0, n)
        before_low, before_high = (np.clip(-((start - edge) // w.dilations[i]), 0, w.kernel[i]) for edge in edges)
        counts = np.multiply.outer(counts, before_high - before_low)
    counts = np.maximum(counts, 1)
    uniform = counts.size > 0 and counts.min() == counts.max()
    return np.asarray(counts.max() if uniform else counts)
