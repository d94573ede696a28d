"""Fast forms of normalizations of float32 rows. Statistics are products with a vector of ones."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import dot_of_rows
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array


def layer_normalization(
    work: Work, x: Array, scale: Array, b: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5, **options: Any
) -> Array | None:
    """Along the last axis."""
    return _normalized(work, x, scale, b, axis, epsilon, True, **options)


def rms_normalization(
    work: Work, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, **options: Any
) -> Array | None:
    """Along the last axis."""
    return _normalized(work, x, scale, None, axis, epsilon, False, **options)


def _normalized(
    work: Work,
    x: Array,
    scale: Array,
    b: Array | None,
    axis: int,
    epsilon: float,
    centers: bool,
    n_outputs: int = 1,
    stash_type: int = 1,
) -> Array | None:
    size = x.shape[-1] if x.ndim > 1 else 0
    is_float32 = all(v is None or v.dtype == np.float32 for v in (x, scale, b))
    if n_outputs > 1 or not is_float32 or axis not in (-1, x.ndim - 1) or not size:
        return None
    y, deviation = work.empty(x.shape), work.empty(x.shape[:-1])
    rows = x
    if centers:
        mean = work.empty((*x.shape[:-1], 1))
        work.do(np.matmul, x, _averaging(size), mean)
        work.do(np.subtract, x, mean, y)
        rows = y
    work.do(partial(dot_of_rows, out=deviation), rows, rows)
    work.do(np.multiply, deviation, np.asarray(1 / size, np.float32), deviation)
    work.do(np.add, deviation, np.asarray(epsilon, np.float32), deviation)
    work.do(np.sqrt, deviation, deviation)
    work.do(np.divide, rows, deviation[..., None], y)
    work.do(np.multiply, y, scale, y)
    if b is not None:
        work.do(np.add, y, b, y)
    return y


@cache
def _averaging(size: int) -> Array:
    """(size, 1): rows times this are their means."""
    return np.full((size, 1), 1 / size, np.float32)
