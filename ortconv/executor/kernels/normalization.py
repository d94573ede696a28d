"""Normalizations: the elements of a group minus their mean, divided by their deviation, then scaled and shifted."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.half_precision import compute_type, widen
from ortconv.executor.kernels.activation import FORMULAS
from ortconv.executor.kernels.reduction import Axes, mean, precise_sum
from ortconv.executor.kernels.registry import float_kernel, kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def _inverse_deviation(centered: Array, axes: Axes, epsilon: float) -> Array:
    return np.asarray(1 / np.sqrt(mean(centered * centered, axes) + centered.dtype.type(epsilon)))


def _standardized(x: Array, axes: Axes, epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + epsilon) over axes, the mean, and 1 / sqrt(var + epsilon)."""
    center = mean(x, axes)
    inverse = _inverse_deviation(x - center, axes, epsilon)
    return (x - center) * inverse, center, inverse


def _axes_from(x: Array, axis: int) -> Axes:
    """All axes from `axis` on. GraphError if it does not exist."""
    if not -x.ndim <= axis <= x.ndim:
        raise GraphError(f"axis {axis} does not exist in shape {list(x.shape)}")
    return tuple(range(axis + x.ndim if axis < 0 else axis, x.ndim))


def _per_channel(v: Array, x: Array) -> Array:
    """A vector of length C that broadcasts against (N, C, ...). GraphError if it has another shape."""
    if x.ndim < 2:
        return v
    if v.shape != x.shape[1:2]:
        raise GraphError(f"a parameter has shape {list(v.shape)}, the input has {x.shape[1]} channels")
    return v.reshape(-1, *(1,) * (x.ndim - 2))


@kernel("BatchNormalization", since=7)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> Any:
    """Before opset 9, parameters without `spatial` have an element for each feature. Before opset 14, five outputs mean training;
    the last is the inverse of a deviation in onnxruntime.
    """
    training = training_mode or n_outputs == 5
    wide, axes, old = widen(x), (0, *range(2, x.ndim)) if spatial else (0,), (widen(mean), widen(var))
    used = (wide.mean(axis=axes), wide.var(axis=axes)) if training else old
    gain, shift, m, v = (_per_channel(p, x) if spatial else p for p in (widen(scale), widen(b), *used))
    factor = gain / np.sqrt(v + v.dtype.type(epsilon))
    # The statistics may have a wider type than x.
    y = (wide * factor.astype(wide.dtype) + (shift - m * factor).astype(wide.dtype)).astype(x.dtype, copy=False)
    if not training:
        return np.asarray(y)
    running = ((o * momentum + new * (1 - momentum)).astype(mean.dtype) for o, new in zip(old, used))
    saved = (used[0], 1 / np.sqrt(used[1] + epsilon)) if n_outputs == 5 else ()
    return (y, *running, *(v.astype(mean.dtype) for v in saved))


@float_kernel("InstanceNormalization")
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array:
    y, _, _ = _standardized(x, tuple(range(2, x.ndim)), epsilon)
    return y * _per_channel(scale, x) + _per_channel(b, x)


