"""Sampling at arbitrary positions: grids and deformable convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, Unpack

import numpy as np

from ortconv.executor.algorithms.sliding_window import window
from ortconv.executor.kernels.registry import Placement, float_kernel
from ortconv.ir.tensor import Array


@float_kernel("GridSample")
def grid_sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """x (N, C, D1, D2, ...), grid (N, out..., r) with coordinates in [-1, 1], the last axis of x first."""
    sizes = x.shape[2:]
    positions = []
    for axis, n in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - axis]
        positions.append((g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2)
    return _MODES[mode](x, positions, padding_mode, bool(align_corners))


def _settle(position: Array, n: int, padding: str, align_corners: bool) -> Array:
    """Positions moved inside by border or reflection padding."""
    if padding == "border":
        return np.clip(position, 0, n - 1)
    if padding == "reflection":
        low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
        span = high - low
        if span == 0:
            return np.zeros_like(position)
        folded = np.mod(position - low, 2 * span)
        return np.clip(low + np.minimum(folded, 2 * span - folded), 0, n - 1)
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


def _nearest(x: Array, positions: list[Array], padding: str, align_corners: bool) -> Array:
    settled = [_settle(p, n, padding, align_corners) for p, n in zip(positions, x.shape[2:])]
    return _gather(x, [np.rint(p) for p in settled])


def _linear(x: Array, positions: list[Array], padding: str, align_corners: bool) -> Array:
    settled = [_settle(p, n, padding, align_corners) for p, n in zip(positions, x.shape[2:])]
    lower = [np.floor(p) for p in settled]
    per_axis = [((b, 1 - (p - b)), (b + 1, p - b)) for p, b in zip(settled, lower)]
    return weighted(x, per_axis)


def _cubic(x: Array, positions: list[Array], padding: str, align_corners: bool) -> Array:
    a = -0.75
    per_axis = []
    for p, n in zip(positions, x.shape[2:]):
        base = np.floor(p)
        t = p - base
        weights = (
            ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
            ((a + 2) * t - (a + 3)) * t * t + 1,
            ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
            ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
        )
        per_axis.append(tuple((_settle(base + k - 1, n, padding, align_corners), w) for k, w in enumerate(weights)))
    return weighted(x, per_axis)


def weighted(x: Array, per_axis: Sequence[tuple[tuple[Array, Array], ...]]) -> Array:
    """Sums over the corners of a product of (index, weight) per axis: x (N, C, spatial...) to (N, C, out...); zero outside."""
    total: Array | None = None
    for corner in product(*per_axis):
        weight = corner[0][1]
        for _, w in corner[1:]:
            weight = weight * w
        part = _gather(x, [index for index, _ in corner]) * weight[:, None].astype(x.dtype)
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


_MODES: dict[str, Callable[[Array, list[Array], str, bool], Array]] = {
    "linear": _linear, "bilinear": _linear, "cubic": _cubic, "bicubic": _cubic, "nearest": _nearest,
}  # fmt: skip


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
    **attributes: Unpack[Placement],
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
        per_axis = []
        for d in range(rank):
            base = start[d] * place.strides[d] - place.begin[d]
            position = base + (corner[d] * place.dilations[d]).reshape(-1, *(1,) * rank) + offsets[:, g, :, d]
            lower = np.floor(position)
            per_axis.append(((lower, 1 - (position - lower)), (lower + 1, position - lower)))
        part = x.reshape(n, offset_group, c // offset_group, *size)[:, g]
        columns[:, g] = weighted(part, per_axis)
        if masks is not None:
            columns[:, g] *= masks[:, g]
    rows = columns.reshape(n, group, c // group * taps, prod(out))
    y = np.matmul(w.reshape(group, w.shape[0] // group, -1), rows).reshape(n, w.shape[0], *out)
    return y if b is None else np.asarray(y + b.reshape(-1, *(1,) * rank))
