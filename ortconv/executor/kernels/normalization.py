"""Normalizations. Statistics over the last axes are products with a vector of ones, which is the fast way to sum short rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.blockwise import dot_of_rows
from ortconv.executor.algorithms.half_precision import in_float32, widen
from ortconv.executor.kernels.registry import kernel, prepare
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def _per_channel(v: Array, x: Array) -> Array:
    """A vector of length C that broadcasts against (N, C, ...)."""
    return v.reshape(-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else v


def _affine(x: Array, scale: Array, shift: Array) -> Array:
    y = x * scale
    y += shift
    return y


@kernel("BatchNormalization", since=7, until=13)
def batch_normalization_7(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Array:
    if not spatial:
        xs, *rest = (widen(v) for v in (x, scale, b, mean, var))
        gamma, beta, mu, sigma2 = rest
        return np.asarray((xs - mu) / np.sqrt(sigma2 + sigma2.dtype.type(epsilon)) * gamma + beta).astype(
            x.dtype, copy=False
        )
    return _normalize_batch(x, scale, b, mean, var, epsilon)


@kernel("BatchNormalization", since=14)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> Any:
    if not training_mode:
        return _normalize_batch(x, scale, b, mean, var, epsilon)
    wide = widen(x)
    axes = (0, *range(2, x.ndim))
    batch_mean, batch_var = wide.mean(axis=axes), wide.var(axis=axes)
    y = _normalize_batch(x, scale, b, batch_mean, batch_var, epsilon)
    running = (
        (widen(old) * momentum + new * (1 - momentum)).astype(old.dtype)
        for old, new in ((mean, batch_mean), (var, batch_var))
    )
    return (y, *running)[:n_outputs]


def _normalize_batch(x: Array, scale: Array, b: Array, mean: Array, var: Array, epsilon: float) -> Array:
    xs, gamma, beta, mu, sigma2 = (widen(v) for v in (x, scale, b, mean, var))
    factor = gamma / np.sqrt(sigma2 + sigma2.dtype.type(epsilon))
    shift = beta - mu * factor
    y = _affine(
        xs, _per_channel(factor.astype(xs.dtype, copy=False), x), _per_channel(shift.astype(xs.dtype, copy=False), x)
    )
    return y.astype(x.dtype, copy=False)


@kernel("InstanceNormalization")
@in_float32
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array:
    return _normalize_groups(x, x.shape[1], epsilon, scale, b)


def _standardize(x: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + epsilon) over the last axis; also the mean and the reciprocal deviation, both keeping that axis."""
    y, mean, inverse = _center(x, epsilon)
    y *= inverse
    return y, mean, inverse


