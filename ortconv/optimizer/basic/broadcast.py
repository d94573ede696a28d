"""Operands that are enlarged for an operator which broadcasts them by itself."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, named
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Shape
from ortconv.optimizer.conditions import equal_shapes
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.symbols import broadcast_shapes

BROADCASTING = tuple(named(Trait.BROADCASTS, but=("PRelu",)))
"""Operators whose result has the shape that all their operands broadcast to; PRelu has that of its input."""


def _operands(inner: P) -> tuple[P, ...]:
    """The operator with one of its first three operands from another node."""
    return P(BROADCASTING, inner, ...), P(BROADCASTING, "a", inner, ...), P("Where", "a", "b", inner)


@rule("ExpandElimination", *_operands(P("Expand", "x", ..., name="expand", shared=True)))
def eliminate_expanded_operand(m: Match) -> Replacement:
    """op(Expand(x), y)  ->  op(x, y), where every reader of the Expand broadcasts x to the same shape by itself

    Differs: ONNX Runtime keeps it.
    """
    x: Value = m.x
    expanded: Value = m.expand.out
    if expanded.is_output or not all(_keeps_shape(reader, expanded, x.shape) for reader in expanded.consumers):
        return None
    inputs = [x if v is expanded else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root, types=(m.root.out.type,))


@rule("FillElimination", *_operands(P("ConstantOfShape", ..., name="fill", shared=True)))
def eliminate_filled_operand(m: Match) -> Replacement:
    """op(x, ConstantOfShape<k>(shape))  ->  op(x, k), where that has the same shape

    Counterpart: none: beyond ONNX Runtime
    """
    filled: Value = m.fill.out
    if not _keeps_shape(m.root, filled, ()):
        return None
    inputs = [_number(m.fill) if v is filled else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root, types=(m.root.out.type,))


def _keeps_shape(reader: Node, operand: Value, shape: Shape | None) -> bool:
    """True if a node returns a result of the same shape when one of its operands has another shape."""
    if reader.op not in BROADCASTING or reader.domain != "" or reader.graph is not operand.graph:
        return False
    shapes = [None if v is None else shape if v is operand else v.shape for v in reader.inputs]
    return equal_shapes(broadcast_shapes(shapes), reader.out.shape)


def _number(fill: Node) -> Array:
    """The number that ConstantOfShape repeats, as a scalar."""
    value = fill.attrs.get("value")
    return value.numpy().reshape(()) if isinstance(value, Tensor) else np.array(0, np.float32)


RULES = (*eliminate_expanded_operand, *eliminate_filled_operand)
