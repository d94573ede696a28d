"""Winograd's F(2x2, 3x3) on integers. Transformed weights are multiples of a quarter; multiplied by four, they fit into 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, prod, sqrt

import numpy as np

from ortconv.executor.algorithms.blockwise import dot_of_rows
from ortconv.executor.algorithms.fallback import Fallback
from ortconv.executor.algorithms.gemm import outputs_last
from ortconv.executor.algorithms.gemm_exact import EXACT_SUM
from ortconv.executor.algorithms.gemm_int8 import as_float32, widened
from ortconv.executor.algorithms.sliding_window import Window, channels_first, to_last
from ortconv.executor.algorithms.winograd import FROM_TILES, directly, in_tiles, suits_shape, suits_window, transformed
from ortconv.executor.replay.work import Finish, Function, Work, recordable
from ortconv.ir.tensor import Array

_FEWEST_TILES = 32
"""With fewer tiles, reading the weights (16 numbers of 16 bits instead of 9 of 8 bits) costs more than the saved
multiplications.
"""


def suits(shape: tuple[int, ...], group: int, w: Window, images: int) -> bool:
    """True for weights (M, C, 3, 3) whose convolution is faster this way for this number of images."""
    tiles = images * prod(-(-size // 2) for size in w.output)
    return suits_shape(shape, group) and suits_window(w) and tiles >= _FEWEST_TILES


class TiledWeights:
    """Integer weights (M, C, 3, 3) for windows of strides and dilations 1.

    With the lowest of centered 8-bit values, sums of these are exact.
    """

    def __init__(self, w: Array, lowest: float | None) -> None:
        quarters = _quarters(w)
        self._shape = quarters.shape
        self._bounds = None if lowest is None else _Bounds(w, quarters, lowest < 0)
        self._quarters = widened(quarters)

    def convolver(self, w: Window, finish: Finish, direct: Callable[[], Function]) -> Function:
        """A function of x (N, C, H, W) that convolves to (N, M, OH, OW) and finishes the result in parts.

        It uses the direct form if sums must be exact and might not be.
        """
        bounds = self._bounds

        def run(work: Work, x: Array, out: Array | None = None) -> Array:
            fallback, wide = Fallback(work), as_float32(work, self._quarters)
            of_image = None if bounds is None else bounds.of_image(work, x)

            def combined(tiles: Array) -> Array:
                products = work.empty((*tiles.shape[:2], self._shape[2]))
                work.do(np.matmul, tiles, wide, products)
                y = transformed(work, _FROM_QUARTERS, products.reshape(16, -1))
                if bounds is not None:
                    work.do(fallback.unless, bounds.are_exact, of_image, products)
                finish(work, y)
                return y

            out = work.empty((len(x), *w.output, self._shape[2])) if out is None else out
            in_tiles(work, x, out, w, 4 * prod(self._shape), combined)
            if bounds is not None:
                work.do(fallback.fall_back, directly, direct, x, out)
            return channels_first(out)

        return recordable(run)


class _Bounds:
    """Bounds on intermediate sums, in quarters.

    A dot product of two vectors is at most the product of their lengths, and so is the sum of some of its terms. A
    result is a sum of nine products: no sum of some of them is larger than half of the sum of their magnitudes plus the
    magnitude of their sum.
    """

    def __init__(self, w: Array, quarters: Array, is_signed: bool) -> None:
        wide = quarters.astype(np.float32)
        lengths = _ROUNDED_UP * np.sqrt(np.einsum("kcm,kcm->km", wide, wide))
        # Elements of tiles are sums and differences of four pixels. Where no pixel has a negative element, sums of two, one less
        # the other, are no longer than both of them at a right angle.
        pixels = np.full((16, 1), 4 if is_signed else np.sqrt(8), np.float32)
        pixels[_SUM_OF_FOUR] = 4
        self._product = float((pixels * lengths).max())
        self._amounts = float((_OF_QUARTERS @ (pixels * lengths)).max())
        rows = w.reshape(len(w), -1).astype(np.float32)
        squares = np.einsum("mk,mk->m", rows, rows)
        if not is_signed:  # then only weights of one sign make a sum larger
            squares = (squares + np.abs(np.einsum("mk,mk->m", rows, np.abs(rows)))) / 2
        self._result = 4 * 3 * float(_ROUNDED_UP * np.sqrt(squares.max()))

    def of_image(self, work: Work, x: Array) -> Array:
        """The magnitudes and the results for an image (N, C, H, W). Magnitudes are infinite if a product might not be exact."""
        pixels, bounds = to_last(x), work.empty((2,))
        with work.scratch():
            squares = work.empty(pixels.shape[:-1])
            work.do(partial(dot_of_rows, out=squares), pixels, pixels)
            work.do(self._bound_by_pixels, squares, bounds)
        return bounds

    def _bound_by_pixels(self, squares: Array, bounds: Array) -> None:
        longest = sqrt(np.maximum.reduce(squares.reshape(-1), initial=0))
        bounds[0] = self._amounts * longest if self._product * longest <= EXACT_SUM else inf
        bounds[1] = self._result * longest

    def are_exact(self, of_image: Array, products: Array) -> bool:
        """True if float32 can represent as integers all intermediate sums before and after the products (16, T, M), in
        any order.
        """
        amounts, result = of_image.tolist()
        if amounts + result <= 2 * EXACT_SUM:
            return True
        return amounts < inf and self._amounts_of(products) <= EXACT_SUM

    def _amounts_of(self, products: Array) -> float:
        by_element = products.reshape(16, -1)
        largest = np.maximum(np.maximum.reduce(by_element, 1), -np.minimum.reduce(by_element, 1))
        return float((_OF_QUARTERS @ largest).max())


_FROM_QUARTERS, _OF_QUARTERS = FROM_TILES / 4, np.abs(FROM_TILES)

_SUM_OF_FOUR = 5
"""The element of a transformed tile that is a sum of four, without differences."""

_ROUNDED_UP = np.float32(1.001)
"""A factor larger than all rounding errors of the bounds."""


def _quarters(w: Array) -> Array:
    """Four times the transform of weights (M, C, 3, 3), as (16, C, M)."""
    m, c = w.shape[:2]
    source = outputs_last(w.astype(np.int16))[0]
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
