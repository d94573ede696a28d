"""GroupQueryAttention: attention with a cache of keys and values that is filled up to a separate length in each batch entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention_heads import merge_heads, softmax_rows, split_heads, visible
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.kernels.registry import kernel
from ortconv.executor.kernels.rotary import rotated
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


@kernel("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    local_window_size: int = -1,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
) -> Any:
    q, k, v = _heads(query, key, value, num_heads, kv_num_heads)
    length = q.shape[2]
    totals = seqlens_k.reshape(-1).astype(np.int64) + 1
    before = np.maximum(totals - length, 0)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise GraphError("GroupQueryAttention with do_rotary needs cos_cache and sin_cache")
        places = before[:, None] + np.arange(length)
        if position_ids is not None:
            first = int(total_sequence_length.reshape(-1)[0]) == length
            places = position_ids.reshape(-1)[0] + np.arange(length) + 0 * places if first else position_ids
        cos, sin = widen(cos_cache)[places], widen(sin_cache)[places]
        q, k = (rotated(x, cos, sin, rotary_interleaved) for x in (q, k))
    capacity = max(int(total_sequence_length.reshape(-1)[0]), 0 if past_key is None else past_key.shape[2])
    keys, values = (_appended(p, x, before, capacity) for p, x in ((past_key, k), (past_value, v)))
    y = np.empty((*q.shape[:3], v.shape[3]), np.float32)
    group, window = num_heads // kv_num_heads, max(local_window_size, 0)
    for b, total in enumerate(totals):
        seen = visible(length, int(total), int(before[b]), window - 1, 0 if causal else -1)
        shared_k, shared_v = (np.repeat(x[b, :, :total], group, axis=0) for x in (keys, values))
        scores = np.matmul(q[b] * np.float32(scale or 1 / np.sqrt(q.shape[3])), shared_k.swapaxes(-1, -2))
        if softcap:
            scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
        if attention_bias is not None:
            scores += widen(attention_bias)[b % attention_bias.shape[0], :, :, :total]
        scores[:, ~seen] = -np.inf
        y[b] = np.matmul(_weights(scores, head_sink, smooth_softmax == 1), shared_v)
    present = (merge_heads(y), keys, values)
    return tuple(x.astype(query.dtype, copy=False) for x in present)


def _heads(query: Array, key: Array | None, value: Array | None, heads: int, shared: int) -> Sequence[Array]:
    """Query, key and value as (B, heads, L, H) in float32; without a key, `query` contains all three."""
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * shared)
        query, key, value = np.split(query, [heads * size, (heads + shared) * size], axis=2)
    return [widen(split_heads(x, n)) for x, n in ((query, heads), (key, shared), (value, shared))]


def _appended(past: Array | None, x: Array, before: Array, capacity: int) -> Array:
    """The cache with the new tokens after the past ones of each batch entry, then zeros."""
    batch, heads, length, size = x.shape
    cache = np.zeros((batch, heads, capacity, size), np.float32)
    for b, start in enumerate(before):
        if past is not None:
            cache[b, :, :start] = past[b, :, :start]
        cache[b, :, start : start + length] = x[b, :, : capacity - start]
    return cache


def _weights(scores: Array, sink: Array | None, smooth: bool) -> Array:
    """Softmax. With a sink, or with `smooth`, it has one more score per head, which belongs to no key."""
    if sink is None and not smooth:
        return softmax_rows(scores)
    extra = np.zeros(len(scores), np.float32) if sink is None else widen(sink)
    column = np.broadcast_to(extra[:, None, None], (*scores.shape[:2], 1))
    return softmax_rows(np.concatenate([scores, column], axis=2))[..., :-1]
