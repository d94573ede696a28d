"""Recurrent forms of attention, and the causal convolution before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention_heads import merge_heads, split_heads
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.kernels.registry import float_kernel, kernel
from ortconv.ir.tensor import Array

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""For each update rule: whether the state decays, and whether it is corrected by its prediction."""


@kernel("LinearAttention")
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> Any:
    gated, corrected = _RULES[update_rule]
    if (gated and decay is None) or (corrected and beta is None):
        raise GraphError(f"update rule {update_rule!r} needs {'decay' if gated and decay is None else 'beta'}")
    q = split_heads(widen(query), q_num_heads)
    k, v = split_heads(widen(key), kv_num_heads), split_heads(widen(value), kv_num_heads)
    gate = np.exp(split_heads(widen(decay), kv_num_heads)) if gated and decay is not None else None
    rate = split_heads(widen(beta), beta.shape[-1]) if corrected and beta is not None else None
    batch, _, length, width = k.shape
    state = np.zeros((batch, kv_num_heads, width, v.shape[-1]), k.dtype) if past_state is None else widen(past_state)
    y = np.empty((batch, q_num_heads, length, v.shape[-1]), q.dtype)
    factor = q.dtype.type(scale or 1 / np.sqrt(width))
    shared = q_num_heads // kv_num_heads
    for t in range(length):
        kt, vt = k[:, :, t], v[:, :, t]
        if gate is not None:
            state = gate[:, :, t, :, None] * state
        if rate is not None:
            vt = rate[:, :, t] * (vt - np.einsum("bhkv,bhk->bhv", state, kt))
        state = state + kt[..., :, None] * vt[..., None, :]
        grouped = q[:, :, t].reshape(batch, kv_num_heads, shared, width)
        y[:, :, t] = (factor * np.matmul(grouped, state)).reshape(batch, q_num_heads, -1)
    kept = query.dtype if past_state is None else past_state.dtype
    return merge_heads(y).astype(query.dtype, copy=False), state.astype(kept, copy=False)


@float_kernel("CausalConvWithState")
def causal_conv_with_state(
    x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *, activation: str = "none"
) -> Any:
    taps, length = weight.shape[-1], x.shape[-1]
    before = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past_state is None else past_state
    whole = np.concatenate([before, x], axis=-1)
    y = np.zeros_like(x)
    for i in range(taps):
        y += whole[..., i : i + length] * weight[:, :, i]
    if bias is not None:
        y += bias[:, None]
    if activation in ("silu", "swish"):
        y = y / (1 + np.exp(-y))
    return y, whole[..., whole.shape[-1] - (taps - 1) :].copy()
