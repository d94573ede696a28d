"""Products of float32 rows with constant integer weights, which stay in their few bytes and are widened a piece at a time.

To widen what is about to be multiplied costs less than to read four times the bytes from beyond the cache. What finds room there is
widened once.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from threading import Lock
from weakref import finalize

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK
from ortconv.executor.algorithms.gemm import largest_piece, product
from ortconv.executor.replay.work import AT_ONCE, Finish, Work, copy_to, spans
from ortconv.ir.tensor import Array

_WIDENED_BYTES = 256 << 10
"""About so much is widened at once: it stays in the second cache level."""

_MOST_WIDENED_BYTES = 1 << 22
"""Panels of other widths are better than one that is larger than this."""

_MOST_KEPT_BYTES = 16 << 20
"""Half of a common last cache level."""

_PANELS = ((64, 24), (32, 8), (16, 8))
"""Widths of panels of weights, the best first, and the fewest rows that must fit beside them into a piece."""

_ENOUGH_ROWS = 64
"""Rows beside which a whole matrix is as good as panels of it."""


def less_zero_point(q: Array, zero_point: Array | None) -> Array:
    """8-bit integers less their zero point, which must broadcast, in the smallest type that holds them."""
    if zero_point is None or not zero_point.any():
        return q
    return np.subtract(q, zero_point, dtype=np.int16)


def leave(work: Work, part: Array) -> None:
    """Finishes parts that are to stay as they are."""


class _Room:
    """Bytes of widened weights that are held in the process."""

    def __init__(self) -> None:
        self._lock, self._taken = Lock(), 0
        self.left = deque[int]()
        """What is free again. Whoever says so, at any time, waits for nobody."""

    def take(self, size: int) -> bool:
        with self._lock:
            while self.left:
                self._taken -= self.left.popleft()
            fits = self._taken + size <= _MOST_KEPT_BYTES
            self._taken += size * fits
        return fits


_room = _Room()


def widened(w: Array) -> Array:
    """Integers as float32 to be kept, if there is room; else as they are."""
    size = 4 * w.size
    if not _room.take(size):
        return w
    wide = w.astype(np.float32)
    finalize(wide, _room.left.append, size).atexit = False
    return wide


def as_float32(work: Work, w: Array) -> Array:
    """Weights themselves where they are kept wide, else in memory of the work."""
    if w.dtype == np.float32:
        return w
    held = work.empty(w.shape)
    work.do(copy_to, w, held)
    return held


class IntegerWeights:
    """A matrix (K, N) of 8- or 16-bit integers."""

    def __init__(self, w: Array) -> None:
        depth, columns = self.shape = w.shape
        self._width = panel_width(depth, columns)
        panels = w.reshape(depth, columns // self._width, self._width).swapaxes(0, 1)
        self._panels = widened(np.ascontiguousarray(panels))
        self._count = max(1, _WIDENED_BYTES // max(1, 4 * depth * self._width))

    @cached_property
    def _columns(self) -> Array:
        """(N, K), for one row."""
        return np.ascontiguousarray(self._panels.swapaxes(1, 2).reshape(self.shape[::-1]))

    def multiply(self, rows: Array, out: Array, finish: Finish, work: Work = AT_ONCE) -> None:
        """out (R, N) = float32 rows (R, K) @ weights, then finished in parts."""
        is_wide = self._panels.dtype == np.float32
        if len(rows) == 1 and not is_wide:
            self._multiply_one(rows, out, work)
            finish(work, out)
            return
        panels, width = self._panels, self._width
        count = max(1, min(self._count, len(panels)))
        with work.scratch():
            if is_wide or count == len(panels):
                held = as_float32(work, panels)
                block = max(1, BLOCK // max(1, out.shape[1]))
                if parts := spans(len(rows), block):
                    for part in parts:
                        by_panels(rows[part], held, out[part], work)
                        finish(work, out[part])
                return
            if parts := spans(len(panels), count):
                held = work.empty(panels[parts[0]].shape)
                for part in parts:
                    wide = held[: part.stop - part.start]
                    work.do(copy_to, panels[part], wide)
                    by_panels(rows, wide, out[:, part.start * width : part.stop * width], work)
            finish(work, out)

    def _multiply_one(self, row: Array, out: Array, work: Work) -> None:
        columns = self._columns
        count, depth = columns.shape
        with work.scratch():
            if parts := spans(count, max(1, _WIDENED_BYTES // max(1, 4 * depth))):
                held = work.empty((parts[0].stop - parts[0].start, depth))
                for part in parts:
                    wide = held[: part.stop - part.start]
                    work.do(copy_to, columns[part], wide)
                    work.do(np.matmul, row, wide.T, out[:, part])


def panel_width(depth: int, columns: int) -> int:
    """The width of the panels into which weights (depth, columns) are best cut; all columns where none is better."""
    most = largest_piece() // max(depth, 1)
    if columns and most // columns < _ENOUGH_ROWS:
        width = next((n for n, fewest in _PANELS if columns % n == 0 and most // n >= fewest), columns)
        if 4 * depth * width <= _MOST_WIDENED_BYTES:
            return width
        return next((n for n in range(_PANELS[0][0], _PANELS[-1][0], -1) if columns % n == 0), width)
    return max(columns, 1)


def by_panels(rows: Array, panels: Array, out: Array, work: Work) -> None:
    """out (R, n * width) = rows (R, K) times panels (n, K, width) side by side: all rows by one after the other."""
    count, _, width = panels.shape
    product(rows, panels, out.reshape(len(rows), count, width).swapaxes(0, 1), work)
