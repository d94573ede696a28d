"""Products of float32 rows with constant integer weights. The weights stay integers and are widened part by part.

Widening a part just before its product costs less than reading four times the bytes from memory. Small matrices, which stay in a
cache, are widened once.
"""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.gemm import contiguous
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array

_WIDENED_BYTES = 256 << 10
"""Bytes that are widened at once. They stay in the second cache level."""

_LARGEST_WIDE = 1 << 18
"""Number of elements up to which a matrix is kept as float32."""


def less_zero_point(q: Array, zero_point: Array | None) -> Array:
    """8-bit integers minus their zero point, which must broadcast, in the smallest type that can represent them."""
    if zero_point is None or not zero_point.any():
        return q
    return np.subtract(q, zero_point, dtype=np.int16)


class IntegerWeights:
    """A matrix (K, N) of 8- or 16-bit integers."""

    def __init__(self, w: Array) -> None:
        self._matrix = contiguous(w.astype(np.float32) if w.size <= _LARGEST_WIDE else w)

    def multiply(self, rows: Array, out: Array, work: Work = AT_ONCE) -> None:
        """out (R, N) = float32 rows (R, K) @ weights."""
        matrix = self._matrix
        depth, columns = matrix.shape
        if matrix.dtype == np.float32:
            work.do(np.matmul, rows, matrix, out)
            return
        parts = spans(columns, _WIDENED_BYTES // (4 * depth))
        with work.scratch():
            memory = work.empty((depth, parts[0].stop - parts[0].start))
            for part in parts:
                held = memory[:, : part.stop - part.start]
                work.do(np.copyto, held, matrix[:, part])
                work.do(np.matmul, rows, held, out[:, part])
