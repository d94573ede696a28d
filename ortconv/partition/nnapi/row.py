"""One row of the table of support rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import Check, no_objection
from ortconv.partition.nnapi.checks import float32


class NnapiRow(NamedTuple):
    """The requirements of an operator.

    `since` is the least since_version, and `level` the least feature level, or a function of the unit. `types` checks
    the element types of a single node, `qdq` those of a QDQ group (None refuses groups), and `check` everything else.
    `runtime` checks for uses that NNAPI itself refuses although ONNX Runtime's execution provider accepts the node;
    `takes_empty` is true if NNAPI's operations accept tensors without elements, from feature level 29.
    """

    op: str
    since: int = 1
    level: int | Callable[[NodeUnit], int] = 27
    types: Check = float32
    check: Check = no_objection
    qdq: Check | None = None
    runtime: Check = no_objection
    takes_empty: bool = False
    domains: tuple[str, ...] = ("",)
