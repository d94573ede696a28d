"""Sampling at arbitrary positions: grids and deformable convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from operator import mul
from typing import Any, Unpack

import numpy as np

from ortconv.executor.algorithms.sliding_window import window
from ortconv.executor.kernels.registry import Geometry, float_kernel
from ortconv.executor.kernels.resize import cubic_far, cubic_near
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

Taps = tuple[tuple[Array, Array], ...]
"""The elements along an axis that make up each sample: their index and weight."""


@float_kernel("GridSample")
@float_kernel("GridSample", domain=MICROSOFT)
def grid_sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """x (N, C, D1, D2, ...), grid (N, out..., r) with coordinates in [-1, 1], the last axis of x first."""
    taps = []
    for axis, n in enumerate(x.shape[2:]):
        g = grid[..., x.ndim - 3 - axis]
        position = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
        inside = partial(_inside, size=n, padding=padding_mode, align_corners=bool(align_corners))
        taps.append(_cubic(position, inside) if mode in ("cubic", "bicubic") else _MODES[mode](inside(position)))
    return weighted(x, taps)


def _inside(position: Array, size: int, padding: str, align_corners: bool) -> Array:
    """Positions moved inside by border or reflection padding."""
    if padding == "border":
        return np.clip(position, 0, size - 1)
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        span = high - low
        if span == 0:
            return np.zeros_like(position)
        folded = np.mod(position - low, 2 * span)
        return np.clip(low + np.minimum(folded, 2 * span - folded), 0, size - 1)
    return position


def _gather(x: Array, index: list[Array]) -> Array:
    """x[n, c, index...] with zero outside, (N, C, out...)."""
    sizes = x.shape[2:]
    inside = np.ones(index[0].shape, bool)
    flat = np.zeros(index[0].shape, np.int64)
    for i, n in zip(index, sizes):
        inside &= (i >= 0) & (i < n)
        flat = flat * n + np.clip(i, 0, max(n - 1, 0)).astype(np.int64)
    batch, channels = x.shape[:2]
    rows = x.reshape(batch, channels, -1)
    values = np.take_along_axis(rows, flat.reshape(batch, 1, -1), axis=2).reshape(batch, channels, *flat.shape[1:])
    return np.where(inside[:, None], values, x.dtype.type(0))


def _linear(position: Array) -> Taps:
    lower = np.floor(position)
    return (lower, 1 - (position - lower)), (lower + 1, position - lower)


def _cubic(position: Array, inside: Callable[[Array], Array]) -> Taps:
    base, a = np.floor(position), -0.75
    t = position - base
    weights = cubic_far(t + 1, a), cubic_near(t, a), cubic_near(1 - t, a), cubic_far(2 - t, a)
    return tuple((inside(base + k - 1), weight) for k, weight in enumerate(weights))


_MODES: dict[str, Callable[[Array], Taps]] = {
    "linear": _linear, "bilinear": _linear, "nearest": lambda position: ((np.rint(position), np.ones_like(position)),),
}  # fmt: skip


def weighted(x: Array, taps: Sequence[Taps]) -> Array:
    """Sums of elements times the product of their weights: x (N, C, spatial...) to (N, C, out...); zero outside."""
    total: Array | None = None
    for corner in product(*taps):
        weight = reduce(mul, (w for _, w in corner))
        part = _gather(x, [index for index, _ in corner]) * weight[:, None].astype(x.dtype)
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


@float_kernel("AffineGrid")
def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """theta (N, r, r + 1) to a grid (N, out..., r); the last axis first."""
    spatial = [int(n) for n in size[2:]]
    rank = len(spatial)
    lines = [np.linspace(-1, 1, n) if align_corners else (np.arange(n) * 2 + 1) / n - 1 for n in spatial]
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones(spatial)], axis=-1).reshape(-1, rank + 1).astype(theta.dtype)
    return np.asarray(points @ np.swapaxes(theta, 1, 2)).reshape(theta.shape[0], *spatial, rank)


@float_kernel("DeformConv")
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Any = None,
    offset_group: int = 1,
    **attributes: Unpack[Geometry],
) -> Array:
    n, c, *size = x.shape
    k = w.shape[2:]
    place = window(size, k, is_pool=False, **attributes)
    taps, rank, out = prod(k), len(size), place.output
    offsets = offset.reshape(n, offset_group, taps, rank, *out)
    masks = None if mask is None else mask.reshape(n, offset_group, 1, taps, *out)
    corner = np.indices(k).reshape(rank, taps)
    start = np.indices(out)
    columns = np.empty((n, offset_group, c // offset_group, taps, *out), x.dtype)
    for g in range(offset_group):
        along = []
        for d in range(rank):
            base = start[d] * place.strides[d] - place.begin[d]
            position = base + (corner[d] * place.dilations[d]).reshape(-1, *(1,) * rank) + offsets[:, g, :, d]
            along.append(_linear(position))
        part = x.reshape(n, offset_group, c // offset_group, *size)[:, g]
        columns[:, g] = weighted(part, along)
        if masks is not None:
            columns[:, g] *= masks[:, g]
    rows = columns.reshape(n, group, c // group * taps, prod(out))
    y = np.matmul(w.reshape(group, w.shape[0] // group, -1), rows).reshape(n, w.shape[0], *out)
    return y if b is None else np.asarray(y + b.reshape(-1, *(1,) * rank))
