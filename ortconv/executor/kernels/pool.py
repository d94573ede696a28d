"""Pooling operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any, Unpack

import numpy as np

from ortconv.executor.algorithms import pooling as fast
from ortconv.executor.algorithms.pooling import lowest, window_counts
from ortconv.executor.algorithms.sliding_window import Window, channels_first, channels_last, taps, trimmed, window
from ortconv.executor.kernels.reduction import precise_sum
from ortconv.executor.kernels.registry import Geometry, PoolGeometry, float_kernel, kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


@float_kernel("MaxPool", fast=fast.max_pool)
def max_pool(
    x: Array, *, kernel_shape: Sequence[int], storage_order: int = 0, n_outputs: int = 1, **place: Unpack[PoolGeometry]
) -> Any:
    w = trimmed(window(x.shape[2:], kernel_shape, **place))
    if n_outputs > 1:
        return _max_with_indices(x, w, storage_order)
    return reduce(np.maximum, taps(x, w, lowest(x.dtype)))


def _max_with_indices(x: Array, w: Window, column_major: int) -> tuple[Array, Array]:
    """The maxima, and the index of the first occurrence of each in the flattened (N, C, spatial...) input. A window in the padding
    has the index before its channel, as in ONNX Runtime.
    """
    windows = np.stack(list(taps(x, w, lowest(x.dtype))))
    places = np.arange(prod(w.size)).reshape(1, 1, *w.size, order="F" if column_major else "C")
    place = np.broadcast_to(np.stack(list(taps(places, w, -1))), windows.shape)
    first = windows.argmax(axis=0)[None]
    # A window of nothing but the lowest value must not point into the padding.
    first = np.where(np.take_along_axis(place, first, 0) < 0, (place >= 0).argmax(axis=0), first)
    plane = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(w.size)) * prod(w.size)
    index = plane + np.take_along_axis(place, first, 0)[0]
    return np.take_along_axis(windows, first, 0)[0], index.astype(np.int64)


@kernel("NhwcMaxPool", domain=MICROSOFT, fast=fast.nhwc_max_pool)
def nhwc_max_pool(x: Array, **attributes: Any) -> Array:
    return channels_last(max_pool(channels_first(x), **attributes))


@float_kernel("AveragePool", fast=fast.average_pool)
def average_pool(
    x: Array, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **place: Unpack[PoolGeometry]
) -> Array:
    w = window(x.shape[2:], kernel_shape, **place)
    count = window_counts(w, bool(count_include_pad)).astype(x.dtype)
    return np.asarray(reduce(np.add, taps(x, trimmed(w), 0)) / count)


@float_kernel("LpPool")
def lp_pool(x: Array, *, kernel_shape: Sequence[int], p: int = 2, **place: Unpack[PoolGeometry]) -> Array:
    w = trimmed(window(x.shape[2:], kernel_shape, **place))
    return _root(reduce(np.add, taps(_power(x, p), w, 0)), p)


def _power(x: Array, p: float) -> Array:
    return np.square(x) if p == 2 else np.abs(x) ** x.dtype.type(p)


def _root(x: Array, p: float) -> Array:
    return np.asarray(np.sqrt(x) if p == 2 else x if p == 1 else x ** x.dtype.type(1 / p))


@float_kernel("GlobalAveragePool", fast=fast.global_average_pool)
def global_average_pool(x: Array) -> Array:
    return np.asarray(precise_sum(x, tuple(range(2, x.ndim))) / x.dtype.type(prod(x.shape[2:])))


@float_kernel("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    return np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


@float_kernel("GlobalLpPool")
def global_lp_pool(x: Array, *, p: float = 2) -> Array:
    return _root(precise_sum(_power(x, p), tuple(range(2, x.ndim))), p)


@kernel("MaxUnpool")
def max_unpool(
    x: Array, indices: Array, size: Array | None = None, *, kernel_shape: Sequence[int], **place: Unpack[Geometry]
) -> Array:
    """The indices count in the shape that follows from the windows; a larger output has zeros after it."""
    rank = len(kernel_shape)
    steps, pads = place.get("strides") or (1,) * rank, place.get("pads") or (0,) * (2 * rank)
    sizes = zip(x.shape[2:], steps, kernel_shape, pads[:rank], pads[rank:])
    shape = (*x.shape[:2], *((n - 1) * s + k - b - e for n, s, k, b, e in sizes))
    y = np.zeros(shape if size is None else size.tolist(), x.dtype)
    y[np.unravel_index(indices.reshape(-1), shape)] = x.reshape(-1)
    return y
