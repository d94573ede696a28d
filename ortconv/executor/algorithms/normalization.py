"""Fast forms of normalizations. Statistics over the last axes are products with a vector of ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import dot_of_rows
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.tensor import Array


def _suits(work: Work, *operands: Array | None) -> bool:
    """True for float32 that is not to be recorded."""
    return work is AT_ONCE and all(x is None or x.dtype == np.float32 for x in operands)


def batch_normalization(
    work: Work,
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    training_mode: int = 0,
    **_: Any,
) -> Array | None:
    """A factor and a summand for each channel."""
    if training_mode or not _suits(work, x, scale, b, mean, var):
        return None
    per_channel = (-1, *(1,) * (x.ndim - 2))
    factor = scale / np.sqrt(var + np.float32(epsilon))
    y = x * factor.reshape(per_channel)
    y += (b - mean * factor).reshape(per_channel)
    return np.asarray(y)


def instance_normalization(work: Work, x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array | None:
    """Each channel in a group of its own."""
    if not _suits(work, x, scale, b):
        return None
    y, _, inverse = _center(x.reshape(*x.shape[:2], -1), epsilon)
    y *= inverse * scale[:, None]
    y += b[:, None]
    return y.reshape(x.shape)


def layer_normalization(
    work: Work,
    x: Array,
    scale: Array,
    b: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Array | None:
    if n_outputs > 1 or not _suits(work, x, scale, b) or not -x.ndim <= axis < x.ndim:
        return None
    y, _, inverse = _center(x.reshape(_rows(x, axis)), epsilon)
    y *= inverse
    y = y.reshape(x.shape)
    y *= scale
    if b is not None:
        y += b
    return y


def rms_normalization(
    work: Work,
    x: Array,
    scale: Array,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Array | None:
    if n_outputs > 1 or not _suits(work, x, scale) or not -x.ndim <= axis < x.ndim:
        return None
    rows = x.reshape(_rows(x, axis))
    y = (rows * _inverse_root_mean_square(rows, epsilon)).reshape(x.shape)
    y *= scale
    return y


def _rows(x: Array, axis: int) -> tuple[int, int]:
    """The shape (outer, inner) that x has when split before `axis`."""
    axis %= x.ndim
    return prod(x.shape[:axis]), prod(x.shape[axis:])


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


def prepared_layer_normalization(
    reference: Function, operands: Sequence[Array | None], axis: int, epsilon: float
) -> Function | None:
    """Float32 rows along the last axis, in their own memory; `reference` for others."""
    scale = operands[1]
    if scale is None or scale.dtype != np.float32 or scale.ndim != 1 or not scale.size:
        return None
    size = scale.size
    averaging, share, bound = _averaging(size, scale.dtype), np.asarray(1 / size, "f4"), np.asarray(epsilon, "f4")

    def run(work: Work, x: Array, scale: Array, b: Array | None = None) -> Any:
        if x.dtype != np.float32 or x.ndim < 2 or axis not in (-1, x.ndim - 1) or x.shape[-1] != size:
            return work.call(reference, x, scale, b)
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
