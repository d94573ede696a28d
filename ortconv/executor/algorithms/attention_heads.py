"""Attention by heads, (batch, heads, length, head size): masks, and softmax of scores times values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention import attended
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array


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
    """softmax(q @ k^T * scale + mask + bias) @ v. A scale of 0 means 1 / sqrt(head size). Rows that contain only -inf
    become NaN.
    """
    mask = microsoft_mask(mask_index, q.shape, k.shape[2], masking)
    scores = np.matmul(q * q.dtype.type(scale or 1 / np.sqrt(q.shape[-1])), k.swapaxes(-1, -2))
    for summand in (mask, bias):
        scores = scores if summand is None else scores + summand
    # In ONNX's own Attention, such a row becomes zero.
    unseen = (scores.max(axis=-1, keepdims=True, initial=-np.inf) == -np.inf) & (scores.shape[-1] > 0)
    return np.asarray(np.matmul(np.where(unseen, scores.dtype.type(np.nan), softmax_rows(scores)), v))


def attend_in_blocks(
    work: Work,
    q: Array,
    k: Array,
    v: Array,
    mask_index: Array | None,
    bias: Array | None,
    scale: float,
    masking: Masking,
) -> Array:
    """The same up to rounding."""

    def masked(mask_index: Array | None) -> Array | None:
        return microsoft_mask(mask_index, q.shape, k.shape[2], masking)

    mask = masked(None) if mask_index is None else work.arranged(masked, mask_index)  # type: ignore[arg-type]
    summands = [x for x in (mask, bias) if x is not None]
    y = attended(work, q, k.swapaxes(-1, -2), v, scale or 1 / np.sqrt(q.shape[-1]), summands)
    return work.call(attend, q, k, v, mask_index, bias, scale, masking) if y is None else y


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
