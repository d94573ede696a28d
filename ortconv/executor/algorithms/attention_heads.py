"""Attention by heads, (batch, heads, length, head size): masks, and softmax of scores times values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention import attended
from ortconv.executor.algorithms.fallback import Fallback
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array


def softmax_rows(x: Array) -> Array:
    """Softmax over the last axis in place; rows of nothing but -inf become zero."""
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    x -= np.where(top == -np.inf, x.dtype.type(0), top)
    np.exp(x, out=x)
    total = x.sum(axis=-1, keepdims=True)
    x /= np.where(total == 0, x.dtype.type(1), total)
    return x


def split_heads(x: Array, heads: int) -> Array:
    """(B, L, heads * H) as a view (B, heads, L, H)."""
    if heads < 1 or x.shape[-1] % heads:
        raise GraphError(f"hidden size {x.shape[-1]} cannot be divided among {heads} heads")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, heads, L, H) to (B, L, heads * H)."""
    batch, heads, length, size = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * size)


def visible(queries: int, keys: int, offset: Any, left: int, right: int) -> Array:
    """Where query i at position offset + i may look: at most `left` back and `right` ahead, -1 for any distance.

    (queries, keys), or (batch, 1, queries, keys) when `offset` has one number per batch.
    """
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + np.reshape(offset, (-1, 1, 1, 1)))
    allowed = np.ones(ahead.shape, bool)
    if left >= 0:
        allowed &= -ahead <= left
    if right >= 0:
        allowed &= ahead <= right
    return allowed if np.ndim(offset) else allowed[0, 0]


def attend_heads(q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, scale: float) -> Array:
    usual = attend_heads_fast(AT_ONCE, q, k, v, mask, widen(bias), scale)
    return _attend_exactly(q, k, v, mask, bias, scale) if usual is None else usual


def attend_heads_fast(
    work: Work, q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, scale: float
) -> Array | None:
    """The same, which can be recorded; None where the fast form does not suit types or shapes."""
    fallback = Fallback(work)
    summands = [x for x in (mask, bias) if x is not None]
    y = attended(work, fallback, q, k.swapaxes(-1, -2), v, scale or 1 / np.sqrt(q.shape[-1]), summands)
    if y is not None:
        work.do(fallback.fall_back, _write_exactly, q, k, v, mask, bias, scale, y)
    return y


def _write_exactly(*operands: Any) -> None:
    *given, out = operands
    np.copyto(out, _attend_exactly(*given))


def _attend_exactly(q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, scale: float) -> Array:
    scores = np.matmul(q * q.dtype.type(scale or 1 / np.sqrt(q.shape[-1])), k.swapaxes(-1, -2))
    if mask is not None:
        scores += mask
    if bias is not None:
        scores += widen(bias)
    # Unlike in ONNX's own Attention, a row of nothing but -inf is NaN.
    unseen = (scores.max(axis=-1, keepdims=True, initial=-np.inf) == -np.inf) & (scores.shape[-1] > 0)
    weights = softmax_rows(scores)
    if unseen.any():
        weights[np.broadcast_to(unseen, weights.shape)] = np.nan
    return np.asarray(np.matmul(weights, v))


def microsoft_mask(
    work: Work, mask: Array | None, shape: Sequence[int], keys: int, past: int, filter_value: float, causal: int
) -> Array | None:
    """The additive mask, broadcasting to (B, heads, queries, keys), from any of the forms of mask_index."""
    batch, _, queries, _ = shape
    total = None
    if mask is not None:
        allowed = _allowed(work, mask, batch, queries, keys, past)
        total = work.empty(allowed.shape)
        work.do(total.fill, filter_value)
        work.do(partial(np.copyto, where=allowed), total, 0)
    if causal and queries > 1:
        seen = visible(queries, keys, past, -1, 0)
        seen[-1] = True  # as in the kernel, which matters where the keys are not as many as past and queries
        unseen, lowest = np.where(seen, np.float32(0), np.finfo(np.float32).min), np.finfo(np.float32).min
        total = unseen if total is None else work.arranged(lambda mask: np.maximum(mask + unseen, lowest), total)
    return total


def _allowed(work: Work, mask: Array, batch: int, queries: int, keys: int, past: int) -> Array:
    """True where keys are to be seen."""
    if mask.ndim == 1 and mask.size in (batch, 2 * batch, 3 * batch + 2):
        return work.arranged(lambda mask: _between(mask, batch, keys), mask)
    if mask.ndim == 2:
        mask = mask[:, None, None, :]
    elif mask.ndim == 3:
        mask = mask[:, None]
    elif mask.ndim == 4:
        mask = mask[:, :, past : past + queries, :keys]
    else:
        raise GraphError(
            f"an attention mask of shape {list(mask.shape)} does not go with batch {batch} and {keys} keys"
        )
    allowed = work.empty(mask.shape, np.bool_)
    work.do(np.greater, mask, 0, allowed)
    return allowed


def _between(ends: Array, batch: int, keys: int) -> Array:
    """(B, 1, 1, keys), true before the end that each sequence has, and from its start on where there are such."""
    end = ends[:batch].reshape(-1, 1, 1, 1)
    start = ends[batch:].reshape(-1, 1, 1, 1) if ends.size == 2 * batch else np.zeros_like(end)
    position = np.arange(keys)
    return np.asarray((position < end) & (position >= start))
