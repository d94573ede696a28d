"""Pooling. Windows are reduced one spatial axis after the other, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.kernels.precision import in_float32
from ortconv.executor.kernels.windows import Window, channels_first, channels_last, pad_channels_last, sliding, window
from ortconv.executor.registry import kernel
from ortconv.ir.tensor import Array


def _reduce(x: Array, w: Window, ufunc: Any) -> Array:
    """Reduce every window of a padded channels-last array with a binary ufunc."""
    for axis in range(1, len(w.kernel) + 1):
        k, s, d, n = w.kernel[axis - 1], w.strides[axis - 1], w.dilations[axis - 1], w.output[axis - 1]
        before = (slice(None),) * axis
        parts = [x[(*before, slice(t * d, t * d + (n - 1) * s + 1 if n else 0, s))] for t in range(k)]
        if k == 1:
            x = parts[0]
            continue
        x = ufunc(parts[0], parts[1])
        for part in parts[2:]:
            ufunc(x, part, out=x)
    return x


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


@kernel("MaxPool")
@in_float32
def max_pool(
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
    padded = pad_channels_last(x, w, _lowest(x.dtype))
    if n_outputs > 1:
        return _max_with_indices(padded, w, storage_order)
    y = _reduce(padded, w, np.maximum)
    return channels_first(y.copy() if np.shares_memory(y, x) else y)


def _max_with_indices(padded: Array, w: Window, column_major: int) -> tuple[Array, Array]:
    """The maxima, and where the first of each lies in the flattened (N, C, spatial...) input."""
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


def _inside(w: Window, declared_padding: bool = False) -> Array:
    """(1, padded..., 1), true where the input is; with `declared_padding` also where its declared padding is."""
    inside = np.zeros((1, *w.padded, 1), bool)
    place = []
    for n, b, e in zip(w.size, w.begin, w.end):
        place.append(slice(0, b + n + e) if declared_padding else slice(max(b, 0), max(b + n, 0)))
    index: tuple[Any, ...] = (0, *place, 0)
    inside[index] = True
    return inside


@kernel("NhwcMaxPool", domain="com.microsoft")
def nhwc_max_pool(x: Array, **attributes: Any) -> Array:
    return channels_last(max_pool(channels_first(x), **attributes))


@kernel("AveragePool")
@in_float32
def average_pool(
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
    total = _reduce(pad_channels_last(x, w), w, np.add)
    count = _reduce(_inside(w, bool(count_include_pad)).astype(x.dtype), w, np.add)
    uniform = count.size > 0 and count.min() == count.max()
    return channels_first(total / (count.max() if uniform else count))


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
    total = _reduce(_power(pad_channels_last(x, w), p), w, np.add)
    return channels_first(_root(total, p))


def _power(x: Array, p: float) -> Array:
    return np.square(x) if p == 2 else np.abs(x) ** x.dtype.type(p)


def _root(x: Array, p: float) -> Array:
    return np.asarray(np.sqrt(x) if p == 2 else x if p == 1 else x ** x.dtype.type(1 / p))


@kernel("GlobalAveragePool")
@in_float32
def global_average_pool(x: Array) -> Array:
    n, c, *spatial = x.shape
    size = prod(spatial)
    if x.flags.c_contiguous:
        total = x.reshape(n * c, size) @ np.ones(size, x.dtype)
    else:
        total = np.ones((1, size), x.dtype) @ channels_last(x).reshape(n, size, c)
    return np.asarray(total / x.dtype.type(size)).reshape(n, c, *(1,) * len(spatial))


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
