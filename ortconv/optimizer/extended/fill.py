"""Tensors of one number as operands; fusions before this pass know them as zero states."""

from __future__ import annotations

from ortconv.ir.graph import Value
from ortconv.ir.operands import producer_of, source_of
from ortconv.ir.operators import Trait, traits
from ortconv.optimizer.basic.broadcast import from_operand, keeps_shape
from ortconv.optimizer.basic.eliminate import NEUTRAL
from ortconv.optimizer.conditions import filler, uniform, without_absent
from ortconv.optimizer.engine import New, Replacement, in_place_of, rule
from ortconv.optimizer.pattern import Match, P


@rule("FillElimination", *from_operand(P("ConstantOfShape", ..., name="fill", shared=True)))
def eliminate_filled_operand(m: Match) -> Replacement:
    """op(x, ConstantOfShape<k>(shape))  ->  op(x, k), where that has the same shape; x, if k is neutral"""
    fill = m.node("fill")
    filled = fill.out
    if not keeps_shape(m.root, [filled], ()):
        return None
    number = filler(fill)
    others = [v for v in m.root.inputs if v is not filled]
    may_swap = traits(m.root).has(Trait.COMMUTATIVE)
    if len(others) == 1 and number == NEUTRAL.get(m.root.op) and (may_swap or filled is m.root.inputs[1]):
        return others[0]
    inputs = [number if v is filled else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root)


@rule("ZeroStateElimination", P(("GRU", "LSTM", "RNN"), "x", ...))
def eliminate_zero_states(m: Match) -> Replacement:
    """LSTM(x, ..., initial states of zeros)  ->  LSTM(x, ...), which begins with zeros; also GRU and RNN

    Counterpart: none: ONNX Runtime keeps the nodes that compute the shape of the states
    """
    inputs = [None if slot in _STATES and is_filled(v, 0) else v for slot, v in enumerate(m.root.inputs)]
    if inputs == list(m.root.inputs):
        return None
    return in_place_of(m.root, New(m.root.op, without_absent(inputs), like=m.root, outputs=len(m.root.outputs)))


_STATES = (5, 6)
"""The inputs with the initial states of a recurrent layer."""

_COPIES = ("Expand", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""Operators whose results have only elements of their first input."""


def is_filled(value: Value | None, number: float) -> bool:
    """True if all elements of a value are known to equal `number`, also if its shape is computed."""
    source = source_of(value, *_COPIES)
    join = producer_of(source, "Concat")
    if join is not None:
        return all(is_filled(part, number) for part in join.inputs)
    element = uniform(source)
    return element is not None and bool(element == number)
