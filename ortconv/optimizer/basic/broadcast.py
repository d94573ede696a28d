"""Operands that are expanded for an operator which broadcasts them by itself."""

from __future__ import annotations

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, named
from ortconv.ir.symbols import broadcast_shapes
from ortconv.ir.types import Shape
from ortconv.optimizer.conditions import equal_shapes
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P

BROADCASTING = tuple(named(Trait.BROADCASTS, but=("PRelu",)))
"""Operators whose result has the shape that all their operands broadcast to; PRelu has that of its input."""


def from_operand(inner: P) -> tuple[P, ...]:
    """Such an operator with one of its first three operands from another node."""
    return P(BROADCASTING, inner, ...), P(BROADCASTING, "a", inner, ...), P("Where", "a", "b", inner)


def keeps_shape(reader: Node, operand: Value, shape: Shape | None) -> bool:
    """True if such an operator returns a result of the same shape when one of its operands has another shape."""
    if reader.op not in BROADCASTING or reader.domain != "" or reader.graph is not operand.graph:
        return False
    shapes = [None if v is None else shape if v is operand else v.shape for v in reader.inputs]
    return equal_shapes(broadcast_shapes(shapes), reader.out.shape)


@rule("ExpandElimination", *from_operand(P("Expand", "x", ..., name="expand", shared=True)))
def eliminate_expanded_operand(m: Match) -> Replacement:
    """op(Expand(x), y)  ->  op(x, y), where every reader of the Expand broadcasts x to the same shape by itself

    Differs: ONNX Runtime keeps it.
    """
    x = m.x
    expanded = m.node("expand").out
    if expanded.is_output or not all(keeps_shape(reader, expanded, x.shape) for reader in expanded.consumers):
        return None
    inputs = [x if v is expanded else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root)


RULES = eliminate_expanded_operand
