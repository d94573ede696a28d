"""The core of attention, computed block by block in the cache: products with the keys, softmax, products with the values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortconv.executor.algorithms.blockwise import softmax
from ortconv.executor.algorithms.steps import blocks_of, broadcasts
from ortconv.executor.replay.numerics import f32, fast_exponential
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array

_BLOCK = 1 << 18
"""Scores per block, unless that leaves too few rows for a fast product."""

_FEWEST_ROWS = 64


def attended(work: Work, q: Array, kt: Array, v: Array, factor: float, summands: Sequence[Array]) -> Array | None:
    """softmax(q @ kt * factor + summands) @ v, for q (B, H, L, D), kt (B, H, D, K) and v (B, H, K, E) of float32.

    The memory of the result is laid out as (B, L, H, E). None if shapes or types do not suit, or a tensor is empty.
    """
    shape = (*q.shape[:3], kt.shape[-1])
    if not _suit(q, kt, v) or not all(x.dtype == np.float32 and broadcasts(x.shape, shape) for x in summands):
        return None
    batch, heads, length, keys = shape
    # The fast exponential is slow for -inf, which masks hold.
    normalize = softmax(np.exp, 1.0) if summands else softmax(*fast_exponential())
    out = work.empty((batch, length, heads, v.shape[3])).transpose(0, 2, 1, 3)
    wide = [np.broadcast_to(x, shape) for x in summands]
    parts = list(blocks_of(shape, max(_BLOCK, _FEWEST_ROWS * keys), in_rows=True))
    with work.scratch():
        columns, held = work.empty(kt.shape), work.empty((*q[parts[0]].shape[:-1], keys))
        work.do(np.multiply, kt, f32(factor), columns)
        for part in parts:
            scores, heads_of_part = held[: len(q[part])], part[:2]
            work.do(np.matmul, q[part], columns[heads_of_part], scores)
            for x in wide:
                work.do(np.add, scores, x[part], scores)
            with work.scratch():
                normalize(work, scores, scores)
            work.do(np.matmul, scores, v[heads_of_part], out[part])
    return out


def _suit(q: Array, kt: Array, v: Array) -> bool:
    """True for matching shapes of float32 without empty tensors."""
    if not q.dtype == kt.dtype == v.dtype == np.float32 or not q.ndim == kt.ndim == v.ndim == 4:
        return False
    fits = kt.shape[:3] == (*q.shape[:2], q.shape[3]) and v.shape[:3] == (*q.shape[:2], kt.shape[3])
    return fits and all(map(prod, (q.shape, kt.shape, v.shape)))
