"""Tensors of one number as operands; fusions before this pass know them as zero states."""

from __future__ import annotations

import numpy as np

from ortconv.ir.operators import Trait, traits
from ortconv.ir.tensor import Array, Tensor
from ortconv.optimizer.basic.broadcast import from_operand, keeps_shape
from ortconv.optimizer.basic.eliminate import NEUTRAL
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P


@rule("FillElimination", *from_operand(P("ConstantOfShape", ..., name="fill", shared=True)))
def eliminate_filled_operand(m: Match) -> Replacement:
    """op(x, ConstantOfShape<k>(shape))  ->  op(x, k), where that has the same shape; x, if k is neutral"""
    fill = m.node("fill")
    filled = fill.out
    if not keeps_shape(m.root, filled, ()):
        return None
    value = fill.attrs.get("value")
    number: Array = value.numpy().reshape(()) if isinstance(value, Tensor) else np.array(0, np.float32)
    others = [v for v in m.root.inputs if v is not filled]
    may_swap = traits(m.root).has(Trait.COMMUTATIVE)
    if len(others) == 1 and number == NEUTRAL.get(m.root.op) and (may_swap or filled is m.root.inputs[1]):
        return others[0]
    inputs = [number if v is filled else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root)
