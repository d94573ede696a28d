"""The core of attention, computed block by block in the cache: products with the keys, softmax, products with the values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from ortconv.executor.algorithms.blockwise import ones
from ortconv.executor.algorithms.fallback import Fallback, has_finite_square
from ortconv.executor.replay.numerics import Exponential, fast_exponential
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array

_BLOCK = 1 << 18
"""Scores per block, unless that leaves too few rows for a fast product."""

_FEWEST_ROWS = 64

_FLOAT32 = np.dtype(np.float32)


def attended(
    work: Work, fallback: Fallback, q: Array, kt: Array, v: Array, factor: float, summands: Sequence[Array]
) -> Array | None:
    """softmax(q @ kt * factor + summands) @ v, for q (B, H, L, D), kt (B, H, D, K) and v (B, H, K, E) of float32.

    The memory of the result is laid out as (B, L, H, E). None if shapes or types do not suit. The fallback is set if results are
    not all finite: then the operators must compute them.
    """
    if not (q.dtype == kt.dtype == v.dtype == _FLOAT32) or any(x.dtype != _FLOAT32 for x in summands):
        return None
    shape = _shape_of_scores(q.shape, kt.shape, v.shape, tuple([x.shape for x in summands]))
    if shape is None:
        return None
    batch, heads, length, _ = shape
    memory = work.empty((batch, length, heads, v.shape[3]))
    out = memory.transpose(0, 2, 1, 3)
    # The fast exponential is slow for -inf, which masks hold.
    exponential, unit = (np.exp, 1.0) if summands else fast_exponential()
    scale = np.asarray(factor * unit, np.float32)
    with work.scratch():
        wide = [np.broadcast_to(x, shape) for x in summands]
        if prod(shape) <= _BLOCK:
            columns, scores = work.empty(kt.shape), work.empty((*out.shape[:3], shape[3]))
            work.do(np.multiply, kt, scale, columns)
            _block(work, fallback, q, columns, v, wide, exponential, scores, out)
        else:
            work.do(_in_blocks, fallback, q, kt, v, scale, wide, exponential, out)
    work.do(fallback.unless_finite, memory)
    return out


@lru_cache(256)
def _shape_of_scores(
    q: tuple[int, ...], kt: tuple[int, ...], v: tuple[int, ...], summands: tuple[tuple[int, ...], ...]
) -> tuple[int, ...] | None:
    """The shape of the scores; None if shapes do not match, or a tensor is empty."""
    if not len(q) == len(kt) == len(v) == 4 or kt[:3] != (*q[:2], q[3]) or v[:3] != (*q[:2], kt[3]):
        return None
    shape = (*q[:3], kt[3])
    fits = all(len(x) <= 4 and all(n in (1, m) for n, m in zip(x[::-1], shape[::-1])) for x in summands)
    return shape if fits and all(map(prod, (q, kt, v))) else None


def _in_blocks(
    fallback: Fallback,
    q: Array,
    kt: Array,
    v: Array,
    scale: Array,
    summands: Sequence[Array],
    exponential: Exponential,
    out: Array,
) -> None:
    batch, heads, length, _ = q.shape
    keys = v.shape[2]
    together = _BLOCK // (length * keys)
    if together > 1:
        for b, group in np.ndindex(batch, -(-heads // together)):
            some = b, slice(group * together, (group + 1) * together)
            columns, masks = np.multiply(kt[some], scale, order="C"), [x[some] for x in summands]
            scores = np.empty((len(q[some]), length, keys), np.float32)
            _block(AT_ONCE, fallback, q[some], columns, v[some], masks, exponential, scores, out[some])
        return
    # Blocks of nearly the same size.
    rows = -(-length // -(-length // max(_FEWEST_ROWS, _BLOCK // keys)))
    scores = np.empty((rows, keys), np.float32)
    for head in np.ndindex(batch, heads):
        columns, values = np.multiply(kt[head], scale, order="C"), np.ascontiguousarray(v[head])
        for start in range(0, length, rows):
            i = (*head, slice(start, start + rows))
            part, masks = scores[: length - start], [x[i] for x in summands]
            _block(AT_ONCE, fallback, q[i], columns, values, masks, exponential, part, out[i])


def _block(
    work: Work,
    fallback: Fallback,
    q: Array,
    kt: Array,
    v: Array,
    summands: Sequence[Array],
    exponential: Exponential,
    scores: Array,
    out: Array,
) -> None:
    """Fill `out`; the fallback is set if a row has no finite sum. `scores` is scratch memory."""
    keys = kt.shape[-1]
    rows = scores.reshape(-1, keys)
    sums, shares = work.empty((len(rows),)), work.empty((len(rows),))
    _fill(work, scores, q, kt, summands)
    work.do(exponential, scores, scores)
    work.do(np.dot, rows, ones(keys, _FLOAT32), sums)
    work.do(np.reciprocal, sums, shares)
    work.do(fallback.unless, _are_exact, scores, q, kt, summands, exponential, sums, shares)
    shares = shares.reshape(*scores.shape[:-1], 1)
    if keys <= v.shape[-1]:
        work.do(np.multiply, scores, shares, scores)
        work.do(np.matmul, scores, v, out)
    else:
        work.do(np.matmul, scores, v, out)
        if out.ndim > 2:  # in the order of memory
            out, shares = out.swapaxes(-3, -2), shares.swapaxes(-3, -2)
        work.do(np.multiply, out, shares, out)


def _are_exact(
    scores: Array,
    q: Array,
    kt: Array,
    summands: Sequence[Array],
    exponential: Exponential,
    sums: Array,
    shares: Array,
) -> bool:
    """False if a row has no finite sum. If squares are out of range, rows are first shifted by their maximum."""
    if has_finite_square(shares) and has_finite_square(sums):
        return True
    _fill(AT_ONCE, scores, q, kt, summands)
    np.subtract(scores, scores.max(axis=-1, keepdims=True), scores)
    exponential(scores, scores)
    rows = scores.reshape(-1, scores.shape[-1])
    np.dot(rows, ones(rows.shape[1], _FLOAT32), sums)
    np.reciprocal(sums, shares)
    return bool(sums.min() >= 0.5)


def _fill(work: Work, scores: Array, q: Array, kt: Array, summands: Sequence[Array]) -> None:
    work.do(np.matmul, q, kt, scores)
    for x in summands:
        work.do(np.add, scores, x, scores)
