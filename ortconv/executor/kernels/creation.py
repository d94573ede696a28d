"""Operators that create tensors from shapes, attributes and random numbers, and operators that return shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.half_precision import is_narrow, widen
from ortconv.executor.kernels.movement import integers
from ortconv.executor.kernels.registry import Function, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

_CONSTANTS = {
    "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32,
    "value_string": object, "value_strings": object,
}  # fmt: skip
"""The type of the constant that each of these attributes states."""


@kernel("Constant")
def constant(*, value: Array | None = None, sparse_value: Array | None = None, **stated: Any) -> Array:
    given = sparse_value if value is None else value
    if given is None:
        ((name, content),) = stated.items()
        given = np.array(content, _CONSTANTS[name])
    return given


@kernel("ConstantOfShape")
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Array:
    if value is None:
        return np.zeros(integers(shape), dtype=np.float32)
    return np.full(integers(shape), value.reshape(-1)[0], dtype=value.dtype)


table({
    "Shape": lambda x, *, start=0, end=None: np.array(x.shape[start:end], np.int64),
    "EyeLike": lambda x, *, dtype=None, k=0: np.eye(len(x), x.shape[1], k, DType(dtype).numpy if dtype else x.dtype),
    "Size": lambda x: np.array(x.size, np.int64),
})  # fmt: skip


@kernel("Range")
@kernel("Range", domain=MICROSOFT)
def range_(start: Array, limit: Array, delta: Array | None = None, *, stash_type: int = 1) -> Array:
    dtype = start.dtype
    delta = np.ones((), dtype) if delta is None else delta
    if dtype.kind in "iu":
        count = -((int(start.item()) - int(limit.item())) // int(delta.item()))
    else:
        count = math.ceil((widen(limit) - widen(start)).item() / delta.item())
    compute = np.dtype(np.float32) if is_narrow(dtype) and stash_type else dtype
    steps = np.arange(max(count, 0)).astype(compute)
    origin, step = start.reshape(()).astype(compute), delta.reshape(()).astype(compute)
    return np.asarray(origin + steps * step).astype(dtype, copy=False)


@kernel("Dropout", until=6)
def dropout_1(x: Array, *, ratio: float = 0.5, is_test: int = 0) -> tuple[Array, Array]:
    if is_test:
        return x, np.ones(x.shape, dtype=x.dtype)
    out, mask = _dropout(x, ratio, None)
    return out, mask.astype(x.dtype)


table({"Dropout": lambda x, *, ratio=0.5: (x, _all(x.shape, x.dtype, 0))}, since=7, until=9)


@kernel("Dropout", since=12)
def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Array, Array]:
    if training_mode is None or not training_mode.item():
        return x, _all(x.shape, bool)
    return _dropout(x, 0.5 if ratio is None else float(ratio.item()), seed)


table({"Dropout": lambda x, *, ratio=0.5: (x, _all(x.shape, bool, 0))}, since=10, until=11)


def _all(shape: tuple[int, ...], dtype: Any, value: int = 1) -> Array:
    """A mask that keeps all elements. It is seldom used. Before opset 12, onnxruntime's is 0."""
    return np.broadcast_to(np.array(value, dtype), shape)


def _dropout(x: Array, ratio: float, seed: int | None) -> tuple[Array, Array]:
    if not 0 <= ratio < 1:
        raise GraphError(f"the ratio is {ratio:g}, must be at least 0 and less than 1")
    if ratio == 0:
        return x, np.ones(x.shape, dtype=bool)
    mask = np.random.RandomState(seed).uniform(0, 1, x.shape) >= ratio
    out = np.where(mask, x * x.dtype.type(1 / (1 - ratio)), x.dtype.type(0))
    return out.astype(x.dtype, copy=False), np.asarray(mask)


def generator(seed: float | None) -> np.random.Generator:
    """A generator for a seed attribute, which ONNX stores as a float."""
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


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


def _like(create: Function) -> Function:
    """By default with the type of the first input."""
    return lambda x, *, dtype=None, **given: create(shape=x.shape, dtype=dtype or DType.of(x.dtype), **given)


table({"RandomNormalLike": _like(random_normal), "RandomUniformLike": _like(random_uniform)})


@kernel("Bernoulli")
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    drawn = generator(seed).uniform(0, 1, x.shape) < widen(x)
    return np.asarray(drawn).astype(x.dtype if dtype is None else DType(dtype).numpy)


@kernel("Multinomial")
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """Class numbers (batch, sample_size) drawn by unnormalized log-probabilities (batch, classes)."""
    logits = widen(x).astype(np.float64)
    total = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
    draws = generator(seed).uniform(0, 1, (len(x), sample_size)) * total[:, -1:]
    classes = [row.searchsorted(points, side="right") for row, points in zip(total, draws)]
    return np.array(classes, dtype=DType(dtype).numpy).reshape(len(x), sample_size)
