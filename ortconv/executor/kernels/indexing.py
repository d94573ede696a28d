"""Gather and scatter, selection, sorting and running totals along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.half_precision import in_float32, is_narrow, widen
from ortconv.executor.kernels.registry import Function, kernel, older, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


@kernel("Gather")
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    if not indices.ndim:
        return x[(*(slice(None),) * (axis % x.ndim), indices.item(), ...)]
    return x.take(indices, axis=axis)


@kernel("GatherElements")
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    axis %= x.ndim
    within = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))
    return np.take_along_axis(x[within], indices.astype(np.int64, copy=False), axis=axis)


@kernel("GatherND")
@kernel("GatherND", domain=MICROSOFT)
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    batch, depth = x.shape[:batch_dims], indices.shape[-1]
    shape = indices.shape[:-1] + x.shape[batch_dims + depth :]
    rows = x.reshape(math.prod(batch), *x.shape[batch_dims:])
    where = indices.reshape(len(rows), math.prod(indices.shape[batch_dims:-1]), depth)
    index = tuple(np.moveaxis(where, -1, 0))
    return np.asarray(rows[(np.arange(len(rows))[:, None], *index)]).reshape(shape)


_ACCUMULATE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(x: Array, index: tuple[Any, ...], shape: tuple[int, ...], updates: Array, reduction: str) -> Array:
    """x with updates, which must have this shape, at an index."""
    if updates.shape != shape:
        raise GraphError(f"the indices need updates of shape {list(shape)}, they have shape {list(updates.shape)}")
    if reduction == "none":
        out = x.copy()
        out[index] = updates
        return out
    out = x.astype(np.float32) if is_narrow(x.dtype) else x.copy()
    _ACCUMULATE[reduction].at(out, index, widen(updates))
    return out.astype(x.dtype, copy=False)


@kernel("Scatter", "ScatterElements")
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    index: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)]) if x.ndim > 1 else [None]
    index[axis] = indices
    return _scatter(x, tuple(index), indices.shape, updates, reduction)


@kernel("ScatterND")
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    if not indices.shape[-1]:  # each update is of the shape of x
        x, indices = x[None], np.zeros((*indices.shape[:-1], 1), np.int64)
        return np.asarray(scatter_nd(x, indices, updates, reduction=reduction)[0])
    shape = indices.shape[:-1] + x.shape[indices.shape[-1] :]
    return _scatter(x, tuple(np.moveaxis(indices, -1, 0)), shape, updates, reduction)


@kernel("TensorScatter")
def tensor_scatter(
    past: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    axis %= past.ndim
    starts = np.zeros(len(past), np.int64) if write_indices is None else write_indices
    if mode == "circular":
        starts = starts % max(past.shape[axis], 1)  # a sum of large ones has no integer type
    out = past.copy()
    for start, target, source in zip(starts.tolist(), out, update):
        positions = np.arange(start, start + source.shape[axis - 1])
        if mode == "circular":
            positions %= past.shape[axis]
        target[(*(slice(None),) * (axis - 1), positions)] = source
    return out


table({
    # Conditions may have the shape of x, as Paddle's exporter writes them, or be longer than the axis.
    "Compress": lambda x, condition, *, axis=None:
        np.compress(condition.reshape(-1)[: x.size if axis is None else x.shape[axis]], x, axis=axis),
    "NonZero": lambda x: np.array(np.nonzero(np.atleast_1d(x)), np.int64),
})  # fmt: skip


@kernel("OneHot")
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    size = int(depth.item())
    if size <= 0:
        raise GraphError(f"the depth is {size}, it must be positive")
    axis = axis % (indices.ndim + 1)
    index = np.expand_dims(indices.astype(np.int64), axis)
    classes = np.arange(size).reshape(-1, *[1] * (indices.ndim - axis))
    return np.asarray(values[((classes == index) | (classes == index + size)).astype(np.intp)])


@kernel("Trilu")
@kernel("Trilu", domain=MICROSOFT)
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    rows, columns = x.shape[-2:]
    offset = 0 if k is None else min(max(k.item(), -rows), columns)
    return (np.triu if upper else np.tril)(x, offset)


def _running(function: Any) -> Function:
    def run(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        x = np.moveaxis(x, int(axis.item()), 0)[:: -1 if reverse else 1]
        out = np.full_like(x, function.identity)
        given, total = (x[:-1], out[1:]) if exclusive else (x, out)
        function.accumulate(given, axis=0, dtype=x.dtype, out=total)
        return np.moveaxis(out[:: -1 if reverse else 1], 0, int(axis.item()))

    return in_float32(run)


table({"CumSum": _running(np.add), "CumProd": _running(np.multiply)})


@kernel("TopK", since=10)
def top_k(x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The k extreme elements in order, equal ones by position."""
    rows, count = np.moveaxis(x, axis, -1), int(k.item())
    if not 0 <= count <= rows.shape[-1]:
        raise GraphError(f"k is {count}, the axis has {rows.shape[-1]} elements")
    order = _stable_order(widen(rows), bool(largest))[..., :count]
    chosen, places = np.take_along_axis(rows, order, -1), order.astype(np.int64, copy=False)
    return np.ascontiguousarray(np.moveaxis(chosen, -1, axis)), np.ascontiguousarray(np.moveaxis(places, -1, axis))


older("TopK", "k", until=1)


def _stable_order(keys: Array, descending: bool) -> Array:
    if not descending:
        return np.argsort(keys, axis=-1, kind="stable")
    backwards = np.argsort(keys[..., ::-1], axis=-1, kind="stable")
    return np.asarray(keys.shape[-1] - 1 - backwards)[..., ::-1]


@kernel("Unique")
def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, Array, Array, Array]:
    """The values, the first position of each, the value of each element by its number, and how often each occurs."""
    items = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
    codes = widen(items) if axis is None else _row_codes(widen(items))
    _, first, inverse, counts = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    values = items[first] if axis is None else np.moveaxis(items[first], 0, axis)
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@kernel("Unique", domain=MICROSOFT)
def unique_ms(x: Array) -> Any:
    values, _, inverse, counts = unique(x, sorted=0)
    return values, inverse, counts


def _row_codes(x: Array) -> Array:
    """A number per slice along the first axis: equal for equal slices, ordered as their elements are."""
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    codes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        value = np.unique(column, return_inverse=True)[1].reshape(-1)
        codes = np.unique(codes * (len(rows) + 1) + value, return_inverse=True)[1].reshape(-1)
    return codes
