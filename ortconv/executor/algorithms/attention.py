"""Attention by heads, (batch, heads, length, head size): masks, and softmax of scores times values, also block by block."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
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


def softmax_rows(x: Array) -> Array:
    """Softmax over the last axis in place; rows that contain only -inf become zero."""
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
    """Mask of the keys that a query at position offset + i may attend to: at most `left` back and `right` ahead, -1 for
    any distance.

    (queries, keys), or (batch, 1, queries, keys) if `offset` has one number per batch entry.
    """
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + np.reshape(offset, (-1, 1, 1, 1)))
    allowed = np.ones(ahead.shape, bool)
    if left >= 0:
        allowed &= -ahead <= left
    if right >= 0:
        allowed &= ahead <= right
    return allowed if np.ndim(offset) else allowed[0, 0]


class Masking(NamedTuple):
    """How a mask_index hides keys."""

    filter_value: float
    """The number that is added to the scores of hidden keys."""
    causal: int
    past: int = 0
    """The number of keys of earlier runs."""


def attend(
    q: Array, k: Array, v: Array, mask_index: Array | None, bias: Array | None, scale: float, masking: Masking
) -> Array:
    """softmax(masked scores) @ v. Rows that contain only -inf become NaN."""
    scores = masked_scores(q, k, mask_index, bias, scale, masking)
    # In ONNX's own Attention, such a row becomes zero.
    unseen = (scores.max(axis=-1, keepdims=True, initial=-np.inf) == -np.inf) & (scores.shape[-1] > 0)
    return np.asarray(np.matmul(np.where(unseen, scores.dtype.type(np.nan), softmax_rows(scores)), v))


def masked_scores(
    q: Array, k: Array, mask_index: Array | None, bias: Array | None, scale: float, masking: Masking
) -> Array:
    """q @ k^T * scale + mask + bias. A scale of 0 means 1 / sqrt(head size)."""
    mask = microsoft_mask(mask_index, q.shape, k.shape[2], masking)
    scores = np.matmul(q * q.dtype.type(scale or 1 / np.sqrt(q.shape[-1])), k.swapaxes(-1, -2))
    for summand in (mask, bias):
        scores = scores if summand is None else scores + summand
    return np.asarray(scores)


def attend_in_blocks(
    work: Work, q: Array, k: Array, v: Array, index: Array | None, bias: Array | None, scale: float, masking: Masking
) -> Array:
    """The same up to rounding."""

    def masked(index: Array | None) -> Array | None:
        return microsoft_mask(index, q.shape, k.shape[2], masking)

    mask = masked(None) if index is None else work.arranged(masked, index)  # type: ignore[arg-type]
    summands = [x for x in (mask, bias) if x is not None]
    y = attended(work, q, k.swapaxes(-1, -2), v, scale or 1 / np.sqrt(q.shape[-1]), summands)
    return work.call(attend, q, k, v, index, bias, scale, masking) if y is None else y


def microsoft_mask(mask: Array | None, shape: Sequence[int], keys: int, masking: Masking) -> Array | None:
    """The additive mask, broadcasting to (B, heads, queries, keys), from any of the forms of mask_index."""
    (batch, _, queries, _), (filter_value, causal, past) = shape, masking
    total = None
    if mask is not None:
        total = np.where(_allowed(mask, batch, queries, keys, past), np.float32(0), np.float32(filter_value))
    if causal and queries > 1:
        seen = visible(queries, keys, past, -1, 0)
        seen[-1] = True  # as in the kernel; it matters where the number of keys is not past + queries
        lowest = np.finfo(np.float32).min
        unseen = np.where(seen, np.float32(0), lowest)
        total = unseen if total is None else np.maximum(total + unseen, lowest)
    return total


def _allowed(mask: Array, batch: int, queries: int, keys: int, past: int) -> Array:
    """True if a query may attend to a key."""
    if mask.ndim == 1 and mask.size in (batch, 2 * batch, 3 * batch + 2):
        return _between(mask, batch, keys)
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
    return np.asarray(mask > 0)


def _between(ends: Array, batch: int, keys: int) -> Array:
    """(B, 1, 1, keys): true before the end of each sequence; if `ends` also has starts, only from the start on."""
    end = ends[:batch].reshape(-1, 1, 1, 1)
    start = ends[batch:].reshape(-1, 1, 1, 1) if ends.size == 2 * batch else np.zeros_like(end)
    position = np.arange(keys)
    return np.asarray((position < end) & (position >= start))
