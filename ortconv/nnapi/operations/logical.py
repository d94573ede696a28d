"""Comparisons and operations on truth values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.operations.shapes import broadcast_ab, like_x
from ortconv.nnapi.operations.table import OperationCall, operation

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "NOT_EQUAL": np.not_equal,
}

for _name, _compare in COMPARISONS.items():
    operation(
        _name, "a:T b:T", outputs="out:B", level=3, types="B F H I Q S@4", infer=broadcast_ab, recorded=("a", "b")
    )(
        lambda c, compare=_compare: c.anew(lambda c: compare(c.a.real, c.b.real))  # type: ignore[misc]
    )

for _name, _combine in {"LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or}.items():
    operation(_name, "a:T b:T", level=3, types="B", infer=broadcast_ab)(
        lambda c, combine=_combine: combine(c.a.array, c.b.array)  # type: ignore[misc]
    )


@operation("LOGICAL_NOT", "x:T", level=3, types="B", infer=like_x)
def logical_not(c: OperationCall) -> Array:
    return np.logical_not(c.x.array)
