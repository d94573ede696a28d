"""Attention and related operators. Internally, heads are (batch, heads, length, head size)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention_heads import (
    Masking,
    attend,
    attend_in_blocks,
    merge_heads,
    softmax_rows,
    split_heads,
    visible,
)
from ortconv.executor.algorithms.gemm import affine, prepared_matmul
from ortconv.executor.algorithms.half_precision import is_narrow, rounding, widen
from ortconv.executor.kernels.registry import Function, float_kernel, kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def _shared(kv: Array, heads: int) -> Array:
    """Key or value heads repeated for the query heads that share them."""
    return kv if kv.shape[1] == heads else np.repeat(kv, heads // kv.shape[1], axis=1)


@kernel("Attention")
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Any:
    packed, dtype = q.ndim == 3, q.dtype
    if packed:
        if q_num_heads is None or kv_num_heads is None:
            raise GraphError("Attention with 3-D inputs needs q_num_heads and kv_num_heads")
        q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    past = past_key.shape[2] if past_key is not None else 0
    unscored = np.broadcast_to(widen(q[:0]).dtype.type(0), (*q.shape[:3], k.shape[2]))
    bias = _bias(unscored, attn_mask, past, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    rounded = rounding(dtype)
    scores = rounded(_scaled_product(q, _shared(k, q.shape[1]), scale))
    stages = [scores]
    if softcap:
        cap = scores.dtype.type(softcap)
        scores = rounded(rounded(np.tanh(rounded(scores / cap))) * cap)
    stages.append(scores)
    scores = rounded(scores + bias)
    stages.append(scores)
    weights = rounded(_softmax_as(scores, dtype, softmax_precision))
    stages.append(weights)
    y = np.matmul(weights, widen(_shared(v, q.shape[1])))
    y = (merge_heads(y) if packed else y).astype(dtype, copy=False)
    return y, k, v, stages[qk_matmul_output_mode].astype(dtype, copy=False)


def _scaled_product(q: Array, k: Array, scale: float | None) -> Array:
    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    if not is_narrow(q.dtype):
        return np.asarray(np.matmul(q * q.dtype.type(factor), k.swapaxes(-1, -2)))
    # Half precision is rounded after each step of the function body, which scales both sides by the root.
    root = np.sqrt(np.float32(factor)).astype(q.dtype)
    return np.asarray(np.matmul(widen(q * root), widen(k * root).swapaxes(-1, -2)))


def _softmax_as(scores: Array, dtype: np.dtype[Any], precision: int | None) -> Array:
    """Softmax in the requested precision, by default that of the operands. The result has the type of the scores."""
    if precision == DType.DOUBLE and scores.dtype != np.float64:
        return softmax_rows(scores.astype(np.float64)).astype(scores.dtype)
    kind = dtype if precision is None else DType(precision).numpy
    if not is_narrow(kind):
        return softmax_rows(scores.copy())
    rounded = rounding(kind)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    out = rounded(np.exp(rounded(scores - np.where(np.isneginf(top), scores.dtype.type(0), top))))
    total = rounded(out.sum(axis=-1, keepdims=True))
    return np.asarray(out / np.where(total == 0, scores.dtype.type(1), total))


def _bias(
    scores: Array, mask: Array | None, past: int, lengths: Array | None, causal: int, left: int, right: int
) -> Array:
    """The number added to the scores: the mask, and -inf for keys that are hidden or padding."""
    queries, keys = scores.shape[-2:]
    never = scores.dtype.type(-np.inf)
    bias = np.zeros((), scores.dtype)
    if mask is not None:
        bias = np.where(mask, scores.dtype.type(0), never) if mask.dtype == bool else widen(mask).astype(scores.dtype)
        if bias.ndim and bias.shape[-1] != keys:
            widths = [(0, 0)] * (bias.ndim - 1) + [(0, keys - bias.shape[-1])]
            bias = np.pad(bias, widths, constant_values=never)
    right = min(r for r in (right, 0) if r >= 0) if causal else right
    if left >= 0 or right >= 0:
        offset = past if lengths is None else lengths.reshape(-1).astype(np.int64) - queries
        bias = bias + np.where(visible(queries, keys, offset, left, right), scores.dtype.type(0), never)
    if lengths is not None:
        valid = np.arange(keys) < lengths.reshape(-1, 1, 1, 1)
        bias = bias + np.where(valid, scores.dtype.type(0), never)
    return bias


_IN_BLOCKS: Mapping[str, Function] = {"attend": lambda *_, **__: attend_in_blocks}


@kernel("MultiHeadAttention", domain=MICROSOFT, inner=_IN_BLOCKS)
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
    attend: Function = attend,
) -> Any:
    q, k, v = _projected(widen(query), widen(key), widen(value), widen(bias), num_heads)
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([widen(past_key), k], axis=2), np.concatenate([widen(past_value), v], axis=2)
    past = 0 if past_key is None else past_key.shape[2]
    masking = Masking(mask_filter_value, unidirectional, past)
    y = attend(q, k, v, key_padding_mask, widen(attention_bias), scale, masking)
    dtype = query.dtype
    outputs = (merge_heads(y).astype(dtype, copy=False), k.astype(dtype, copy=False), v.astype(dtype, copy=False))
    return outputs[0] if n_outputs == 1 else outputs[:n_outputs]


def _projected(
    query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int
) -> tuple[Array, Array, Array]:
    """Query, key and value heads from any form of the inputs of MultiHeadAttention."""
    if query.ndim == 5:  # (B, L, heads, 3, H)
        parts = [query[..., i, :] for i in range(3)]
    elif key is not None and key.ndim == 5:  # (B, L, heads, 2, H)
        parts = [query.reshape(*query.shape[:2], heads, -1), key[..., 0, :], key[..., 1, :]]
    elif key is not None and value is not None:
        parts = [x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1) for x in (query, key, value)]
    else:
        raise GraphError("MultiHeadAttention has neither key and value nor packed inputs")
    by_head = [
        x if given is not None and given.ndim == 4 else x.swapaxes(1, 2) for x, given in zip(parts, (query, key, value))
    ]
    if bias is not None:
        sizes = [x.shape[1] * x.shape[3] for x in by_head]
        pieces = np.split(bias, np.cumsum(sizes)[:2])
        by_head = [
            x if x is given else x + piece.reshape(heads, 1, -1)
            for x, piece, given in zip(by_head, pieces, (query, key, value))
        ]
    return by_head[0], by_head[1], by_head[2]


@kernel("Attention", domain=MICROSOFT, inner={**_IN_BLOCKS, "project": prepared_matmul})
def attention_ms(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
    attend: Function = attend,
    project: Function = affine,
) -> Any:
    sizes = tuple(qkv_hidden_sizes or (weights.shape[1] // 3,) * 3)
    projected = project(widen(x), widen(weights), widen(bias))
    parts = np.split(projected, [sizes[0], sizes[0] + sizes[1]], axis=-1)
    masking = Masking(mask_filter_value, unidirectional)
    y, k, v = self_attention(parts, num_heads, mask_index, past, attention_bias, scale, masking, attend)
    y = y.astype(x.dtype, copy=False)
    return y if n_outputs == 1 else (y, np.stack([k, v]).astype(x.dtype, copy=False))


def self_attention(
    projected: Sequence[Array],
    num_heads: int,
    mask_index: Array | None,
    past: Array | None,
    attention_bias: Array | None,
    scale: float,
    masking: Masking,
    attend: Function = attend,
) -> tuple[Array, Array, Array]:
    """(B, L, hidden), and the heads of all keys and values, from query, key and value of that shape."""
    q, k, v = (split_heads(p, num_heads) for p in projected)
    if past is not None:
        k, v = np.concatenate([widen(past[0]), k], axis=2), np.concatenate([widen(past[1]), v], axis=2)
    masking = masking._replace(past=0 if past is None else past.shape[3])
    return merge_heads(attend(q, k, v, mask_index, widen(attention_bias), scale, masking)), k, v


@float_kernel("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(data: Array, bias: Array, *, axis: int = 1, is_inner_broadcast: int) -> Array:
    """Softmax over all axes from `axis` on."""
    total = np.array(data + bias)
    outer = prod(data.shape[: axis % data.ndim])
    return softmax_rows(total.reshape(outer, -1)).reshape(data.shape)
