"""Divisions of integers that round down, as PyTorch's older exporter writes them."""

from __future__ import annotations

from ortconv.ir.operands import scalar
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import are_numbers, exactly
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

_QUOTIENT = P("Div", "a", C("b", one=True), name="quotient", shared=True)
_NEGATIVE = P("Less", "a", C("zero", one=True, where=exactly(0)))
_REMAINDER = P("Mod", "a", "b", name="remainder", where=lambda node: not node.attr("fmod", 0))
_UNEVEN = P("Not", P("Equal", _REMAINDER, C("none", one=True, where=exactly(0))))
_LESS = P("Sub", _QUOTIENT, C("one", one=True, where=exactly(1)))
_SIGNS = (P("Xor", _NEGATIVE, C("other", one=True, where=exactly(0)), commutative=True), _NEGATIVE)
_DIVISIONS = (P("Where", P("And", signs, _UNEVEN, commutative=True), _LESS, _QUOTIENT) for signs in _SIGNS)


@rule("FloorDivisionFusion", *_DIVISIONS)
def fuse_floor_division(m: Match) -> Replacement:
    """Where(a < 0 and Mod(a, b) != 0, a / b - 1, a / b)  ->  (a - Mod(a, b)) / b, for int64 and a number b above 0

    For every a from b - 2**63 on. Audio encoders compute the lengths of their frames so.
    """
    numbers = m.values("b", "zero", "none", "one", "other")
    if m.a.dtype is not DType.INT64 or not are_numbers(numbers, m.a.rank) or not (scalar(m.b) or 0) > 0:
        return None
    rest = New("Mod", [m.a, m.b], {}, like=m.node("remainder"), types=[m.a.type])
    whole = New("Sub", [m.a, rest], {}, types=[m.a.type])
    return New("Div", [whole, m.b], {}, like=m.root)
