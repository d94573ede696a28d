"""The core of attention, block by block in cache: products with the keys, softmax, products with the values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import isfinite, prod

import numpy as np

from ortconv.executor.kernels.exponential import Exponential, fast_exponential
from ortconv.executor.kernels.products import product
from ortconv.executor.threads import each
from ortconv.ir.tensor import Array

_BLOCK = 1 << 18
"""Scores in a block, where that leaves enough rows for a fast product."""

_FEWEST_ROWS = 64

_FLOAT32 = np.dtype(np.float32)


def attend(q: Array, kt: Array, v: Array, factor: float, summands: Sequence[Array]) -> Array | None:
    """softmax(q @ kt * factor + summands) @ v, for q (B, H, L, D), kt (B, H, D, K) and v (B, H, K, E) of float32.

    None where shapes do not go together like this, or results are not all finite: then the operators must say what comes out. The
    memory of the result is laid out as (B, L, H, E).
    """
    if not (q.dtype == kt.dtype == v.dtype == _FLOAT32) or any(x.dtype != _FLOAT32 for x in summands):
        return None
    shape = _shape_of_scores(q.shape, kt.shape, v.shape, tuple([x.shape for x in summands]))
    if shape is None:
        return None
    batch, heads, length, _ = shape
    memory = np.empty((batch, length, heads, v.shape[3]), np.float32)
    out = memory.transpose(0, 2, 1, 3)
    # The fast exponential takes long for what is hidden by -inf.
    exponential, unit = (np.exp, 1.0) if summands else fast_exponential()
    scale = np.asarray(factor * unit, np.float32)
    if prod(shape) <= _BLOCK:
        scores = np.empty(shape, np.float32)
        done = _block(q, np.multiply(kt, scale, order="C"), v, summands, exponential, scores, out)
    else:
        done = _in_blocks(q, kt, v, scale, [np.broadcast_to(x, shape) for x in summands], exponential, out)
    return out if done and _has_finite_square(memory.reshape(-1)) else None


@lru_cache(256)
def _shape_of_scores(
    q: tuple[int, ...], kt: tuple[int, ...], v: tuple[int, ...], summands: tuple[tuple[int, ...], ...]
) -> tuple[int, ...] | None:
    """None where shapes do not go together, or something is empty."""
    if not len(q) == len(kt) == len(v) == 4 or kt[:3] != (*q[:2], q[3]) or v[:3] != (*q[:2], kt[3]):
        return None
    shape = (*q[:3], kt[3])
    fits = all(len(x) <= 4 and all(n in (1, m) for n, m in zip(x[::-1], shape[::-1])) for x in summands)
    return shape if fits and all(map(prod, (q, kt, v))) else None


def _has_finite_square(x: Array) -> bool:
    return isfinite(np.dot(x, x))


def _in_blocks(
    q: Array, kt: Array, v: Array, scale: Array, summands: Sequence[Array], exponential: Exponential, out: Array
) -> bool:
    batch, heads, length, _ = q.shape
    keys = v.shape[2]
    together = _BLOCK // (length * keys)
    if together > 1:

        def some_heads(i: tuple[int, slice]) -> bool:
            columns, masks = np.multiply(kt[i], scale, order="C"), [x[i] for x in summands]
            scores = np.empty((len(q[i]), length, keys), np.float32)
            return _block(q[i], columns, v[i], masks, exponential, scores, out[i])

        return all(
            each(some_heads, [(b, slice(h, h + together)) for b in range(batch) for h in range(0, heads, together)])
        )
    # Blocks of nearly the same size.
    rows = -(-length // -(-length // max(_FEWEST_ROWS, _BLOCK // keys)))

    def one_head(head: tuple[int, int]) -> bool:
        columns, values = np.multiply(kt[head], scale, order="C"), np.ascontiguousarray(v[head])
        scores = np.empty((rows, keys), np.float32)
        for start in range(0, length, rows):
            i = (*head, slice(start, start + rows))
            part, masks = scores[: length - start], [x[i] for x in summands]
            if not _block(q[i], columns, values, masks, exponential, part, out[i]):
                return False
        return True

    return all(each(one_head, [(b, h) for b in range(batch) for h in range(heads)]))


def _block(
    q: Array, kt: Array, v: Array, summands: Sequence[Array], exponential: Exponential, scores: Array, out: Array
) -> bool:
    """Fill `out`; False where a row has no finite sum. `scores` is scratch memory."""
    keys = kt.shape[-1]
    rows, ones = scores.reshape(-1, keys), _ones(keys)
    _fill(scores, q, kt, summands)
    exponential(scores, scores)
    sums: Array = np.dot(rows, ones)
    shares = np.reciprocal(sums)
    # Where squares are out of range, rows are shifted by their maximum, to be exact enough.
    if not (_has_finite_square(shares) and _has_finite_square(sums)):
        _fill(scores, q, kt, summands)
        np.subtract(scores, scores.max(axis=-1, keepdims=True), scores)
        exponential(scores, scores)
        np.dot(rows, ones, sums)
        if not sums.min() >= 0.5:
            return False
        np.reciprocal(sums, shares)
    shares = shares.reshape(*scores.shape[:-1], 1)
    if keys <= v.shape[-1]:
        np.multiply(scores, shares, scores)
        product(scores, v, out)
    else:
        product(scores, v, out)
        if out.ndim > 2:  # in the order of memory
            out, shares = out.swapaxes(-3, -2), shares.swapaxes(-3, -2)
        np.multiply(out, shares, out)
    return True


def _fill(scores: Array, q: Array, kt: Array, summands: Sequence[Array]) -> None:
    product(q, kt, scores)
    for x in summands:
        np.add(scores, x, scores)


@cache
def _ones(n: int) -> Array:
    return np.ones(n, np.float32)
