"""Reductions along axes, ARGMAX and ARGMIN, TOPK_V2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import rank_at_most, same_quantization
from ortconv.nnapi.operations.shapes import axis_of
from ortconv.nnapi.operations.table import Call, Dims, operation


def axes_of(c: Call) -> tuple[int, ...]:
    return tuple(sorted({axis_of(axis, c.x.rank) for axis in c.axes.array.reshape(-1).tolist()}))


def reduced_dims(c: Call) -> Dims:
    """[1] if no axis is left."""
    axes = axes_of(c)
    if c.keep_dims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(c.x.dims))
    return tuple(dim for axis, dim in enumerate(c.x.dims) if axis not in axes) or (1,)


SAME = same_quantization("x", "out")


@operation(
    "MEAN",
    "x:T axes:I keep_dims:i",
    level=2,
    types="F Q H@3 S@4",
    infer=reduced_dims,
    checks=(rank_at_most(4, "x"), SAME),
)
def mean(c: Call) -> Array:
    """Quantized: the sum of the elements, divided and cut off towards 0."""
    axes = axes_of(c)
    if not c.out.is_quantized:
        return c.x.array.mean(axis=axes).reshape(c.out.dims) if axes else c.x.array
    sums = c.x.array.astype(np.int64).sum(axis=axes)
    count = c.x.size // max(1, sums.size)
    return (np.sign(sums) * (np.abs(sums) // count)).reshape(c.out.dims)


REDUCTIONS: tuple[tuple[str, str, Callable[..., Array]], ...] = (
    ("REDUCE_ALL", "B", np.all),
    ("REDUCE_ANY", "B", np.any),
    ("REDUCE_MAX", "F H Q S@4", np.max),
    ("REDUCE_MIN", "F H Q S@4", np.min),
    ("REDUCE_PROD", "F H", np.prod),
    ("REDUCE_SUM", "F H", np.sum),
)

for _name, _types, _reduce in REDUCTIONS:
    operation(
        _name, "x:T axes:I keep_dims:b", level=3, types=_types, infer=reduced_dims, checks=(rank_at_most(4, "x"), SAME)
    )(lambda c, reduce=_reduce: reduce(c.x.array, axis=axes_of(c)).reshape(c.out.dims))  # type: ignore[misc]


def index_dims(c: Call) -> Dims:
    axis = axis_of(c.axis, c.x.rank)
    return tuple(dim for at, dim in enumerate(c.x.dims) if at != axis) or (1,)


for _name, _find in {"ARGMAX": np.argmax, "ARGMIN": np.argmin}.items():
    operation(_name, "x:T axis:i", outputs="out:I", level=3, types="F H I Q S@4", infer=index_dims)(
        lambda c, find=_find: find(c.x.array, axis=c.axis).reshape(c.out.dims)  # type: ignore[misc]
    )


def top_dims(c: Call) -> list[Dims]:
    if not 0 < c.k <= c.x.dims[-1]:
        raise op_failed(f"there are no {c.k} largest of {c.x.dims[-1]} elements")
    dims = (*c.x.dims[:-1], c.k)
    return [dims, dims]


@operation("TOPK_V2", "x:T k:i", outputs="values:T indices:I", level=3, types="F H I Q S@4", infer=top_dims)
def top_k(c: Call) -> list[Array]:
    """The largest first; of equal ones that with the larger index."""
    order = np.argsort(c.x.array, axis=-1, kind="stable")[..., ::-1][..., : c.k]
    return [np.take_along_axis(c.x.array, order, axis=-1), order]
