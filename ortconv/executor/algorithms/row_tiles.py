"""Tiles of image rows, copied in the form that convolutions read: padded, and small enough to stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.executor.algorithms.sliding_window import Place
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array

TILE_BYTES = 1 << 20
"""Bytes that a tile may read and write."""


class RowTile:
    """Copies of the same rows, (copies, rows, columns, C) in any memory order.

    `places` has, for each copy, a slice of its columns and the slice of image columns that is copied there.
    """

    def __init__(self, copies: Array, places: Sequence[Place], work: Work = AT_ONCE) -> None:
        self.copies, self.places = copies, places
        for copy, (target, _) in zip(copies, places, strict=True):
            for beside in (copy[:, : target.start], copy[:, target.stop :]):
                if beside.size:
                    work.do(beside.fill, 0)

    def load(self, image: Array, first: int, work: Work = AT_ONCE) -> None:
        """Load rows of an image (H, W, C) from `first` on. Rows outside the image are zero."""
        count = self.copies.shape[1]
        begin = min(max(-first, 0), count)
        end = max(min(len(image) - first, count), begin)
        for outside in (self.copies[:, :begin], self.copies[:, end:]):
            if outside.size:
                work.do(outside.fill, 0)
        rows = image[begin + first : end + first]
        for copy, (target, source) in zip(self.copies, self.places, strict=True):
            work.do(np.copyto, copy[begin:end, target], rows[:, source])


def rows_per_tile(rows: int, bytes_per_row: int) -> int:
    """Output rows per tile."""
    return max(1, min(rows, TILE_BYTES // max(1, bytes_per_row)))