def _center(x: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """x - mean over the last axis, the mean, and 1 / sqrt(var + epsilon), both keeping that axis."""
    mean = np.asarray(x @ _averaging(x.shape[-1], x.dtype))
    y = x - mean
    return y, mean, _inverse_root_mean_square(y, epsilon)


def _inverse_root_mean_square(x: Array, epsilon: float) -> Array:
    """1 / sqrt(mean(x**2) + epsilon) over the last axis, keeping it."""
    mean = dot_of_rows(x, x)[..., None] / x.dtype.type(max(x.shape[-1], 1))
    return np.asarray(1 / np.sqrt(mean + x.dtype.type(epsilon)))


@cache
def _averaging(n: int, dtype: np.dtype[Any]) -> Array:
    """What rows of length n are multiplied by for their means, (n, 1)."""
    return np.full((n, 1), 1 / max(n, 1), dtype)


def _rows(x: Array, axis: int) -> tuple[int, int]:
    """The shape (outer, inner) that x has when split before `axis`. GraphError if the axis does not exist."""
    if not -x.ndim <= axis <= x.ndim:
        raise GraphError(f"axis {axis} does not exist in shape {list(x.shape)}")
    axis = axis + x.ndim if axis < 0 else axis
    return prod(x.shape[:axis]), prod(x.shape[axis:])


def _stash(x: Array, stash_type: int) -> Array:
    """The input in the type in which the first stage computes: float32 by default, and never less than x has."""
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


@kernel("LayerNormalization")
def layer_normalization(
    x: Array,
    scale: Array,
    b: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Any:
    kept = x.shape[: axis % x.ndim] if x.ndim else ()
    y, mean, inverse = _standardize(_stash(x, stash_type).reshape(_rows(x, axis)), epsilon)
    y = y.reshape(x.shape)
    y *= widen(scale)
    if b is not None:
        y += widen(b)
    y = y.astype(x.dtype, copy=False)
    if n_outputs == 1:
        return y
    shape, stash = (*kept, *(1,) * (x.ndim - len(kept))), DType(stash_type).numpy
    return (y, *(v.reshape(shape).astype(stash, copy=False) for v in (mean, inverse)))[:n_outputs]


@prepare("LayerNormalization")
def prepare_layer_normalization(
    operands: Sequence[Array | None], *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int = 1
) -> Function | None:
    """Float32 rows along the last axis, in their own memory."""
    scale = operands[1]
    if scale is None or scale.dtype != np.float32 or scale.ndim != 1 or not scale.size or n_outputs != 1:
        return None
    size = scale.size
    averaging, share, bound = _averaging(size, scale.dtype), np.asarray(1 / size, "f4"), np.asarray(epsilon, "f4")

    def run(work: Work, x: Array, scale: Array, b: Array | None = None) -> Any:
        if x.dtype != np.float32 or x.ndim < 2 or axis not in (-1, x.ndim - 1) or x.shape[-1] != size:
            plainly = partial(layer_normalization, axis=axis, epsilon=epsilon, stash_type=stash_type)
            return work.call(plainly, x, scale, b)
        y = work.empty(x.shape)
        mean, deviation = work.empty((*x.shape[:-1], 1)), work.empty(x.shape[:-1])
        work.do(np.matmul, x, averaging, mean)
        work.do(np.subtract, x, mean, y)
        work.do(partial(dot_of_rows, out=deviation), y, y)
        work.do(np.multiply, deviation, share, deviation)
        work.do(np.add, deviation, bound, deviation)
        work.do(np.sqrt, deviation, deviation)
        work.do(np.divide, y, deviation[..., None], y)
        work.do(np.multiply, y, scale, y)
        if b is not None:
            work.do(np.add, y, b, y)
        return y

    return recordable(run)


def _rms(x: Array, scale: Array, axis: int, epsilon: float, stash_type: int) -> tuple[Array, Array]:
    rows = _stash(x, stash_type).reshape(_rows(x, axis))
    inverse = _inverse_root_mean_square(rows, epsilon)
    y = (rows * inverse).reshape(x.shape)
    return (y * widen(scale)).astype(x.dtype, copy=False), inverse


@kernel("RMSNormalization")
def rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    return _rms(x, scale, axis, epsilon, stash_type)[0]


@kernel("SimplifiedLayerNormalization")
@kernel("SimplifiedLayerNormalization", domain="com.microsoft")
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int = 1
) -> Any:
    y, inverse = _rms(x, scale, axis, epsilon, stash_type)
    kept = x.shape[: axis % x.ndim]
    return y if n_outputs == 1 else (y, inverse.reshape(*kept, *(1,) * (x.ndim - len(kept))))


@kernel("SkipLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-5,
    n_outputs: int = 1,
) -> Any:
    total = _skip_sum(x, skip, bias)
    y, mean, inverse = _standardize(total, epsilon)
    y *= widen(gamma)
    if beta is not None:
        y += widen(beta)
    return _with_statistics(y, mean, inverse, total, x.dtype, n_outputs)


@kernel("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_simplified_layer_normalization(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-5, n_outputs: int = 1
) -> Any:
    total = _skip_sum(x, skip, bias)
    inverse = _inverse_root_mean_square(total, epsilon)
    return _with_statistics(total * inverse * widen(gamma), np.zeros_like(inverse), inverse, total, x.dtype, n_outputs)


def _skip_sum(x: Array, skip: Array, bias: Array | None) -> Array:
    total = np.asarray(widen(x) + widen(skip))
    return total if bias is None else total + widen(bias)


def _with_statistics(y: Array, mean: Array, inverse: Array, total: Array, dtype: np.dtype[Any], n_outputs: int) -> Any:
    outputs = (y.astype(dtype, copy=False), mean, inverse, total.astype(dtype, copy=False))
    return outputs[0] if n_outputs == 1 else outputs[:n_outputs]


@kernel("EmbedLayerNormalization", domain="com.microsoft")
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
    n_outputs: int = 2,
) -> Any:
    batch, length = input_ids.shape
    position = position_embedding[:length] if position_ids is None else position_embedding[position_ids]
    total = widen(word_embedding[input_ids]) + widen(position)
    if segment_ids is not None and segment_embedding is not None:
        total = total + widen(segment_embedding[segment_ids])
    y, _, _ = _standardize(total, epsilon)
    y = _affine(y, widen(gamma), widen(beta))
    mask_index = np.zeros(batch, np.int32) if mask is None else (mask != 0).sum(axis=1).astype(np.int32)
    dtype = gamma.dtype
    outputs = (y.astype(dtype, copy=False), mask_index, total.astype(dtype, copy=False))
    return outputs[0] if n_outputs == 1 else outputs[:n_outputs]


