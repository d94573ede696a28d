"""Winograd's F(2x2, 3x3) on integers. Transformed weights are multiples of a quarter: four times them fit 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from ortconv.executor.kernels.doubt import Doubt
from ortconv.executor.kernels.elementwise import dot_of_rows
from ortconv.executor.kernels.integer_products import IntegerWeights, leave
from ortconv.executor.kernels.products import product
from ortconv.executor.kernels.windows import Window, channels_first
from ortconv.executor.kernels.winograd import FROM_TILES, directly, in_tiles, suits_shape, suits_window, transformed
from ortconv.executor.registry import Function
from ortconv.executor.work import Finish, Work, recordable
from ortconv.ir.tensor import Array

_EXACT = float(1 << 24)
"""Up to this float32 holds all integers."""

_FEWEST_TILES = 32
"""With fewer the weights, 16 of 16 bits where the direct form reads 9 of 8, cost more than the multiplications saved."""

_LONG_VECTOR = 256
"""Elements from which products of vectors with themselves take the less time per element."""

_WIDENED_AT_ONCE = 1 << 18
"""Up to so many transformed weights are widened together, others while they are multiplied."""


def suits(shape: tuple[int, ...], group: int, w: Window, images: int) -> bool:
    """True for weights (M, C, 3, 3) whose convolution of so many images is faster this way."""
    tiles = images * prod(-(-size // 2) for size in w.output)
    return suits_shape(shape, group) and suits_window(w) and tiles >= _FEWEST_TILES


class TiledWeights:
    """Integer weights (M, C, 3, 3) for windows of strides and dilations 1."""

    def __init__(self, w: Array) -> None:
        quarters = _quarters(w)
        self._shape = quarters.shape
        self._norms = np.float32(1.001) * np.sqrt(np.square(quarters, dtype=np.float32).sum(axis=1).max(axis=1))
        self._sums_of_norms = _OF_QUARTERS * self._norms
        many = quarters.size > _WIDENED_AT_ONCE
        self._by_tap = [IntegerWeights(tap) for tap in quarters] if many else []
        self._quarters = quarters[:, :0] if many else quarters

    def convolver(self, w: Window, finish: Finish, direct: Callable[[], Function] | None) -> Function:
        """The function of x (N, C, H, W) that convolves to (N, M, OH, OW) and finishes that in parts.

        By the direct form, if there is one, where integers in x might not give exact sums.
        """

        def run(work: Work, x: Array, out: Array | None = None) -> Array:
            doubt, wide = Doubt(work), work.empty(self._quarters.shape)
            work.do(np.copyto, wide, self._quarters)

            def combined(tiles: Array) -> Array:
                products = self._products(work, tiles, wide)
                if direct is not None:
                    self._check(work, doubt, tiles, products)
                y = transformed(work, _FROM_QUARTERS, products.reshape(16, -1))
                finish(work, y)
                return y

            out = work.empty((len(x), *w.output, self._shape[2])) if out is None else out
            in_tiles(work, x, out, w, 4 * prod(self._shape), combined)
            if direct is not None:
                work.do(doubt.settle, directly, direct, x, out)
            return channels_first(out)

        return recordable(run)

    def _products(self, work: Work, tiles: Array, wide: Array) -> Array:
        products = work.empty((*tiles.shape[:2], self._shape[2]))
        if self._by_tap:
            for rows, tap, out in zip(tiles, self._by_tap, products, strict=True):
                tap.multiply(rows, out, leave, work)
            return products
        product(tiles, wide, products, work)
        return products

    def _check(self, work: Work, doubt: Doubt, tiles: Array, products: Array) -> None:
        """Doubt, unless no sum on the way, in whatever order, can be larger than integers that float32 holds.

        A product of vectors is at most that of their lengths, and so is the sum of some of its terms. The length of several
        vectors together, which takes less time, is often short enough.
        """
        _, count, channels = tiles.shape
        together = next((n for n in range(_LONG_VECTOR // channels, 1, -1) if count % n == 0), 1)
        vectors = tiles.reshape(16, count // together, together * channels)
        lengths, bounds = work.empty(vectors.shape[:2]), work.empty((4, len(vectors[0])))
        work.do(partial(dot_of_rows, out=lengths), vectors, vectors)
        work.do(np.sqrt, lengths, lengths)
        work.do(np.matmul, self._sums_of_norms, lengths, bounds)
        work.do(doubt.unless, self._are_exact, lengths, bounds, tiles if together > 1 else None, products)

    def _are_exact(self, lengths: Array, bounds: Array, tiles: Array | None, products: Array) -> bool:
        """`lengths` of vectors (16, n), `bounds` of sums (4, n), and the vectors of which these consist, if there are such."""
        if np.maximum.reduce(bounds, None) <= _EXACT:
            return True
        if tiles is not None:
            lengths = np.sqrt(dot_of_rows(tiles, tiles))
            return self._are_exact(lengths, self._sums_of_norms @ lengths, None, products)
        reach = np.maximum.reduce(lengths, 1) * self._norms
        if reach.max() > _EXACT:
            return False
        # The sums and differences of all four rows or columns reach furthest: how far they went is worth the time to look.
        middle = products.reshape(4, 4, -1)[1:3, 1:3]
        largest = np.maximum(np.maximum.reduce(middle, 2), -np.minimum.reduce(middle, 2))
        of_middle = reach.reshape(4, 4)[1:3, 1:3]
        np.minimum(of_middle, largest, of_middle)
        return bool((_OF_QUARTERS @ reach).max() <= _EXACT)


_FROM_QUARTERS, _OF_QUARTERS = FROM_TILES / 4, np.abs(FROM_TILES)


def _quarters(w: Array) -> Array:
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
