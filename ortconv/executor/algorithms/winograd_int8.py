"""Winograd's F(2x2, 3x3) on integers: when its sums are exact in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import sqrt

import numpy as np

from ortconv.executor.algorithms.gemm_exact import EXACT_SUM
from ortconv.executor.algorithms.sliding_window import to_last
from ortconv.executor.algorithms.winograd import FROM_TILES
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array

_EXACT_SUM = EXACT_SUM / 4
"""Multiples of a quarter up to this magnitude are exact in float32."""

_ROUNDED_UP = 1.001
"""A factor larger than all rounding errors of the bounds."""


class ExactSums:
    """The `Check` of transformed 8-bit weights (16, C, M) and of centered 8-bit images, by bounds on intermediate sums.

    A dot product of two vectors is at most the product of their lengths, and so is the sum of some of its terms. An
    element of a tile is a sum of at most four pixels.
    """

    def __init__(self, weights: Callable[[], Array]) -> None:
        self._weights = weights

    @cached_property
    def _largest_pixel(self) -> float:
        wide = self._weights()
        longest = sqrt(np.einsum("kcm,kcm->km", wide, wide).max())
        return _EXACT_SUM / max(4 * _ROUNDED_UP * longest, 1)

    def __call__(self, work: Work, x: Array) -> Callable[[Array, Array], bool]:
        pixels, longest = to_last(x), work.empty(())
        with work.scratch():
            squares = work.empty(pixels.shape[:-1])
            work.do(partial(np.vecdot, out=squares), pixels, pixels)
            work.do(partial(np.maximum.reduce, axis=None, out=longest, initial=0), squares)
        return partial(self._are_exact, longest)

    def _are_exact(self, square: Array, products: Array, _: Array) -> bool:
        """True if float32 can represent all intermediate sums in the products (16, T, M) and after them, in any order.
        `square` is the square of the length of the longest pixel.
        """
        if sqrt(square) > self._largest_pixel:
            return False
        by_element = products.reshape(16, -1)
        largest = np.maximum(np.maximum.reduce(by_element, 1), -np.minimum.reduce(by_element, 1))
        return float((np.abs(FROM_TILES) @ largest).max()) <= _EXACT_SUM
