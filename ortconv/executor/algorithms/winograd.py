"""Winograd's F(2x2, 3x3): 16 multiplications instead of the 36 of the direct form.

In every window of a tile, its error is that of the direct form on a window in which all elements are as large as the largest of
the tile's 4 x 4 elements.

The input is transformed by sums and differences of rows, then of columns; products are transformed back by one more
product, with a Kronecker matrix. Weights grow by 16/9, so this is useful if they are transformed only once.
Integers are transformed as well, if all of their sums are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import prod, sqrt

import numpy as np

from ortconv.executor.algorithms.blockwise import has_finite_square
from ortconv.executor.algorithms.gemm import outputs_last
from ortconv.executor.algorithms.gemm_exact import EXACT_SUM
from ortconv.executor.algorithms.row_tiles import RowTile
from ortconv.executor.algorithms.sliding_window import Window, channels_first, held_along, to_last
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array

_BT = ((np.subtract, 0, 2), (np.add, 1, 2), (np.subtract, 2, 1), (np.subtract, 1, 3))
"""The transform of four elements: each result combines two of them."""

_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
_AT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)
_WEIGHTS, FROM_TILES = np.kron(_G, _G), np.kron(_AT, _AT)
"""(4, 16): transforms products of tiles back."""

_BLOCK_BYTES = 640 << 10
"""The approximate size of a block of rows of tiles; if it is larger, a quarter of the weights, which every block reads."""

_FEWEST_CHANNELS = 16
_FEWEST_PAIRS = 256
"""With fewer input or output channels, or a smaller product of the output channels and the fewer ones of both, the transforms cost
more than they save.
"""

_FEWEST_TILES = 32
"""With fewer tiles, reading the weights (16 numbers instead of 9) costs more than the saved multiplications."""

_EXACT_SUM = EXACT_SUM / 4
"""Multiples of a quarter up to this magnitude are exact in float32."""

_ROUNDED_UP = 1.001
"""A factor larger than all rounding errors of the bounds."""

Check = Callable[[Work, Array], Callable[[Array, Array], bool]]
"""For an image, the test of products (16, T, M) and of what they are transformed to. If it fails, the direct form must be used."""


def suits(w: Array, group: int) -> bool:
    """True for weights (M, C, 3, 3) whose convolution is faster this way."""
    m, c = w.shape[:2]
    enough = min(m, c) >= _FEWEST_CHANNELS and m * min(m, c) >= _FEWEST_PAIRS
    return group == 1 and w.shape[2:] == (3, 3) and enough and (w.dtype == np.float32 or w.dtype.kind in "iu")


def suits_window(w: Window, images: int) -> bool:
    """True for windows that this algorithm can compute, if there are enough of them."""
    tiles = images * prod(-(-size // 2) for size in w.output)
    return {*w.strides, *w.dilations} == {1} and min(*w.begin, *w.end) >= 0 and tiles >= _FEWEST_TILES


def transform_weights(w: Array) -> Array:
    """(M, C, 3, 3) to (16, C, M). Those of integers are multiples of a quarter."""
    m, c = w.shape[:2]
    return np.asarray(_WEIGHTS @ outputs_last(w).reshape(9, c * m)).reshape(16, c, m)


def are_finite(work: Work, x: Array) -> Callable[[Array, Array], bool]:
    """The `Check` of floats: a value that is not finite would spread over its tile."""
    return lambda products, y: has_finite_square(y.reshape(-1))


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


def convolver(
    weights: Callable[[], Array], w: Window, direct: Callable[[], Function], check: Check = are_finite
) -> Function:
    """A function of x (N, C, H, W) that convolves with transformed weights to (N, M, OH, OW), or with the direct form if the
    check fails. Its second argument may be contiguous memory (N, OH, OW, M) for the result.
    """

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        tiled, holds, failed = weights(), check(work, x), work.empty((1,), np.bool_)
        work.do(failed.fill, False)

        def combined(tiles: Array) -> Array:
            products = work.empty((*tiles.shape[:2], tiled.shape[2]))
            work.do(np.matmul, tiles, tiled, products)
            y = work.empty((4, products[0].size))
            work.do(np.matmul, products.reshape(16, -1).T, FROM_TILES.T, y.T)
            work.do(_flag_unless, holds, products, y, failed)
            return y

        out = work.empty((len(x), *w.output, tiled.shape[2])) if out is None else out
        with np.errstate(all="ignore"):
            _in_tiles(work, x, out, w, tiled.nbytes, combined)
        work.do(_directly_if, failed, direct, x, out)
        return channels_first(out)

    return recordable(run)


def _flag_unless(holds: Callable[[Array, Array], bool], products: Array, y: Array, failed: Array) -> None:
    if not holds(products, y):
        failed[0] = True


def _directly_if(failed: Array, direct: Callable[[], Function], x: Array, out: Array) -> None:
    if failed[0]:
        direct()(x, out)


def _in_tiles(
    work: Work, x: Array, out: Array, w: Window, weight_bytes: int, combined: Callable[[Array], Array]
) -> None:
    """Convolve (N, C, H, W), for a window of strides and dilations 1, to contiguous (N, OH, OW, M).

    `combined` computes (4, T * M) from transformed tiles (16, T, C).
    """
    n, c = x.shape[:2]
    (oh, ow), m = w.output, out.shape[-1]
    rows, columns = -(-oh // 2), -(-ow // 2)
    is_whole = (oh, ow) == (2 * rows, 2 * columns)
    whole = out if is_whole else work.empty((n, 2 * rows, 2 * columns, m))
    blocks = round(16 * 4 * rows * columns * max(c, m) / max(_BLOCK_BYTES, weight_bytes // 4))
    block = max(1, -(-rows // max(1, blocks)))
    if parts := spans(rows, block):
        held = work.empty((2 * (parts[0].stop - parts[0].start) + 2, 2, columns + 1, c))
        row_tile = RowTile(held.swapaxes(0, 1), [held_along(w, 1, columns + 1, first, 2) for first in range(2)], work)
        for image, target in zip(to_last(x), whole):
            by_tile = target.reshape(rows, 2, columns, 2, m)
            for tiles in parts:
                with work.scratch():
                    part = by_tile[tiles]
                    row_tile.load(image, 2 * tiles.start - w.begin[0], work)
                    y = combined(_transformed_tiles(work, held[: 2 * len(part) + 2]))
                    work.do(np.copyto, part, y.reshape(2, 2, len(part), columns, m).transpose(2, 0, 3, 1, 4))
    if not is_whole:
        work.do(np.copyto, out, whole[:, :oh, :ow])


def _transformed_tiles(work: Work, rows: Array) -> Array:
    """Padded rows (2 * R + 2, 2, columns + 1, C), even columns before odd ones, to (16, R * columns, C)."""
    count, columns, c = len(rows) // 2 - 1, rows.shape[2] - 1, rows.shape[3]
    tiles = work.empty((4, 4, count, columns, c))
    with work.scratch():
        by_row = work.empty((4, count, *rows.shape[1:]))
        _combine(work, [rows[k : k + 2 * count : 2] for k in range(4)], by_row)
        even, odd = by_row[:, :, 0], by_row[:, :, 1]
        _combine(work, [even[:, :, :-1], odd[:, :, :-1], even[:, :, 1:], odd[:, :, 1:]], tiles.swapaxes(0, 1))
    return tiles.reshape(16, -1, c)


def _combine(work: Work, parts: list[Array], out: Array) -> None:
    for (function, a, b), target in zip(_BT, out, strict=True):
        work.do(function, parts[a], parts[b], target)
