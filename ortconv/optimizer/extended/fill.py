"""Tensors of one number as operands; fusions before this pass know them as zero states."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, named
from ortconv.ir.tensor import Array, Tensor
from ortconv.optimizer.basic.broadcast import from_operand, keeps_shape
from ortconv.optimizer.basic.eliminate import NEUTRAL
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P


@rule("FillElimination", *from_operand(P("ConstantOfShape", ..., name="fill", shared=True)))
def eliminate_filled_operand(m: Match) -> Replacement:
    """op(x, ConstantOfShape<k>(shape))  ->  op(x, k), where that has the same shape; x, if k is neutral

    Counterpart: none: beyond ONNX Runtime
    """
    fill = m.node("fill")
    filled = fill.out
    if not keeps_shape(m.root, filled, ()):
        return None
    number = _number(fill)
    others = [v for v in m.root.inputs if v is not filled]
    if len(others) == 1 and _is_neutral(m.root, number, filled):
        return others[0]
    inputs = [number if v is filled else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root)


def _is_neutral(node: Node, number: Array, filled: Value) -> bool:
    """True if an operator with this number as an operand returns the other one."""
    commutes = node.op in named(Trait.COMMUTATIVE)
    return node.op in NEUTRAL and number == NEUTRAL[node.op] and (commutes or filled is node.inputs[1])


def _number(fill: Node) -> Array:
    """The number that ConstantOfShape repeats, as a scalar."""
    value = fill.attrs.get("value")
    return value.numpy().reshape(()) if isinstance(value, Tensor) else np.array(0, np.float32)