@kernel("LayerNormalization")
def layer_normalization(
    x: Array, scale: Array, b: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    y, *statistics = _standardized(x.astype(compute_type(x.dtype), copy=False), _axes_from(x, axis), epsilon)
    y = y * widen(scale) if b is None else y * widen(scale) + widen(b)
    stash = x.dtype if x.dtype == object else DType(stash_type or DType.FLOAT).numpy  # 0 is float in onnxruntime
    return (y.astype(x.dtype, copy=False), *(v.astype(stash, copy=False) for v in statistics))


@kernel("RMSNormalization", "SimplifiedLayerNormalization")
@kernel("SimplifiedLayerNormalization", domain=MICROSOFT)
def rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    """x / sqrt(mean(x^2) + epsilon) * scale, and the reciprocal of the root."""
    wide = x.astype(compute_type(x.dtype), copy=False)
    inverse = _inverse_deviation(wide, _axes_from(x, axis), epsilon)
    return (wide * inverse * widen(scale)).astype(x.dtype, copy=False), inverse


@float_kernel("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(x: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5) -> Any:
    y, _ = rms_normalization(x.reshape(*x.shape[:-1], -1, len(scale)), scale, epsilon=epsilon)
    return y.reshape(x.shape) * FORMULAS["Sigmoid" if activation == "sigmoid" else "Swish"](gate)


@kernel("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None, *, epsilon: float = 1e-12
) -> Any:
    total = _skip_sum(x, skip, bias)
    y, *statistics = layer_normalization(total, gamma, beta, epsilon=epsilon)
    return y.astype(x.dtype, copy=False), *statistics, total.astype(x.dtype, copy=False)


@kernel("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12
) -> Any:
    total = _skip_sum(x, skip, bias)
    y, inverse = rms_normalization(total, gamma, epsilon=epsilon)
    return y.astype(x.dtype, copy=False), np.zeros_like(inverse), inverse, total.astype(x.dtype, copy=False)


def _skip_sum(x: Array, skip: Array, bias: Array | None) -> Array:
    total = np.asarray(widen(x) + widen(skip))
    return total if bias is None else total + widen(bias)


@kernel("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Any:
    """LayerNormalization of the sum of all embeddings; the number of tokens that each mask has; the sum."""
    batch, length = input_ids.shape
    position = position_embedding[:length] if position_ids is None else position_embedding[position_ids]
    total = widen(word_embedding[input_ids]) + widen(position)
    if segment_ids is not None and segment_embedding is not None:
        total = total + widen(segment_embedding[segment_ids])
    y, _, _ = layer_normalization(total, gamma, beta, epsilon=epsilon)
    mask_index = np.zeros(batch, np.int32) if mask is None else (mask != 0).sum(axis=1).astype(np.int32)
    return y.astype(gamma.dtype, copy=False), mask_index, total.astype(gamma.dtype, copy=False)


@float_kernel("GroupNormalization", since=21)
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Scale and bias per channel."""
    channels = x.shape[1]
    if channels and (num_groups < 1 or channels % num_groups):
        raise GraphError(f"{channels} channels cannot be divided into {num_groups} groups")
    groups = x.reshape(x.shape[0], num_groups, prod(x.shape[1:]) // max(num_groups, 1))
    y, _, _ = _standardized(groups, (2,), epsilon)
    return y.reshape(x.shape) * _per_channel(scale, x) + _per_channel(bias, x)


@kernel("GroupNormalization", since=18, until=20)
def group_normalization_18(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Any:
    """Scale and bias per group."""
    per_channel = (np.repeat(v, x.shape[1] // max(num_groups, 1)) for v in (scale, bias))
    return group_normalization(x, *per_channel, num_groups=num_groups, epsilon=epsilon)


@float_kernel("LpNormalization")
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """The result is zero if the norm is zero."""
    norm = precise_sum(np.abs(x), (axis,)) if p == 1 else np.sqrt(precise_sum(np.square(x), (axis,)))
    return np.asarray(np.divide(x, norm, out=np.zeros_like(x), where=norm != 0))


@float_kernel("MeanVarianceNormalization")
def mean_variance_normalization(
    x: Array, *, axes: Sequence[int] = (0, 2, 3), across_channels: int | None = None, normalize_variance: int = 1
) -> Array:
    if across_channels is not None:
        axes = (0, 1, 2, 3) if across_channels else (0, 2, 3)
    present = tuple(axis for axis in axes if axis < x.ndim)  # as onnxruntime does
    centered = x - mean(x, present)
    if not normalize_variance:
        return np.asarray(centered)
    deviation = np.sqrt(mean(np.square(centered), present))
    return np.asarray(centered / (deviation + x.dtype.type(1e-9)))


@float_kernel("LRN")
def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    channels = x.shape[1]
    total = np.zeros((x.shape[0], channels + 1, *x.shape[2:]), np.float64)
    np.cumsum(np.square(x, dtype=np.float64), axis=1, out=total[:, 1:])
    c = np.arange(channels)
    window = total[:, np.minimum(c + after + 1, channels)] - total[:, np.maximum(c - before, 0)]
    return np.asarray(x / (bias + alpha / size * window) ** beta).astype(x.dtype, copy=False)
