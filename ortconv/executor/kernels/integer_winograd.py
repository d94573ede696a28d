"""Winograd's F(2x2, 3x3) on integers. Transformed weights are multiples of a quarter: four times them fit 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

import numpy as np

from ortconv.executor.kernels.integer_products import IntegerWeights, leave
from ortconv.executor.kernels.windows import Window
from ortconv.executor.kernels.winograd import FROM_TILES, convolve_3x3, suits_shape, suits_window
from ortconv.ir.tensor import Array

Finish = Callable[[Array], None]

_EXACT = float(1 << 24)
"""Up to this float32 holds all integers."""

_FEWEST_TILES = 32
"""With fewer the weights, 16 of 16 bits where the direct form reads 9 of 8, cost more than the multiplications saved."""

_WIDENED_AT_ONCE = 1 << 18
"""Up to so many transformed weights are widened together, others while they are multiplied."""


def suits(shape: tuple[int, ...], group: int, w: Window, images: int) -> bool:
    """True for weights (M, C, 3, 3) whose convolution of so many images is faster this way."""
    tiles = images * prod(-(-size // 2) for size in w.output)
    return suits_shape(shape, group) and suits_window(w) and tiles >= _FEWEST_TILES


class TiledWeights:
    """Integer weights (M, C, 3, 3) for windows of strides and dilations 1.

    With the lowest and the highest of the integers that they will meet, every sum that float32 can hold is exact.
    """

    def __init__(self, w: Array, limits: tuple[float, float] | None) -> None:
        self._quarters = _transformed(w)
        self._parts = [slice(None)] if limits is None else _exact_parts(self._quarters, *limits)
        self._is_exact = limits is not None
        self._by_tap: list[list[IntegerWeights]] = []
        self._shape = np.broadcast_to(np.zeros((), np.float32), self._quarters.shape)
        if self._quarters.size > _WIDENED_AT_ONCE:
            self._by_tap = [[IntegerWeights(tap[part]) for tap in self._quarters] for part in self._parts]
            self._quarters = self._quarters[:, :0]

    def convolve(self, x: Array, w: Window, finish: Finish) -> Array:
        """(N, C, H, W) to (N, OH, OW, M), finished in parts."""
        wide = self._quarters.astype(np.float32)

        def combined(tiles: Array, _: Array) -> Array:
            y = self._sums(self._products(tiles, wide))
            finish(y)
            return y

        return convolve_3x3(x, self._shape, w, combined)

    def _products(self, tiles: Array, wide: Array) -> list[Array]:
        if not self._by_tap:
            return [np.matmul(tiles[..., part], wide[:, part]) for part in self._parts]
        products = []
        for part, weights in zip(self._parts, self._by_tap, strict=True):
            made = np.empty((*tiles.shape[:2], self._shape.shape[2]), np.float32)
            for rows, tap, out in zip(tiles[..., part], weights, made, strict=True):
                tap.multiply(rows, out, leave)
            products.append(made)
        return products

    def _sums(self, products: list[Array]) -> Array:
        """Products of tiles (16, T, M), to be added up, transformed back to (4, T * M)."""
        flat = [p.reshape(16, -1) for p in products]
        if self._is_exact:
            reach = sum(np.maximum(p.max(axis=1, initial=0), -p.min(axis=1, initial=0)) for p in flat)
            if (4 * np.abs(_FROM_QUARTERS) @ reach).max() > _EXACT:
                wide = sum(p.astype(np.float64) for p in flat)
                return np.asarray(_FROM_QUARTERS.astype(np.float64) @ wide).astype(np.float32)
        total = flat[0]
        for p in flat[1:]:
            total += p
        return np.asarray(_FROM_QUARTERS @ total)


_FROM_QUARTERS = FROM_TILES / 4


def _transformed(w: Array) -> Array:
    """Four times the transform of weights (M, C, 3, 3), as (16, C, M)."""
    m, c = w.shape[:2]
    source = np.asarray(w.transpose(2, 3, 1, 0), np.int16, order="C")
    rows = np.empty((4, 3, c, m), np.int16)
    out = np.empty((4, 4, c, m), np.int16)
    _doubled(source, rows)
    _doubled(rows.swapaxes(0, 1), out.swapaxes(0, 1))
    return out.reshape(16, c, m)


def _doubled(source: Array, out: Array) -> None:
    """Twice the one-dimensional transform, of three to four along the first axis."""
    np.add(source[0], source[0], out[0])
    np.add(source[2], source[2], out[3])
    np.add(source[0], source[2], out[2])
    np.add(out[2], source[1], out[1])
    np.subtract(out[2], source[1], out[2])


def _exact_parts(quarters: Array, low: float, high: float) -> list[slice]:
    """Input channels in parts for which float32 holds the sums of products with transformed integers from low to high."""
    spans = np.full((4, 4), 2 * (high - low))
    spans[1, 1] = 4 * max(high, -low)
    # Sums that are small enough to matter are exact in float32.
    largest, limits = np.abs(quarters).astype(np.float32), (_EXACT / spans).reshape(16, 1, 1)
    channels, count = quarters.shape[1], 1
    while True:
        edges = [channels * i // count for i in range(count + 1)]
        inside = np.repeat(np.eye(count, dtype=np.float32), np.diff(edges), axis=1)
        if (np.matmul(inside, largest) <= limits).all():
            return [slice(a, b) for a, b in pairwise(edges)]
        count *= 2
