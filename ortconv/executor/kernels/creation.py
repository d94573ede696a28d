"""Operators that create tensors from shapes and attributes, and operators that return shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.half_precision import is_narrow, widen
from ortconv.executor.kernels.movement import integers
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


@kernel("Constant")
def constant(
    *,
    value: Array | None = None,
    sparse_value: Any = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    if value is not None:
        return value
    if sparse_value is not None:
        return sparse_value if isinstance(sparse_value, np.ndarray) else sparse_value.dense().numpy()
    for integer in (value_int, value_ints):
        if integer is not None:
            return np.array(integer, dtype=np.int64)
    for real in (value_float, value_floats):
        if real is not None:
            return np.array(real, dtype=np.float32)
    for text in (value_string, value_strings):
        if text is not None:
            return np.array(text, dtype=object)
    raise ValueError("Constant without a value")


@kernel("ConstantOfShape")
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Array:
    if value is None:
        return np.zeros(integers(shape), dtype=np.float32)
    return np.full(integers(shape), value.reshape(-1)[0], dtype=value.dtype)


@kernel("Shape")
def shape_of(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], dtype=np.int64)


@kernel("Size")
def size(x: Array) -> Array:
    return np.array(x.size, dtype=np.int64)


@kernel("Range")
def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    dtype = start.dtype
    if dtype.kind in "iu":
        count = -((int(start.item()) - int(limit.item())) // int(delta.item()))
    else:
        count = math.ceil((widen(limit) - widen(start)).item() / delta.item())
    compute = np.dtype(np.float32) if is_narrow(dtype) and stash_type else dtype
    steps = np.arange(max(count, 0)).astype(compute)
    origin, step = start.reshape(()).astype(compute), delta.reshape(()).astype(compute)
    return np.asarray(origin + steps * step).astype(dtype, copy=False)


@kernel("EyeLike")
def eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    rows, columns = x.shape
    return np.eye(rows, columns, k, dtype=x.dtype if dtype is None else DType(dtype).numpy)


@kernel("Dropout", until=6)
def dropout_1(x: Array, *, ratio: float = 0.5, is_test: int = 0) -> tuple[Array, Array]:
    if is_test:
        return x, np.ones(x.shape, dtype=x.dtype)
    out, mask = _dropout(x, ratio, None)
    return out, mask.astype(x.dtype)


@kernel("Dropout", since=7, until=9)
def dropout_7(x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    return x, _all(x.shape, x.dtype)


@kernel("Dropout", since=10, until=11)
def dropout_10(x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    return x, _all(x.shape, bool)


@kernel("Dropout", since=12)
def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Array, Array]:
    if training_mode is None or not training_mode.item():
        return x, _all(x.shape, bool)
    return _dropout(x, 0.5 if ratio is None else float(ratio.item()), seed)


def _all(shape: tuple[int, ...], dtype: Any) -> Array:
    """A mask that keeps all elements. It is seldom used."""
    return np.broadcast_to(np.ones((), dtype), shape)


def _dropout(x: Array, ratio: float, seed: int | None) -> tuple[Array, Array]:
    if ratio == 0:
        return x, np.ones(x.shape, dtype=bool)
    mask = np.random.RandomState(seed).uniform(0, 1, x.shape) >= ratio
    out = np.zeros_like(x)
    np.copyto(out, (x * x.dtype.type(1 / (1 - ratio))).astype(x.dtype), where=mask)
    return out, np.asarray(mask)
