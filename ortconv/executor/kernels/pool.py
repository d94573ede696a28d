"""Pooling operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.algorithms.half_precision import in_float32
from ortconv.executor.algorithms.pooling import reduce_windows, sums_of_channels, window_counts
from ortconv.executor.algorithms.sliding_window import (
    Window,
    channels_first,
    channels_last,
    pad_channels_last,
    sliding,
    trimmed,
    window,
)
from ortconv.executor.kernels.registry import kernel
from ortconv.executor.replay.work import AT_ONCE, Work, recordable, with_attributes
from ortconv.ir.tensor import Array


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
    return reduce_windows(work, x, w, np.maximum, _lowest(x.dtype))


def _max_with_indices(x: Array, w: Window, column_major: int) -> tuple[Array, Array]:
    """The maxima, and where the first of each lies in the flattened (N, C, spatial...) input."""
    w = trimmed(w)
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
    total = reduce_windows(work, x, w, np.add, 0)
    counts = np.maximum(window_counts(w, bool(count_include_pad)), 1)  # a window may lie in the padding alone
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
    return _root(reduce_windows(AT_ONCE, _power(x, p), w, np.add, 0), p)


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
