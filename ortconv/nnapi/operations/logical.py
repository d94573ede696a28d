"""Comparisons, and operations on two truth values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.operations.shapes import broadcast_ab
from ortconv.nnapi.operations.table import operation

ANY, TRUTH = "B F H I Q S@4", "B"

FUNCTIONS: tuple[tuple[str, str, Callable[[Array, Array], Array]], ...] = (
    ("EQUAL", ANY, np.equal),
    ("GREATER", ANY, np.greater),
    ("GREATER_EQUAL", ANY, np.greater_equal),
    ("LESS", ANY, np.less),
    ("LESS_EQUAL", ANY, np.less_equal),
    ("LOGICAL_AND", TRUTH, np.logical_and),
    ("LOGICAL_OR", TRUTH, np.logical_or),
    ("NOT_EQUAL", ANY, np.not_equal),
)

for _name, _types, _function in FUNCTIONS:
    operation(_name, "a:T b:T", outputs="out:B", level=3, types=_types, infer=broadcast_ab, recorded=("a", "b"))(
        lambda c, f=_function: c.anew(lambda c: f(c.a.real, c.b.real))  # type: ignore[misc]
    )
