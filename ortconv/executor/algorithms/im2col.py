"""Convolutions as products with unfolded windows, a tile of the image at a time.

Each function returns a function of a Work, x (N, C, spatial...) and out (N, output..., M). It writes windows of x @
weights (kernel elements * C, M) to out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import mul

import numpy as np

from ortconv.executor.algorithms import row_tiles
from ortconv.executor.algorithms.gemm import matrix
from ortconv.executor.algorithms.row_tiles import RowTile, rows_per_tile
from ortconv.executor.algorithms.sliding_window import Window, pad_channels_last, reached, strided, to_last
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array

Unfolded = Callable[[Work, Array, Array], None]

FEW_CHANNELS = 4
"""Images of at most this many channels are unfolded channels first."""

_LONG_ROW = 16


def unfolded(weights: Array, w: Window) -> Unfolded:
    if all(w.output) and len(weights) // prod(w.kernel) <= FEW_CHANNELS and _overlaps_vertically(w):
        return _of_few_channels(weights, w)
    multiply, pixels, (k, m) = matrix(weights).write, prod(w.output[1:]), weights.shape

    def run(work: Work, x: Array, out: Array) -> None:
        windows, count = _runs(pad_channels_last(x, w, work), w), len(x) * w.output[0]
        if count * pixels * k * x.itemsize <= row_tiles.TILE_BYTES:
            windows, out = (work.reshaped(v, (1, count, *v.shape[2:])) for v in (windows, out))
        block = rows_per_tile(windows.shape[1], pixels * (k + m) * x.itemsize)
        if parts := spans(windows.shape[1], block):
            rows = work.empty((parts[0].stop - parts[0].start, pixels, k), x.dtype)
            for image, target in zip(windows, out, strict=True):
                for part in parts:
                    held = rows[: part.stop - part.start]
                    work.do(np.copyto, held.reshape(len(held), *image.shape[1:]), image[part])
                    multiply(held.reshape(len(held) * pixels, k), target[part].reshape(len(held) * pixels, m), work)

    return run


def _runs(x: Array, w: Window) -> Array:
    """View (N, output..., kernel..., run) of a contiguous, padded channels-last array; runs are as long as possible."""
    by_window, by_tap = ([*map(mul, x.strides[1:-1], steps)] for steps in (w.strides, w.dilations))
    kernel, run = w.kernel, x.shape[-1]
    if w.dilations[-1] == 1:
        kernel, by_tap, run = kernel[:-1], by_tap[:-1], kernel[-1] * run
    return strided(x, (len(x), *w.output, *kernel, run), (x.strides[0], *by_window, *by_tap, x.itemsize))


def _overlaps_vertically(w: Window) -> bool:
    """True for long rows of an image that several windows share."""
    return len(w.kernel) == 2 and w.dilations[0] == 1 and w.kernel[0] > w.strides[0] and w.output[1] >= _LONG_ROW


def _of_few_channels(weights: Array, w: Window) -> Unfolded:
    """Unfold only along the width, channels first; the rows of vertically overlapping windows are strided views of that copy."""
    (kh, kw), sh, (oh, ow), (k, m) = w.kernel, w.strides[0], w.output, weights.shape
    c = k // (kh * kw)
    most = rows_per_tile(oh, (sh * kw * c + m) * ow * weights.itemsize)
    places, multiply = reached(w, 1), matrix(weights).write

    def run(work: Work, x: Array, out: Array) -> None:
        x = x if x.strides[-1] == x.itemsize else work.contiguous(x)
        if parts := spans(oh, most):
            count = parts[0].stop - parts[0].start
            held = work.empty(((count - 1) * sh + kh, kw, c, ow), x.dtype)
            row_tile = RowTile(held.transpose(1, 0, 3, 2), places, work)
            _, by_row, by_column, by_element = row_tile.copies.strides
            windows = strided(held, (count, ow, k), (sh * by_row, by_column, by_element))
            for image, target in zip(to_last(x), out, strict=True):
                for part in parts:
                    row_tile.load(image, part.start * sh - w.begin[0], work)
                    multiply(windows[: part.stop - part.start], target[part], work)

    return run
