"""Reductions over axes, positions of extremes, and the largest elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import SMALL, same_quantization
from ortconv.nnapi.operations.movement import moved
from ortconv.nnapi.operations.shapes import axes_of, axis_of
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

FLOATS, NUMBERS = "F H", "F H Q S@4"

REDUCTIONS: tuple[tuple[str, str, Callable[..., Array]], ...] = (
    ("REDUCE_ALL", "B", np.all),
    ("REDUCE_ANY", "B", np.any),
    ("REDUCE_MAX", NUMBERS, np.max),
    ("REDUCE_MIN", NUMBERS, np.min),
    ("REDUCE_PROD", FLOATS, np.prod),
    ("REDUCE_SUM", FLOATS, np.sum),
)


def reduced_dims(c: OperationCall) -> Dims:
    """The dimensions without the reduced ones; [1] if none remains."""
    axes = axes_of(c.axes, c.x.rank)
    if c.keep > 0:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(c.x.dims))
    return tuple(dim for axis, dim in enumerate(c.x.dims) if axis not in axes) or (1,)


def reduced(c: OperationCall, function: Callable[..., Array]) -> Array:
    return np.asarray(function(c.x.array, axis=tuple(axes_of(c.axes, c.x.rank)))).reshape(c.out.dims)


for _name, _types, _function in REDUCTIONS:
    moved(_name, "x:T axes:I keep:b", level=3, types=_types, infer=reduced_dims, checks=(SMALL,))(
        lambda c, function=_function: c.anew(partial(reduced, function=function))  # type: ignore[misc]
    )


@moved("MEAN", "x:T axes:I keep:i", level=2, types="F Q H@3 S@4", infer=reduced_dims, checks=(SMALL,))
def mean(c: OperationCall) -> Array:
    """Means of quantized elements are rounded toward zero."""
    return c.anew(_mean)


def _mean(c: OperationCall) -> Array:
    means = reduced(c, np.mean)
    return np.trunc(means).astype(c.x.type.dtype) if c.x.is_quantized else means


def arg_dims(c: OperationCall) -> Dims:
    axis = axis_of(c.axis, c.x.rank)
    return (*c.x.dims[:axis], *c.x.dims[axis + 1 :]) or (1,)


def first_largest(c: OperationCall, x: Array) -> Array:
    """Positions of the first largest elements. A NaN is never the largest."""
    place = np.argmax(np.where(np.isnan(x), -np.inf, x), axis=c.axis)
    return np.where(np.isnan(np.take(x, 0, axis=c.axis)), 0, place).reshape(c.out.dims)


@operation("ARGMAX", "x:T axis:i", outputs="out:I", level=3, types="F H I Q S@4", infer=arg_dims)
def argmax(c: OperationCall) -> Array:
    return first_largest(c, c.x.array)


@operation("ARGMIN", "x:T axis:i", outputs="out:I", level=3, types="F H I Q S@4", infer=arg_dims)
def argmin(c: OperationCall) -> Array:
    return first_largest(c, -c.x.array.astype(np.float64))


def topk_dims(c: OperationCall) -> list[Dims]:
    if not 0 < c.k <= c.x.dims[-1]:
        raise op_failed(f"k = {c.k} is not in 1 to {c.x.dims[-1]}")
    return [(*c.x.dims[:-1], c.k)] * 2


@operation(
    "TOPK_V2", "x:T k:i", outputs="values:T indices:I", level=3, types="F H I Q S@4", infer=topk_dims,
    quantization=(same_quantization("x", "values"),),
)  # fmt: skip
def topk_v2(c: OperationCall) -> Sequence[Array]:
    """Of equal elements, the last one comes first."""
    indices = np.argsort(c.x.array, axis=-1, kind="stable")[..., ::-1][..., : c.k]
    return np.take_along_axis(c.x.array, indices, axis=-1), indices.astype(np.int32)