def _normalize_groups(x: Array, num_groups: int, epsilon: float, scale: Array, shift: Array) -> Array:
    """Groups of channels to mean 0 and deviation 1, then scaled and shifted by channel."""
    n, channels, *spatial = x.shape
    if channels and (num_groups < 1 or channels % num_groups):
        raise GraphError(f"{channels} channels cannot be divided into {num_groups} groups")
    size, per_group = prod(spatial), channels // max(num_groups, 1)
    y, _, inverse = _center(x.reshape(n, num_groups, per_group * size), epsilon)
    factor = np.repeat(inverse, per_group, axis=1) * scale[:, None]
    y = y.reshape(n, channels, size)
    y *= factor
    y += shift[:, None]
    return y.reshape(x.shape)


@kernel("GroupNormalization", since=18, until=20)
@in_float32
def group_normalization_18(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Array:
    """Scale and bias per group."""
    repeat = x.shape[1] // max(num_groups, 1)
    return _normalize_groups(x, num_groups, epsilon, np.repeat(scale, repeat), np.repeat(bias, repeat))


@kernel("GroupNormalization", since=21)
@in_float32
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Scale and bias per channel."""
    return _normalize_groups(x, num_groups, epsilon, scale, bias)


@kernel("LpNormalization")
@in_float32
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """Zero where the norm is zero."""
    norm = np.abs(x).sum(axis=axis, keepdims=True) if p == 1 else np.sqrt(np.square(x).sum(axis=axis, keepdims=True))
    return np.asarray(np.divide(x, norm, out=np.zeros_like(x), where=norm != 0))


@kernel("MeanVarianceNormalization")
@in_float32
def mean_variance_normalization(
    x: Array, *, axes: Sequence[int] = (0, 2, 3), across_channels: int | None = None, normalize_variance: int = 1
) -> Array:
    if across_channels is not None:
        axes = (0, 1, 2, 3) if across_channels else (0, 2, 3)
    centered = x - x.mean(axis=tuple(axes), keepdims=True)
    if not normalize_variance:
        return np.asarray(centered)
    deviation = np.sqrt(np.square(centered).mean(axis=tuple(axes), keepdims=True))
    return np.asarray(centered / (deviation + x.dtype.type(1e-9)))


@kernel("LRN")
@in_float32
def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    channels = x.shape[1]
    total = np.zeros((x.shape[0], channels + 1, *x.shape[2:]), np.float64)
    np.cumsum(np.square(x, dtype=np.float64), axis=1, out=total[:, 1:])
    c = np.arange(channels)
    window = total[:, np.minimum(c + after + 1, channels)] - total[:, np.maximum(c - before, 0)]
    return np.asarray(x / (bias + alpha / size * window) ** beta).astype(x.dtype, copy=False)
