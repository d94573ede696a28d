"""Rotary position embeddings: pairs of elements of a head are rotated by angles that grow with the position."""

from __future__ import annotations

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention_heads import merge_heads, split_heads
from ortconv.executor.kernels.registry import float_kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


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
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    return _rotated(x, cos_cache, sin_cache, interleaved, num_heads, rotary_embedding_dim)


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
    heads = num_heads if num_heads else x.shape[-1] // (rotary_embedding_dim or cos_cache.shape[-1] * 2)
    return _rotated(x, cos_cache[position_ids], sin_cache[position_ids], interleaved, heads, rotary_embedding_dim)


def _rotated(x: Array, cos: Array, sin: Array, interleaved: int, num_heads: int | None, dim: int) -> Array:
    """cos and sin are (B, L, dim / 2)."""
    heads = split_heads(x, num_heads or 0) if x.ndim == 3 else x
    dim = dim or heads.shape[-1]
    if cos.shape[-1] != dim // 2:
        raise GraphError(f"the rotary caches are {cos.shape[-1]} wide, the rotated part of a head needs {dim // 2}")
    y = rotated(heads, cos, sin, interleaved)
    return merge_heads(y) if x.ndim == 3 else y


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
