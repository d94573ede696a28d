"""Sums and means of floats over neighboring axes as products with ones, which outrun reductions of short rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ortconv.executor.algorithms.blockwise import ones
from ortconv.executor.algorithms.sliding_window import to_last
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array

Axes = tuple[int, ...]

_ROW_LIMIT = 4096
"""Longer rows are left to the pairwise summation of numpy, which is more accurate."""

_FEWEST_TOGETHER = 256
"""Elements that a product must add up: products of less are many."""


def reduced_axes(x: Array, axes: Sequence[int] | None, keep_if_empty: int) -> Axes:
    """The axes that a reduction is over, not negative."""
    if axes is not None and len(axes):
        return tuple(a + x.ndim if a < 0 else a for a in axes)
    return () if keep_if_empty else tuple(range(x.ndim))


def _reduction(averages: bool) -> Callable[..., Array | None]:
    def run(
        work: Work,
        x: Array,
        axes_input: Array | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Array | None:
        given = axes if axes_input is None else axes_input.reshape(-1).tolist()
        over = reduced_axes(x, given, noop_with_empty_axes)
        total = _products_with_ones(work, x, over)
        if total is None:
            return None
        if averages:
            work.do(np.divide, total, np.asarray(math.prod(x.shape[a] for a in over), x.dtype), total)
        return total.reshape([1 if i in over else n for i, n in enumerate(x.shape) if keepdims or i not in over])

    return run


REDUCTIONS = {"ReduceSum": _reduction(False), "ReduceMean": _reduction(True)}


def _products_with_ones(work: Work, x: Array, axes: Axes) -> Array | None:
    """(outer, columns) sums of floats over neighboring axes; else None."""
    if x.dtype not in (np.float32, np.float64) or not axes or not x.size:
        return None
    if not x.flags.c_contiguous and sorted(axes) == list(range(2, x.ndim)):
        x, axes = to_last(x), tuple(range(1, x.ndim - 1))
    first, end = min(axes), max(axes) + 1
    length, columns = math.prod(x.shape[first:end]), math.prod(x.shape[end:])
    if not x.flags.c_contiguous or end - first > len(axes) or length > _ROW_LIMIT:
        return None
    if columns > 1 and length * columns < _FEWEST_TOGETHER:
        return None
    out = work.empty((x.size // (length * columns), columns), x.dtype)
    if columns == 1:
        work.do(np.dot, x.reshape(-1, length), ones(length, x.dtype), out.reshape(-1))
    else:
        work.do(np.matmul, ones(length, x.dtype), x.reshape(-1, length, columns), out)
    return out
