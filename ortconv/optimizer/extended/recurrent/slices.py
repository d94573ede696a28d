"""Slices of a tensor that are stacked in order become the tensor itself."""

from __future__ import annotations

from ortconv.ir.graph import Ints, Value
from ortconv.ir.operands import axes_of, producer_of
from ortconv.optimizer.conditions import equal_shapes
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.parts import AxisRange, slice_of
from ortconv.optimizer.pattern import Match, P


@rule("StackedSlicesElimination", P("Concat", ...))
def stack_slices(m: Match) -> Replacement:
    """Concat(Unsqueeze(x[0]), Unsqueeze(x[1]), ...) of all indices along an axis  ->  x, or Transpose(x)"""
    rank, inputs = m.root.out.rank, m.root.inputs
    if not rank:
        return None
    axis = m.root.attr("axis", 0) % rank
    first = _stacked(inputs[0], axis, rank)
    if first is None or len(inputs) != first.x.dim(first.axis):
        return None
    x, old_axis = first.x, first.axis
    if any(_stacked(v, axis, rank) != AxisRange(x, old_axis, i, i + 1) for i, v in enumerate(inputs)):
        return None
    perm = [i for i in range(rank) if i != old_axis]
    perm.insert(axis, old_axis)
    if perm == sorted(perm):
        return x if equal_shapes(x.shape, m.root.out.shape) else None
    return New("Transpose", [x], {"perm": Ints(perm)}, like=m.root)


def _stacked(value: Value | None, axis: int, rank: int) -> AxisRange | None:
    """The slice to which an Unsqueeze adds this axis; None if there is none."""
    node = producer_of(value, "Unsqueeze")
    return slice_of(node.inputs[0]) if node is not None and axes_of(node) in ((axis,), (axis - rank,)) else None
