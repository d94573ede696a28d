"""One row of the table of support rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import Check, no_objection
from ortconv.partition.nnapi.checks import float32

MAX_SINCE_VERSION = 27
"""Newest supported version of an operator's schema: 15, 17 and 19 in ONNX Runtime of 2023 and 2024, 27 in 2026."""


@dataclass(frozen=True, slots=True)
class NnapiRow:
    """The requirements of an operator.

    `since` is its least since_version, `level` the least feature level (of a unit where it varies), `types` the check
    of element types for a single node, `qdq` that for a QDQ group (None: groups are refused), `check` everything else.
    `runtime` is what NNAPI itself refuses although ONNX Runtime's execution provider takes the node.
    """

    op: str
    since: int = 1
    level: int | Callable[[NodeUnit], int] = 27
    types: Check = float32
    check: Check = no_objection
    qdq: Check | None = None
    runtime: Check = no_objection
    domains: tuple[str, ...] = ("",)
