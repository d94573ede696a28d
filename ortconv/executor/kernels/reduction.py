"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import ones
from ortconv.executor.algorithms.half_precision import in_float32, is_narrow, widen
from ortconv.executor.algorithms.sliding_window import to_last
from ortconv.executor.kernels.elementwise import truncated_quotient
from ortconv.executor.kernels.movement import integers
from ortconv.executor.kernels.registry import kernel
from ortconv.executor.replay.work import AT_ONCE, Work, recorded_by
from ortconv.ir.tensor import Array

Axes = tuple[int, ...]
Reduction = Callable[[Array, Axes, bool], Any]


def _sum(x: Array, axes: Axes, keepdims: bool) -> Any:
    totals = _products_with_ones(AT_ONCE, x, axes)
    if totals is None:
        return x.sum(axis=axes, keepdims=keepdims, dtype=x.dtype)
    return totals.reshape(_left(x, axes, keepdims))


def _left(x: Array, axes: Axes, keepdims: bool) -> list[int]:
    return [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]


_ROW_LIMIT = 4096
"""Longer rows are left to the pairwise summation of numpy, which is more accurate."""

_FEWEST_TOGETHER = 256
"""Elements that a product must add up: products of less are many."""


def _products_with_ones(work: Work, x: Array, axes: Axes) -> Array | None:
    """Sums of floats over neighboring axes as products, which outrun reductions of short rows and columns; else None."""
    if x.dtype.kind != "f" or not axes or not x.size:
        return None
    if not x.flags.c_contiguous and sorted(axes) == list(range(2, x.ndim)):
        x, axes = to_last(x), tuple(range(1, x.ndim - 1))
    first, end = min(axes), max(axes) + 1
    length, columns = math.prod(x.shape[first:end]), math.prod(x.shape[end:])
    if not x.flags.c_contiguous or end - first > len(axes) or length > _ROW_LIMIT:
        return None
    if columns > 1 and length * columns < _FEWEST_TOGETHER:
        return None
    out = work.empty((x.size // (length * columns), columns), x.dtype)
    if columns == 1:
        work.do(np.dot, x.reshape(-1, length), ones(length, x.dtype), out.reshape(-1))
    else:
        work.do(np.matmul, ones(length, x.dtype), x.reshape(-1, length, columns), out)
    return out


def _mean(x: Array, axes: Axes, keepdims: bool) -> Any:
    # The mean of nothing is left open by ONNX; onnxruntime returns 0.
    count = x.dtype.type(max(math.prod(x.shape[a] for a in axes), 1))
    total = np.asarray(_sum(x, axes, keepdims))
    return truncated_quotient(total, count) if x.dtype.kind in "iu" else total / count


def _max(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.max(axis=axes, keepdims=keepdims, initial=_lowest(x.dtype) if x.size == 0 else None)  # type: ignore[arg-type]


def _min(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.min(axis=axes, keepdims=keepdims, initial=_highest(x.dtype) if x.size == 0 else None)  # type: ignore[arg-type]


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _prod(x: Array, axes: Axes, keepdims: bool) -> Any:
    return x.prod(axis=axes, keepdims=keepdims, dtype=x.dtype)


def _log_sum_exp(x: Array, axes: Axes, keepdims: bool) -> Any:
    if x.dtype.kind in "iu":
        return _log_sum_exp(x.astype(np.float64), axes, keepdims)
    if x.size == 0:
        return np.log(_sum(x, axes, keepdims))
    peak = np.asarray(x.max(axis=axes, keepdims=True))
    peak = np.where(np.isfinite(peak), peak, 0).astype(x.dtype)
    total = np.asarray(np.log(np.exp(x - peak).sum(axis=axes, keepdims=True))) + peak
    return total if keepdims else total.squeeze(axes)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _max,
    "ReduceMin": _min,
    "ReduceProd": _prod,
    "ReduceL1": lambda x, axes, keepdims: _sum(np.abs(x), axes, keepdims),
    "ReduceL2": lambda x, axes, keepdims: np.sqrt(_sum(x * x, axes, keepdims)),
    "ReduceSumSquare": lambda x, axes, keepdims: _sum(x * x, axes, keepdims),
    "ReduceLogSum": lambda x, axes, keepdims: np.log(_sum(x, axes, keepdims)),
    "ReduceLogSumExp": _log_sum_exp,
}


def _reduce(reduction: Reduction, x: Array, axes: Sequence[int] | None, keepdims: int, keep_if_empty: int) -> Array:
    return np.asarray(reduction(x, _over(x, axes, keep_if_empty), bool(keepdims))).astype(x.dtype, copy=False)


def _over(x: Array, axes: Sequence[int] | None, keep_if_empty: int) -> Axes:
    """The axes that are reduced."""
    if axes is not None and len(axes):
        return tuple(a + x.ndim if a < 0 else a for a in axes)
    return () if keep_if_empty else tuple(range(x.ndim))


def _recorded(reduction: Reduction, work: Work, x: Array, axes: Axes | None, keepdims: int, keep: int) -> Array | None:
    """Sums and means as products, where these are."""
    over = _over(x, axes, keep)
    suits = reduction in (_sum, _mean) and not is_narrow(x.dtype)
    total = _products_with_ones(work, x, over) if suits else None
    if total is None:
        return None
    if reduction is _mean:
        count = np.asarray(math.prod(x.shape[a] for a in over), x.dtype)
        work.do(np.divide, total, count, total)
    return total.reshape(_left(x, over, bool(keepdims)))


def _register(op: str, reduction: Reduction) -> None:
    first = 13 if op == "ReduceSum" else 18

    def record_1(work: Work, x: Array, *, axes: Axes | None = None, keepdims: int = 1) -> Array | None:
        return _recorded(reduction, work, x, axes, keepdims, 0)

    def record(
        work: Work, x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array | None:
        numbers = None if axes is None else integers(axes)
        return _recorded(reduction, work, x, numbers, keepdims, noop_with_empty_axes)

    @kernel(op, until=first - 1)
    @recorded_by(record_1)
    @in_float32
    def with_attribute(x: Array, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Array:
        return _reduce(reduction, x, axes, keepdims, 0)

    @kernel(op, since=first)
    @recorded_by(record)
    @in_float32
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
