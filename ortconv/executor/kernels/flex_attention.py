"""Attention whose scores and probabilities are modified by subgraphs of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.kernels.activation import softmax
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

Body = Callable[..., tuple[Any, ...]]


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
    group = q.shape[1] // k.shape[1]
    # Groups of query heads are folded into the batch, so that shared heads are never repeated.
    queries = widen(q * root).reshape(q.shape[0], k.shape[1], group * q.shape[2], q.shape[3])
    scores = np.matmul(queries, widen(k * root).swapaxes(-1, -2)).astype(dtype, copy=False)
    scores = scores.reshape(*q.shape[:3], k.shape[2]).astype(precision, copy=False)
    if score_mod is not None:
        scores = np.asarray(score_mod(scores)[0])
    probs = softmax(widen(scores)).astype(precision, copy=False)
    if prob_mod is not None:
        probs = np.asarray(prob_mod(probs)[0])
    probs = widen(probs).reshape(q.shape[0], k.shape[1], group * q.shape[2], k.shape[2])
    y: Array = np.matmul(probs, v.astype(probs.dtype, copy=False))
    return y.reshape(*q.shape[:3], v.shape[3]).astype(dtype, copy=False)
