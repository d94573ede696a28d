"""Softplus as PyTorch defines it, with a threshold."""

from __future__ import annotations

from ortconv.ir.operands import scalar
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import are_numbers
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

LEAST = 17
"""From here on, Softplus(x) - x is less than half a unit in the last place of x, in float32."""


_IS_LARGE = P("Greater", "x", C("limit", one=True))


@rule("SoftplusThresholdElimination", P("Where", _IS_LARGE, "x", P("Softplus", "x", name="softplus", shared=True)))
def drop_threshold(m: Match) -> Replacement:
    """Where(x > limit, x, Softplus(x))  ->  Softplus(x), for a limit of 17 or more, and at most 32 bits

    PyTorch's limit is 20.
    """
    types = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16)
    if m.x.dtype not in types or not are_numbers([m.limit], m.x.rank) or not (scalar(m.limit) or 0) >= LEAST:
        return None
    return m.node("softplus").out
