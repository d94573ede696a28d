"""Depthwise convolution of planes, channels last: one multiply-add over a tile of rows for all kernel elements."""

from __future__ import annotations

from functools import partial
from math import gcd, isqrt
from typing import NamedTuple

import numpy as np

from ortconv.executor.algorithms.row_tiles import RowTile, rows_per_tile
from ortconv.executor.algorithms.sliding_window import Window, channels_first, held_along, strided, to_last
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.numerics import internal
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array

_LONG_RUN = 1 << 10
"""Elements that make the innermost loop long enough. Longer rows of weights only fill the cache."""


class _Columns(NamedTuple):
    """Kernel columns that read the same copy of the image's columns: columns that are a stride apart."""

    taps: slice
    first: int
    """The column of the copy that the first of these kernel columns reads for the first output."""
    step: int
    """The distance to the column that the next kernel column reads."""


def depthwise(weights: Array, w: Window) -> Function:
    """A function of x (N, C, H, W) that convolves with weights (kernel elements, C) to (N, C, output...)."""
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = w.kernel, w.strides, w.dilations, w.output
    c, dtype = weights.shape[1], weights.dtype
    # For several columns at once, so that numpy's innermost loop is long.
    together = next((n for n in _divisors(ow) if n * c >= _LONG_RUN), ow)
    run_length = together * c
    repeated = np.tile(weights, (1, together)).reshape(kh, kw, run_length)
    read = _copies_read(kw, sw, dw)
    width = ow + (kw - 1) * dw // sw
    places = [held_along(w, 1, width, phase, sw) for phase in read]
    most = rows_per_tile(oh, (sh * len(places) * width + ow) * c * dtype.itemsize)

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        out = work.empty((len(x), oh, ow, c), dtype) if out is None else out
        images = to_last(x)
        if parts := spans(oh, most):
            count = parts[0].stop - parts[0].start
            held = work.empty(((count - 1) * sh + (kh - 1) * dh + 1, len(places), width, c), dtype)
            copies = held.swapaxes(0, 1)
            row_tile = RowTile(copies, places, work)
            terms = [work.empty((count, ow // together, run_length), dtype) for _ in places[1:]]
            by_row, by_copy, by_column, item = held.strides
            steps = (sh * by_row, run_length * item, item)
            taps = [
                strided(
                    held,
                    (kh, len(range(kw)[columns.taps]), count, ow // together, run_length),
                    (dh * by_row, columns.step * by_column, *steps),
                    copy * by_copy + columns.first * by_column,
                )
                for copy, columns in enumerate(read.values())
            ]
            for image, results in zip(images, out.reshape(len(x), oh, ow // together, run_length), strict=True):
                for rows in parts:
                    row_tile.load(image, rows.start * sh - w.begin[0], work)
                    part = results[rows]
                    sums = [part, *(term[: len(part)] for term in terms)]
                    for columns, read_by_taps, total in zip(read.values(), taps, sums, strict=True):
                        by_taps = repeated[:, columns.taps]
                        work.do(partial(_einsum, "ijhwx,ijx->hwx", read_by_taps[:, :, : len(part)], by_taps, out=total))
                    for term in sums[1:]:
                        work.do(np.add, part, term, part)
        return channels_first(out)

    return recordable(run)


def _divisors(n: int) -> list[int]:
    """The divisors of n in ascending order. Of n above 2**32, only those up to 2**16 and n divided by one of them."""
    small = [d for d in range(1, min(isqrt(n), 1 << 16) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _copies_read(size: int, stride: int, dilation: int) -> dict[int, _Columns]:
    """The copies that kernel columns read, by the first column. Each copy consists of padded columns that are a stride apart."""
    period = stride // gcd(stride, dilation)
    return {
        tap * dilation % stride: _Columns(
            slice(tap, size, period), tap * dilation // stride, period * dilation // stride
        )
        for tap in range(min(period, size))
    }


_einsum = internal("_multiarray_umath", "c_einsum", np.einsum)
"""The C function behind np.einsum, without its parsing in Python."""
