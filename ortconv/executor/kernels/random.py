"""Random number generators. The same seed gives the same numbers; without a seed every run differs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def generator(seed: float | None) -> np.random.Generator:
    """A generator for a seed attribute, which ONNX stores as a float."""
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def _dtype(code: int | None, like: Array) -> np.dtype[np.generic]:
    return like.dtype if code is None else DType(code).numpy


@kernel("RandomNormal")
def random_normal(
    *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    return np.asarray(generator(seed).normal(mean, scale, shape)).astype(DType(dtype).numpy)


@kernel("RandomUniform")
def random_uniform(
    *, shape: Sequence[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Array:
    return np.asarray(generator(seed).uniform(low, high, shape)).astype(DType(dtype).numpy)


@kernel("RandomNormalLike")
def random_normal_like(
    x: Array, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    return np.asarray(generator(seed).normal(mean, scale, x.shape)).astype(_dtype(dtype, x))


@kernel("RandomUniformLike")
def random_uniform_like(
    x: Array, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Array:
    return np.asarray(generator(seed).uniform(low, high, x.shape)).astype(_dtype(dtype, x))


@kernel("Bernoulli")
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    draws = generator(seed).uniform(0, 1, x.shape)
    return np.asarray(draws < widen(x)).astype(_dtype(dtype, x))


@kernel("Multinomial")
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """Class numbers (batch, sample_size) drawn by unnormalized log-probabilities (batch, classes)."""
    logits = widen(x).astype(np.float64)
    total = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
    draws = generator(seed).uniform(0, 1, (len(x), sample_size)) * total[:, -1:]
    classes = [row.searchsorted(points, side="right") for row, points in zip(total, draws)]
    return np.array(classes, dtype=DType(dtype).numpy).reshape(len(x), sample_size)
