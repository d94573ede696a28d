"""Products of float32 rows with constant integer weights. The weights stay integers and are widened part by part.

Widening a part just before its product costs less than reading four times the bytes from memory. Weights that fit the last cache
level are widened once.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from weakref import finalize

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.work import AT_ONCE, Finish, Work, copy_to
from ortconv.ir.tensor import Array

_WIDENED_BYTES = 256 << 10
"""Bytes that are widened at once. They stay in the second cache level."""

_MOST_KEPT_BYTES = 16 << 20
"""Half of a common last cache level."""


def less_zero_point(q: Array, zero_point: Array | None) -> Array:
    """8-bit integers minus their zero point, which must broadcast, in the smallest type that can represent them."""
    if zero_point is None or not zero_point.any():
        return q
    return np.subtract(q, zero_point, dtype=np.int16)


def leave(work: Work, part: Array) -> None:
    """A `Finish` that does nothing."""


class _Room:
    """Counts the bytes of widened weights in the process."""

    def __init__(self) -> None:
        self._lock, self._taken = Lock(), 0
        self.left = deque[int]()
        """Sizes that were released. Finalizers append to it without taking the lock."""

    def take(self, size: int) -> bool:
        with self._lock:
            while self.left:
                self._taken -= self.left.popleft()
            fits = self._taken + size <= _MOST_KEPT_BYTES
            self._taken += size * fits
        return fits


_room = _Room()


def widened(w: Array) -> Array:
    """Integers as float32 if the limit on widened weights allows it; else unchanged."""
    size = 4 * w.size
    if not _room.take(size):
        return w
    wide = w.astype(np.float32)
    finalize(wide, _room.left.append, size).atexit = False
    return wide


def as_float32(work: Work, w: Array) -> Array:
    """The weights if they are float32 already, else a copy in memory of the work."""
    if w.dtype == np.float32:
        return w
    held = work.empty(w.shape)
    work.do(copy_to, w, held)
    return held


class IntegerWeights:
    """A matrix (K, N) of 8- or 16-bit integers."""

    def __init__(self, w: Array) -> None:
        self.shape = w.shape
        self._matrix = widened(np.ascontiguousarray(w))

    def multiply(self, rows: Array, out: Array, finish: Finish, work: Work = AT_ONCE) -> None:
        """out (R, N) = float32 rows (R, K) @ weights, then finished in parts."""
        matrix = self._matrix
        depth, columns = matrix.shape
        most = max(1, _WIDENED_BYTES // max(1, 4 * depth))
        with work.scratch():
            if matrix.dtype == np.float32 or columns <= most:
                held = as_float32(work, matrix)
                for part in spans(len(rows), max(1, BLOCK // max(1, columns))):
                    work.do(np.matmul, rows[part], held, out[part])
                    finish(work, out[part])
                return
            if parts := spans(columns, most):
                memory = work.empty((depth, parts[0].stop - parts[0].start))
                for part in parts:
                    held = memory[:, : part.stop - part.start]
                    work.do(copy_to, matrix[:, part], held)
                    work.do(np.matmul, rows, held, out[:, part])
            finish(work, out)
