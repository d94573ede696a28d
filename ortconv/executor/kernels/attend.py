"""The core of attention, block by block in cache: products with the keys, softmax, products with the values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

from ortconv.executor.kernels.products import product
from ortconv.executor.threads import each
from ortconv.ir.tensor import Array

_BLOCK = 1 << 17
"""Scores in a block, where that leaves enough rows for a fast product."""

_FEWEST_ROWS = 64

_LEAST_SUM = 1e-10
"""Of a row of exponentials that are at most 1. Below it the row is shifted by its own maximum, to be exact enough."""


def attend(q: Array, kt: Array, v: Array, factor: float, summands: Sequence[Array]) -> Array | None:
    """softmax(q @ kt * factor + summands) @ v, for q (B, H, L, D), kt (B, H, D, K) and v (B, H, K, E) of float32.

    None where shapes do not go together like this, or results are not all finite: then the operators must say what comes out. The
    memory of the result is laid out as (B, L, H, E).
    """
    operands = (q, kt, v, *summands)
    if (
        any(x.dtype != np.float32 for x in operands)
        or not q.ndim == kt.ndim == v.ndim == 4
        or not all(x.size for x in operands)
    ):
        return None
    batch, heads, length, width = q.shape
    keys, depth = v.shape[2:]
    if kt.shape != (batch, heads, width, keys) or v.shape[:2] != (batch, heads):
        return None
    shape = (batch, heads, length, keys)
    if any(x.ndim > 4 or any(n not in (1, m) for n, m in zip(x.shape[::-1], shape[::-1])) for x in summands):
        return None
    memory = np.empty((batch, length, heads, depth), np.float32)
    out = memory.transpose(0, 2, 1, 3)
    scale = np.asarray(factor, np.float32)
    if prod(shape) <= _BLOCK:
        done = _block(q, np.multiply(kt, scale), v, summands, np.empty(shape, np.float32), out)
    else:
        done = _in_blocks(q, kt, v, scale, [np.broadcast_to(x, shape) for x in summands], out)
    flat = memory.reshape(-1)
    return out if done and np.isfinite(np.dot(flat, flat)) else None


def _in_blocks(q: Array, kt: Array, v: Array, scale: Array, summands: Sequence[Array], out: Array) -> bool:
    batch, heads, length, _ = q.shape
    keys = v.shape[2]
    together = _BLOCK // (length * keys)
    if together > 1:

        def some_heads(i: tuple[int, slice]) -> bool:
            scores = np.empty((len(q[i]), length, keys), np.float32)
            return _block(q[i], np.multiply(kt[i], scale), v[i], [x[i] for x in summands], scores, out[i])

        return all(
            each(some_heads, [(b, slice(h, h + together)) for b in range(batch) for h in range(0, heads, together)])
        )
    # Blocks of nearly the same size.
    rows = -(-length // -(-length // max(_FEWEST_ROWS, _BLOCK // keys)))

    def one_head(head: tuple[int, int]) -> bool:
        scores = np.empty((rows, keys), np.float32)
        columns = np.multiply(kt[head], scale, order="C")
        parts = [(*head, slice(start, start + rows)) for start in range(0, length, rows)]
        return all(_block(q[i], columns, v[head], [x[i] for x in summands], scores[: len(q[i])], out[i]) for i in parts)

    return all(each(one_head, [(b, h) for b in range(batch) for h in range(heads)]))


def _block(q: Array, kt: Array, v: Array, summands: Sequence[Array], scores: Array, out: Array) -> bool:
    """Fill `out`; False where a row has no finite sum. `scores` is scratch memory."""
    _fill(scores, q, kt, summands)
    np.subtract(scores, np.maximum.reduce(scores.reshape(-1)), scores)
    sums = _exponentials(scores)
    if not sums.min() >= _LEAST_SUM:
        _fill(scores, q, kt, summands)
        np.subtract(scores, scores.max(axis=-1, keepdims=True), scores)
        sums = _exponentials(scores)
        if not sums.min() >= 0.5:
            return False
    multiply = product if q.ndim == 2 else np.matmul
    if kt.shape[-1] <= v.shape[-1]:
        np.divide(scores, sums, scores)
        multiply(scores, v, out)
    else:
        multiply(scores, v, out)
        np.divide(out, sums, out)
    return True


def _fill(scores: Array, q: Array, kt: Array, summands: Sequence[Array]) -> None:
    np.matmul(q, kt, scores)
    for x in summands:
        np.add(scores, x, scores)


def _exponentials(x: Array) -> Array:
    """exp(x) in place; the sums of its rows, keeping their axis."""
    np.exp(x, x)
    size = x.shape[-1]
    sums: Array = np.dot(x.reshape(-1, size), _ones(size))
    return sums.reshape(*x.shape[:-1], 1)


@cache
def _ones(n: int) -> Array:
    return np.ones(n, np.float32)
