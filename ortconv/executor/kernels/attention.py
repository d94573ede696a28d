"""Attention, rotary position embeddings and related operators. Internally, heads are (batch, heads, length, head size)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError, UnsupportedError
from ortconv.executor.algorithms.attention import (
    Masking,
    attend,
    attend_in_blocks,
    masked_scores,
    merge_heads,
    softmax_rows,
    split_heads,
    visible,
)
from ortconv.executor.algorithms.gemm import affine, prepared_matmul
from ortconv.executor.algorithms.half_precision import compute_type, is_narrow, rounding, widen
from ortconv.executor.kernels.activation import softmax
from ortconv.executor.kernels.control import Body
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
    """softmax(q @ k^T * scale + mask) @ v of heads (B, heads, L, H), or packed (B, L, heads * H); all keys and values; scores."""
    packed, dtype = q.ndim == 3, q.dtype
    if packed:
        if q_num_heads is None or kv_num_heads is None:
            raise GraphError("Attention with 3-D inputs needs q_num_heads and kv_num_heads")
        q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    past = past_key.shape[2] if past_key is not None else 0
    unscored = np.broadcast_to(np.zeros((), widen(q[:0]).dtype), (*q.shape[:3], k.shape[2]))
    bias = _bias(unscored, attn_mask, past, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    rounded = rounding(dtype)
    products = rounded(_scaled_product(q, _shared(k, q.shape[1]), scale))
    cap = products.dtype.type(softcap)
    scores = rounded(rounded(np.tanh(rounded(products / cap))) * cap) if softcap else products
    biased = rounded(scores + bias)
    weights = rounded(_softmax_as(biased, dtype, softmax_precision))
    stages = (products, scores, biased, weights)
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
    zero, never = np.full((), 0, scores.dtype), np.full((), -np.inf, scores.dtype)
    bias: Array = zero
    if mask is not None:
        bias = np.where(mask, zero, never) if mask.dtype == bool else widen(mask).astype(scores.dtype)
        if bias.ndim:
            bias = np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, keys - bias.shape[-1])], constant_values=never)
    right = 0 if causal else right
    if left >= 0 or right >= 0:
        offset = past if lengths is None else lengths.reshape(-1).astype(np.int64) - queries
        bias = bias + np.where(visible(queries, keys, offset, left, right), zero, never)
    if lengths is not None:
        valid = np.arange(keys) < lengths.reshape(-1, 1, 1, 1)
        bias = bias + np.where(valid, zero, never)
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
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
    attend: Function = attend,
) -> Any:
    """The output, keys and values of the past and the present, and the scores before softmax."""
    q, k, v = _projected(widen(query), widen(key), widen(value), widen(bias), num_heads)
    given = past_sequence_length, cache_indirection
    (k, keys), (v, values) = (_with_past(widen(past), x, *given) for past, x in ((past_key, k), (past_value, v)))
    past = 0 if past_key is None else past_key.shape[2] if given[0] is None else int(given[0].item())
    others = (key_padding_mask, widen(attention_bias), scale, Masking(mask_filter_value, unidirectional, past))
    scores = (masked_scores(q, k, *others),) if n_outputs > 3 else ()
    found = (merge_heads(attend(q, k, v, *others)), keys, values, *scores)
    return tuple(x.astype(query.dtype, copy=False) for x in found)


@kernel("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_multi_head_attention(
    *operands: Any, output_qk: int = 0, past_present_share_buffer: int = 0, n_outputs: int = 1, **attributes: Any
) -> Any:
    """MultiHeadAttention of one query per batch entry, with its inputs in another order, and with the number of beams."""
    q, k, v, mask, bias_of_scores, *past, _, beams, bias = (*operands, *(None,) * 8)[:11]
    return multi_head_attention(q, k, v, bias, mask, bias_of_scores, *past, beams, n_outputs=n_outputs, **attributes)


def _with_past(past: Array | None, x: Array, length: Array | None, beams: Array | None) -> tuple[Array, Array]:
    """Past and new keys or values (B, heads, L, H), and the buffer that holds them for the next run. With a `length`, the buffer
    is larger than the past; `beams` (batch, beams, L) then states from which beam each past token comes.
    """
    if past is None or length is None:
        whole = x if past is None else np.concatenate([past, x], axis=2)
        return whole, whole
    (start,), buffer = length.reshape(-1).tolist(), past.copy()
    buffer[:, :, start : start + x.shape[2]] = x
    if beams is None or x.shape[2] > 1:
        return buffer[:, :, : start + x.shape[2]], buffer
    rows = np.arange(len(past)).reshape(*beams.shape[:2], 1)[:, :1] + beams[..., :start]
    chosen = past[rows.reshape(len(past), start), :, np.arange(start)].swapaxes(1, 2)
    return np.concatenate([chosen, x], axis=2), buffer


def _projected(
    query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int
) -> tuple[Array, Array, Array]:
    """Query, key and value heads from any form of the inputs of MultiHeadAttention. Inputs that are heads get no bias."""
    are_heads = [x is not None and x.ndim == 4 for x in (query, key, value)]
    if query.ndim == 5:  # (B, L, heads, 3, H)
        query, key, value = query.transpose(3, 0, 2, 1, 4)
    elif key is not None and key.ndim == 5:  # (B, L, heads, 2, H)
        key, value = key.transpose(3, 0, 2, 1, 4)
    if key is None or value is None:
        raise GraphError("MultiHeadAttention has neither key and value nor packed inputs")
    q, k, v = (x if x.ndim == 4 else split_heads(x, heads) for x in (query, key, value))
    if bias is None:
        return q, k, v
    pieces = np.split(bias, np.cumsum([x.shape[1] * x.shape[3] for x in (q, k)]))
    q, k, v = (x if own else x + b.reshape(heads, 1, -1) for x, b, own in zip((q, k, v), pieces, are_heads))
    return q, k, v


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
    """Queries, keys and values are one product of x. The second output has all keys and values."""
    sizes = qkv_hidden_sizes or (weights.shape[1] // 3,) * 3
    projected = project(widen(x), widen(weights), widen(bias))
    q, k, v = (split_heads(p, num_heads) for p in np.split(projected, [sizes[0], sizes[0] + sizes[1]], axis=-1))
    if past is not None:
        k, v = np.concatenate([widen(past[0]), k], axis=2), np.concatenate([widen(past[1]), v], axis=2)
    masking = Masking(mask_filter_value, unidirectional, 0 if past is None else past.shape[3])
    y = merge_heads(attend(q, k, v, mask_index, widen(attention_bias), scale, masking))
    dtype = x.dtype if bias is None else bias.dtype
    return y.astype(dtype, copy=False) if n_outputs == 1 else (y.astype(dtype), np.stack([k, v]).astype(dtype))


@float_kernel("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(data: Array, bias: Array, *, axis: int = 1, is_inner_broadcast: int) -> Array:
    """Softmax over all axes from `axis` on."""
    total = np.array(data + bias)
    outer = prod(data.shape[: axis % data.ndim])
    return softmax_rows(total.reshape(outer, -1)).reshape(data.shape)


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
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    query_seqlens: Array | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    local_window_size: int = -1,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
) -> Any:
    """Several query heads share each key and value head. The caches hold the positions before the query, or with
    `sliding_window_cache` the last ones of them. `query_seqlens` is the number of tokens in each query; the others are padding.
    """
    if any(x is not None for x in (k_scale, v_scale, q_norm_weight, k_norm_weight)):
        raise UnsupportedError("GroupQueryAttention with quantized caches or norms has no numpy kernel")
    q, k, v = _heads(query, key, value, num_heads, kv_num_heads)
    length = q.shape[2]
    totals = seqlens_k.reshape(-1).astype(np.int64) + 1
    before = totals - (np.minimum(totals, length) if query_seqlens is None else query_seqlens.reshape(-1))
    longest = int(total_sequence_length.reshape(-1)[0])
    if do_rotary:
        places = _places(before, length, position_ids, query_seqlens is None and longest == length)
        q, k = _rotated_at(places, q, k, cos_cache, sin_cache, rotary_interleaved)
    window, capacity = max(local_window_size, 0), 0 if past_key is None else past_key.shape[2]
    capacity = capacity if sliding_window_cache else max(longest, capacity)
    past = [_or_zeros(p, x, before) for p, x in ((past_key, k), (past_value, v))]
    present = [np.zeros((*x.shape[:2], capacity, x.shape[3]), np.float32) for x in (k, v)]
    y = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    q = q * np.float32(scale or 1 / np.sqrt(q.shape[3]))
    for b, (total, old) in enumerate(zip(totals.tolist(), before.tolist())):
        start, end = (_evicted(n, capacity, window) if sliding_window_cache else 0 for n in (old, total))
        held = [np.concatenate([p[b, :, : old - start], x[b]], axis=1) for p, x in zip(past, (k, v))]
        for cache, rows in zip(present, held):
            kept = rows[:, end - start :][:, :capacity]
            cache[b, :, : kept.shape[1]] = kept
        keys, values = (np.repeat(x[:, : total - start], num_heads // kv_num_heads, axis=0) for x in held)
        bias = 0 if attention_bias is None else widen(attention_bias[b % len(attention_bias), :, :, start:total])
        scores = _capped(np.matmul(q[b], keys.swapaxes(-1, -2)), softcap) + bias
        seen = visible(length, total, old, window - 1, 0 if causal else -1)[:, start:]
        scores[:, ~seen] = -np.inf
        y[b] = np.matmul(_weights(scores, head_sink, smooth_softmax == 1), values)
    return tuple(x.astype(query.dtype, copy=False) for x in (merge_heads(y), *present))


def _places(before: Array, length: int, position_ids: Array | None, is_first: bool) -> Array:
    """The positions of the tokens in each query. Those of a first prompt are counted from its first one."""
    places = before[:, None] + np.arange(length)
    if position_ids is None:
        return places
    return np.asarray(position_ids.reshape(-1)[0] + np.arange(length) + 0 * places if is_first else position_ids)


def _rotated_at(
    places: Array, q: Array, k: Array, cos_cache: Array | None, sin_cache: Array | None, interleaved: int
) -> Iterator[Array]:
    if cos_cache is None or sin_cache is None:
        raise GraphError("GroupQueryAttention with do_rotary needs cos_cache and sin_cache")
    places = np.minimum(places, len(cos_cache) - 1)  # those of padding may lie beyond
    cos, sin = widen(cos_cache)[places], widen(sin_cache)[places]
    return (rotated(x, cos, sin, interleaved) for x in (q, k))


def _or_zeros(past: Array | None, x: Array, before: Array) -> Array:
    """A cache in float32; zeros if there is none."""
    return np.zeros((*x.shape[:2], before.max(initial=0), x.shape[3]), np.float32) if past is None else widen(past)


def _capped(scores: Array, softcap: float) -> Array:
    return np.tanh(scores / np.float32(softcap)) * np.float32(softcap) if softcap else scores


def _evicted(count: int, capacity: int, window: int) -> int:
    """The number of tokens that a cache for a window no longer holds. Room for `capacity - window + 1` is made at once."""
    room = capacity - window + 1
    return max(0, -(-(count - capacity) // room)) * room


def _heads(query: Array, key: Array | None, value: Array | None, heads: int, shared: int) -> Sequence[Array]:
    """Query, key and value as (B, heads, L, H) in float32; without a key, `query` contains all three."""
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * shared)
        query, key, value = np.split(query, [heads * size, (heads + shared) * size], axis=2)
    return [widen(split_heads(x, n)) for x, n in ((query, heads), (key, shared), (value, shared))]


def _weights(scores: Array, sink: Array | None, smooth: bool) -> Array:
    """Softmax. With a sink, or with `smooth`, it has one more score per head, which belongs to no key."""
    if sink is None and not smooth:
        return softmax_rows(scores)
    extra = np.zeros(len(scores), np.float32) if sink is None else widen(sink)
    column = np.broadcast_to(extra[:, None, None], (*scores.shape[:2], 1))
    return softmax_rows(np.concatenate([scores, column], axis=2))[..., :-1]


@kernel("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    prob_mod: Body | None = None,
    scale: float | None = None,
    score_mod: Body | None = None,
    softmax_precision: int | None = None,
) -> Array:
    """(B, Hq, L, E), (B, Hkv, S, E), (B, Hkv, S, Ev) to (B, Hq, L, Ev)."""
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise GraphError(f"FlexAttention takes 4-D tensors, got ranks {q.ndim}, {k.ndim}, {v.ndim}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise GraphError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads")
    dtype = q.dtype
    precision = compute_type(dtype) if softmax_precision is None else DType(softmax_precision).numpy
    # The scale is split between both operands, and both are rounded, as in the operator's function body.
    root = np.sqrt(np.float32(1 / np.sqrt(q.shape[3]) if scale is None else scale)).astype(dtype)
    k, v = _shared(k, q.shape[1]), _shared(v, q.shape[1])
    scores = np.matmul(widen(q * root), widen(k * root).swapaxes(-1, -2)).astype(dtype, copy=False)
    scores = scores.astype(precision, copy=False)
    if score_mod is not None:
        scores = np.asarray(score_mod(scores)[0])
    probs = softmax(widen(scores)).astype(precision, copy=False)
    if prob_mod is not None:
        probs = np.asarray(prob_mod(probs)[0])
    probs = widen(probs)
    return np.asarray(np.matmul(probs, v.astype(probs.dtype, copy=False))).astype(dtype, copy=False)


@float_kernel("RotaryEmbedding")
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """The caches are (B, L, dim / 2), or (positions, dim / 2) if there are position_ids."""
    cos, sin = (cache if position_ids is None else cache[position_ids] for cache in (cos_cache, sin_cache))
    heads = split_heads(x, num_heads or 0) if x.ndim == 3 else x
    half = (rotary_embedding_dim or heads.shape[-1]) // 2
    if cos.shape[-1] != half:
        raise GraphError(f"the rotary caches are {cos.shape[-1]} wide, the rotated part of a head needs {half}")
    y = rotated(heads, cos, sin, interleaved)
    return merge_heads(y) if x.ndim == 3 else y


@float_kernel("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_ms(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    """A single position id is the position of the first token."""
    length = x.shape[-2]
    if position_ids.size == 1:
        position_ids = np.broadcast_to(position_ids.reshape(()) + np.arange(length), (x.shape[0], length))
    heads = num_heads or x.shape[-1] // (rotary_embedding_dim or cos_cache.shape[-1] * 2)
    options = {"interleaved": interleaved, "num_heads": heads, "rotary_embedding_dim": rotary_embedding_dim}
    return np.asarray(rotary_embedding(x, cos_cache, sin_cache, position_ids, **options))


def rotated(heads: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """Heads of which the first 2 n elements are rotated, for cos and sin (B, L, n)."""
    dim = 2 * cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first = slice(0, dim, 2) if interleaved else slice(0, dim // 2)
    second = slice(1, dim, 2) if interleaved else slice(dim // 2, dim)
    y = heads.copy()
    y[..., first] = cos * heads[..., first] - sin * heads[..., second]
    y[..., second] = sin * heads[..., first] + cos * heads[..., second]
    return y


@float_kernel("MRotaryEmbedding", domain=MICROSOFT)
def m_rotary_embedding(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """Each element of the caches belongs to one of three positions: sections one after another, or every third element."""
    half = cos_cache.shape[-1]
    which = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        which = np.zeros(half, np.int64)
        for i in (1, 2):
            which[i : 3 * mrope_section[i] : 3] = i
    cos, sin = (cache[position_ids][which, ..., np.arange(half)] for cache in (cos_cache, sin_cache))
    cos, sin = (np.moveaxis(x, 0, -1) * np.float32(scale) for x in (cos, sin))
    options = {"interleaved": interleaved, "num_heads": num_heads, "rotary_embedding_dim": rotary_embedding_dim}
    return rotary_embedding(x, cos, sin, **options)


@kernel("SparseAttention", domain=MICROSOFT)
def sparse_attention(*operands: Any, num_heads: int, sparse_block_size: int, **attributes: Any) -> Any:
    """GroupQueryAttention to blocks of keys, listed as rows of a sparse matrix. The caches keep what is beyond the keys."""
    q, k, v, *past, row_ends, columns, total, totals, cos, sin = (*operands, None, None)[:11]
    count, totals = row_ends.shape[1] - 1, totals.astype(np.int64)
    seen = np.zeros((len(row_ends), count, count), bool)
    for mask, ends, at in zip(seen, row_ends, columns):
        mask[np.repeat(np.arange(count), np.diff(ends)), at[: ends[-1]]] = True
    rows = np.maximum(totals - q.shape[1], 0)[:, None, None] + np.arange(q.shape[1])[:, None]
    places = np.arange(past[0].shape[2])
    blocks = seen[:, rows // sparse_block_size, places // sparse_block_size].swapaxes(0, 1)
    bias = np.where(np.tile(blocks, (1, num_heads // len(seen), 1, 1)), np.float32(0), np.float32(-np.inf))
    given = (q, k, v, *past, totals - 1, total, cos, sin, None, bias)
    y, *present = group_query_attention(*given, num_heads=num_heads, **attributes)
    beyond = places[:, None] >= totals[:, None, None, None]
    return (y, *(np.where(beyond, old, new) for old, new in zip(past, present)))
