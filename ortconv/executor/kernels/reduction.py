"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.algorithms.pooling import mean_of_channels
from ortconv.executor.kernels.elementwise import truncated_quotient
from ortconv.executor.kernels.movement import integers
from ortconv.executor.kernels.registry import Function, float_kernel, older, table
from ortconv.ir.tensor import Array

Axes = tuple[int, ...]
Reduction = Callable[[Array, Axes, bool], Any]


_FEW = 1 << 10
"""Up to this number of elements, a sum in their order is precise enough."""


def precise_sum(x: Array, axes: tuple[int, ...], keepdims: bool = True) -> Any:
    """The sum over axes, in the type of x.

    numpy adds pairwise along the axis that is innermost in memory, and one by one along others: the error of the second way grows
    with the number of elements, so it runs in float64. Channels are innermost in the memory of many images.
    """
    if x.size > _FEW and x.dtype == np.float32 and math.prod(x.shape[a] for a in axes) > _FEW:
        innermost = min(range(x.ndim), key=lambda a: (x.shape[a] == 1, abs(x.strides[a])))
        if innermost not in {a % x.ndim for a in axes}:
            return x.sum(axis=axes, keepdims=keepdims, dtype=np.float64).astype(x.dtype)
    return x.sum(axis=axes, keepdims=keepdims, dtype=x.dtype)


def mean(x: Array, axes: Axes, keepdims: bool = True) -> Any:
    # The mean of nothing is left open by ONNX; onnxruntime returns 0.
    count = x.dtype.type(max(math.prod(x.shape[a] for a in axes), 1))
    total = np.asarray(precise_sum(x, axes, keepdims))
    return truncated_quotient(total, count) if x.dtype.kind in "iu" else total / count


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The results of ReduceMax and ReduceMin without elements."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return (False, True) if dtype.kind == "b" else (-np.inf, np.inf)


def _log_sum_exp(x: Array, axes: Axes, keepdims: bool) -> Any:
    if x.dtype.kind in "iu":
        return _log_sum_exp(x.astype(np.float64), axes, keepdims)
    if x.size == 0:
        return np.log(precise_sum(x, axes, keepdims))
    peak = np.asarray(x.max(axis=axes, keepdims=True))
    peak = np.where(np.isfinite(peak), peak, 0).astype(x.dtype)
    total = np.asarray(np.log(precise_sum(np.exp(x - peak), axes))) + peak
    return total if keepdims else total.squeeze(axes)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": precise_sum,
    "ReduceMean": mean,
    "ReduceMax": lambda x, axes, keepdims: x.max(axes, keepdims=keepdims, initial=_limits(x.dtype)[0]),
    "ReduceMin": lambda x, axes, keepdims: x.min(axes, keepdims=keepdims, initial=_limits(x.dtype)[1]),
    "ReduceProd": lambda x, axes, keepdims: x.prod(axes, x.dtype, keepdims=keepdims),
    "ReduceL1": lambda x, axes, keepdims: precise_sum(np.abs(x), axes, keepdims),
    "ReduceL2": lambda x, axes, keepdims: np.sqrt(precise_sum(x * x, axes, keepdims)),
    "ReduceSumSquare": lambda x, axes, keepdims: precise_sum(x * x, axes, keepdims),
    "ReduceLogSum": lambda x, axes, keepdims: np.log(precise_sum(x, axes, keepdims)),
    "ReduceLogSumExp": _log_sum_exp,
}


def _register(op: str, reduction: Reduction) -> None:
    first = 13 if op == "ReduceSum" else 18
    fast = mean_of_channels if op == "ReduceMean" else None

    @float_kernel(op, since=first, fast=fast)
    def reduce(x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        over: Axes = () if noop_with_empty_axes else tuple(range(x.ndim))
        if axes is not None and axes.size:
            over = tuple({a + x.ndim if a < 0 else a for a in integers(axes)})
        saturates = op in ("ReduceL1", "ReduceL2") and x.dtype in (np.int32, np.uint32)  # as in ONNX Runtime
        y = np.asarray(reduction(x.astype(np.float64) if saturates else x, over, bool(keepdims)))
        return (np.minimum(y, np.iinfo(x.dtype).max) if saturates else y).astype(x.dtype, copy=False)

    older(op, "axes", until=first - 1, fast=fast)


for _op, _reduction in _REDUCTIONS.items():
    _register(_op, _reduction)


def _extreme(largest: bool) -> Function:
    def run(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        x = np.flip(widen(x), axis) if select_last_index else widen(x)
        index = np.asarray(x.argmax(axis) if largest else x.argmin(axis), dtype=np.int64)
        index = np.asarray(x.shape[axis] - 1 - index) if select_last_index else index
        return np.expand_dims(index, axis) if keepdims else index

    return run


table({"ArgMax": _extreme(largest=True), "ArgMin": _extreme(largest=False)})
