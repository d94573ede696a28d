"""Winograd's F(2x2, 3x3) on integers: when its sums are exact in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, sqrt

import numpy as np

from ortconv.executor.algorithms.blockwise import dot_of_rows
from ortconv.executor.algorithms.gemm_exact import EXACT_SUM
from ortconv.executor.algorithms.sliding_window import to_last
from ortconv.executor.algorithms.winograd import FROM_TILES, transform_weights
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array


class ExactSums:
    """The `Check` of 8-bit weights (M, C, 3, 3) and of centered 8-bit images, by bounds on intermediate sums.

    A dot product of two vectors is at most the product of their lengths, and so is the sum of some of its terms. A
    result is a sum of nine products: no sum of some of them is larger than half of the sum of their magnitudes plus the
    magnitude of their sum.
    """

    def __init__(self, w: Array, lowest: float) -> None:
        """`lowest` is the lowest element of images."""
        is_signed, wide = lowest < 0, transform_weights(w.astype(np.float32))
        lengths = _ROUNDED_UP * np.sqrt(np.einsum("kcm,kcm->km", wide, wide))
        # Elements of tiles are sums and differences of four pixels. Where no pixel has a negative element, sums of two, one less
        # the other, are no longer than both of them at a right angle.
        pixels = np.full((16, 1), 4 if is_signed else np.sqrt(8), np.float32)
        pixels[_SUM_OF_FOUR] = 4
        self._product = float((pixels * lengths).max())
        self._amounts = float((np.abs(FROM_TILES) @ (pixels * lengths)).max())
        rows = w.reshape(len(w), -1).astype(np.float32)
        squares = np.einsum("mk,mk->m", rows, rows)
        if not is_signed:  # then only weights of one sign make a sum larger
            squares = (squares + np.abs(np.einsum("mk,mk->m", rows, np.abs(rows)))) / 2
        self._result = 3 * float(_ROUNDED_UP * np.sqrt(squares.max()))

    def __call__(self, work: Work, x: Array) -> Callable[[Array, Array], bool]:
        return partial(self._are_exact, self._of_image(work, x))

    def _of_image(self, work: Work, x: Array) -> Array:
        """The magnitudes and the results for an image (N, C, H, W). Magnitudes are infinite if a product might not be exact."""
        pixels, bounds = to_last(x), work.empty((2,))
        with work.scratch():
            squares = work.empty(pixels.shape[:-1])
            work.do(partial(dot_of_rows, out=squares), pixels, pixels)
            work.do(self._bound_by_pixels, squares, bounds)
        return bounds

    def _bound_by_pixels(self, squares: Array, bounds: Array) -> None:
        longest = sqrt(np.maximum.reduce(squares.reshape(-1), initial=0))
        bounds[0] = self._amounts * longest if self._product * longest <= _EXACT_SUM else inf
        bounds[1] = self._result * longest

    def _are_exact(self, of_image: Array, products: Array, _: Array) -> bool:
        """True if float32 can represent as integers all intermediate sums before and after the products (16, T, M), in
        any order.
        """
        amounts, result = of_image.tolist()
        if amounts + result <= 2 * _EXACT_SUM:
            return True
        return amounts < inf and self._amounts_of(products) <= _EXACT_SUM

    def _amounts_of(self, products: Array) -> float:
        by_element = products.reshape(16, -1)
        largest = np.maximum(np.maximum.reduce(by_element, 1), -np.minimum.reduce(by_element, 1))
        return float((np.abs(FROM_TILES) @ largest).max())


_EXACT_SUM = EXACT_SUM / 4
"""Multiples of a quarter up to this magnitude are exact in float32."""

_SUM_OF_FOUR = 5
"""The element of a transformed tile that is a sum of four, without differences."""

_ROUNDED_UP = np.float32(1.001)
"""A factor larger than all rounding errors of the bounds."""
