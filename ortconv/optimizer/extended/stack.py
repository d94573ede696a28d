"""Reductions of tensors that are stacked only for it: sums, means and extremes of branches."""

from __future__ import annotations

from ortconv.ir.graph import Value
from ortconv.ir.operands import axes_of, producer_of
from ortconv.ir.types import DType
from ortconv.optimizer.basic.transpose_handlers import normal_axes
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.standard_forms import with_axes

_OF_OPERANDS = {"ReduceMax": "Max", "ReduceMean": "Mean", "ReduceMin": "Min", "ReduceSum": "Sum"}


@rule("StackReduceFusion", P(tuple(_OF_OPERANDS), P("Concat", ..., name="stack"), ...))
def reduce_operands(m: Match) -> Replacement:
    """ReduceSum(Concat(Unsqueeze(a), Unsqueeze(b), ...))  ->  Sum(a, b, ...), along the new axis; also mean and extremes

    The operands may have an axis of length 1 without an Unsqueeze.
    """
    stack = m.node("stack")
    operands, rank = stack.present_inputs, stack.out.rank or 0
    axes = normal_axes([stack.attr("axis", 1)], rank)
    if axes is None or axes != normal_axes(axes_of(m.root), rank) or stack.out.dtype is not DType.FLOAT:
        return None
    if len(operands) < 2 or any(v.dim(axes[0]) != 1 for v in operands):
        return None
    flat = [_without(axes, v, rank) for v in operands]
    op = "Add" if m.root.op == "ReduceSum" and len(operands) == 2 else _OF_OPERANDS[m.root.op]
    joined = New(op, operands if None in flat else flat, {}, like=m.root)
    keeps = bool(m.root.attr("keepdims", 1))
    if keeps is (None in flat):
        return joined
    return with_axes("Unsqueeze" if keeps else "Squeeze", joined, axes, m.graph)


def _without(axes: list[int], value: Value, rank: int) -> Value | None:
    """The input of the Unsqueeze that makes these axes; None if there is none."""
    node = producer_of(value, "Unsqueeze")
    return node.inputs[0] if node is not None and normal_axes(axes_of(node), rank) == axes else None
