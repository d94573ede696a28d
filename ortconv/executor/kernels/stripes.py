"""Stripes of image rows, brought to where convolutions read them: padded, small enough to stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.executor.kernels.products import product
from ortconv.executor.kernels.windows import Place
from ortconv.executor.work import AT_ONCE, Finish, Work, copy_runs, copy_to
from ortconv.ir.tensor import Array

STRIPE_BYTES = 1 << 20
"""What a stripe may read and write."""


class Stripe:
    """Copies of the same rows, (copies, rows, columns, C) in any memory order.

    Each has its place: columns of the copy, and the columns of the image that belong there.
    """

    def __init__(self, copies: Array, places: Sequence[Place], work: Work = AT_ONCE) -> None:
        self.copies, self.places = copies, places
        self._pad_columns(slice(None), work)

    def load(self, image: Array, first: int, work: Work = AT_ONCE, shift: int | None = None) -> None:
        """Bring rows of an image (H, W, C) from `first` on; those that lie outside are zero.

        `shift`: so many rows further down than the last time, if that was the same image.
        """
        self._load(image, first, 0, work)

    def _load(self, image: Array, first: int, kept: int, work: Work) -> slice:
        """The same behind rows that are there already. Which ones have been brought of the image."""
        count = self.copies.shape[1]
        begin = min(max(-first, kept), count)
        end = max(min(len(image) - first, count), begin)
        for outside in (self.copies[:, kept:begin], self.copies[:, end:]):
            if outside.size:
                work.do(outside.fill, 0)
        rows = image[begin + first : end + first]
        for copy, (target, source) in zip(self.copies, self.places, strict=True):
            self._write(rows[:, source], copy[begin:end, target], source.step, work)
        return slice(begin, end)

    def _write(self, rows: Array, target: Array, step: int, work: Work) -> None:
        whole = step == 1 or rows.strides[-1] != rows.itemsize or target.strides[-1] != target.itemsize
        work.do(copy_to if whole else copy_runs, rows, target)

    def _pad_columns(self, rows: slice, work: Work) -> None:
        for copy, (target, _) in zip(self.copies, self.places, strict=True):
            for beside in (copy[rows, : target.start], copy[rows, target.stop :]):
                if beside.size:
                    work.do(beside.fill, 0)


class ProductStripe(Stripe):
    """Rows that a pointwise convolution makes of an image: they are made where they are read.

    The copies lie in memory row by row. The matrix (K, C) is what pixels are multiplied by before `finish`.
    """

    def __init__(self, copies: Array, places: Sequence[Place], matrix: Array, finish: Finish, work: Work) -> None:
        super().__init__(copies, places, work)
        self._matrix, self._finish = matrix, finish

    def load(self, image: Array, first: int, work: Work = AT_ONCE, shift: int | None = None) -> None:
        """Of an image (H, W, K). What there is since the last time is kept."""
        kept = 0 if shift is None else max(0, self.copies.shape[1] - shift)
        if kept:
            work.do(copy_to, self.copies[:, shift:], self.copies[:, :kept])
        made = self._load(image, first, kept, work)
        if made.stop > made.start:
            self._finish(work, self.copies.swapaxes(0, 1)[made])
            self._pad_columns(made, work)

    def _write(self, rows: Array, target: Array, step: int, work: Work) -> None:
        if target.size:
            product(rows, self._matrix, target, work)


def rows_per_stripe(rows: int, bytes_per_row: int) -> int:
    """How many of the rows of an output one stripe makes."""
    return max(1, min(rows, STRIPE_BYTES // max(1, bytes_per_row)))
