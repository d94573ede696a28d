"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.algorithms.pooling import mean_of_channels
from ortconv.executor.algorithms.sums import precise_sum
from ortconv.executor.kernels.elementwise import truncated_quotient
from ortconv.executor.kernels.movement import integers
from ortconv.executor.kernels.registry import float_kernel, kernel
from ortconv.ir.tensor import Array

Axes = tuple[int, ...]
Reduction = Callable[[Array, Axes, bool], Any]


def _mean(x: Array, axes: Axes, keepdims: bool) -> Any:
    # The mean of nothing is left open by ONNX; onnxruntime returns 0.
    count = x.dtype.type(max(math.prod(x.shape[a] for a in axes), 1))
    total = np.asarray(precise_sum(x, axes, keepdims))
    return truncated_quotient(total, count) if x.dtype.kind in "iu" else total / count


def _max(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.max(axis=axes, keepdims=keepdims, initial=_limits(x.dtype)[0] if x.size == 0 else None)  # type: ignore[arg-type]


def _min(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.min(axis=axes, keepdims=keepdims, initial=_limits(x.dtype)[1] if x.size == 0 else None)  # type: ignore[arg-type]


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind in "fb":
        return (-np.inf, np.inf) if dtype.kind == "f" else (False, True)
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _prod(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.prod(axis=axes, keepdims=keepdims, dtype=x.dtype)


def _log_sum_exp(x: Array, axes: Axes, keepdims: bool) -> Any:
    if x.dtype.kind in "iu":
        return _log_sum_exp(x.astype(np.float64), axes, keepdims)
    if x.size == 0:
        return np.log(precise_sum(x, axes, keepdims))
    peak = np.asarray(x.max(axis=axes, keepdims=True))
    peak = np.where(np.isfinite(peak), peak, 0).astype(x.dtype)
    total = np.asarray(np.log(np.exp(x - peak).sum(axis=axes, keepdims=True))) + peak
    return total if keepdims else total.squeeze(axes)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": precise_sum,
    "ReduceMean": _mean,
    "ReduceMax": _max,
    "ReduceMin": _min,
    "ReduceProd": _prod,
    "ReduceL1": lambda x, axes, keepdims: precise_sum(np.abs(x), axes, keepdims),
    "ReduceL2": lambda x, axes, keepdims: np.sqrt(precise_sum(x * x, axes, keepdims)),
    "ReduceSumSquare": lambda x, axes, keepdims: precise_sum(x * x, axes, keepdims),
    "ReduceLogSum": lambda x, axes, keepdims: np.log(precise_sum(x, axes, keepdims)),
    "ReduceLogSumExp": _log_sum_exp,
}


def _reduce(reduction: Reduction, x: Array, axes: Sequence[int] | None, keepdims: int, keep_if_empty: int) -> Array:
    if axes is not None and len(axes):
        over: Axes = tuple(a + x.ndim if a < 0 else a for a in axes)
    else:
        over = () if keep_if_empty else tuple(range(x.ndim))
    return np.asarray(reduction(x, over, bool(keepdims))).astype(x.dtype, copy=False)


def _register(op: str, reduction: Reduction) -> None:
    first = 13 if op == "ReduceSum" else 18
    fast = mean_of_channels if op == "ReduceMean" else None

    @float_kernel(op, until=first - 1, fast=fast)
    def with_attribute(x: Array, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Array:
        return _reduce(reduction, x, axes, keepdims, 0)

    @float_kernel(op, since=first, fast=fast)
    def with_input(x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        return _reduce(reduction, x, None if axes is None else integers(axes), keepdims, noop_with_empty_axes)


for _op, _reduction in _REDUCTIONS.items():
    _register(_op, _reduction)


def _arg(x: Array, largest: bool, axis: int, keepdims: int, select_last_index: int) -> Array:
    x = widen(x)
    if select_last_index:
        x = np.flip(x, axis)
    index = np.asarray(x.argmax(axis) if largest else x.argmin(axis), dtype=np.int64)
    if select_last_index:
        index = np.asarray(x.shape[axis] - 1 - index)
    return np.expand_dims(index, axis) if keepdims else index


@kernel("ArgMax")
def arg_max(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    return _arg(x, True, axis, keepdims, select_last_index)


@kernel("ArgMin")
def arg_min(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    return _arg(x, False, axis, keepdims, select_last_index)
