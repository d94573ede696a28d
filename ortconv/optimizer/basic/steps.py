"""One product for all steps of a tensor, as Keras' TimeDistributed computes them one by one if the batch is unknown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import axes_of, constant_of, own_producer
from ortconv.optimizer.basic.transpose_handlers import normal_axes
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.parts import AxisRange, slice_of
from ortconv.optimizer.pattern import Match, P


class _Step(NamedTuple):
    """The product of a slice with a matrix, plus a constant row."""

    part: AxisRange
    matrix: Value
    row: Value | None


@rule("StackedStepsFusion", P("Concat", ...))
def fuse_steps(m: Match) -> Replacement:
    """Concat(Unsqueeze(x[0] @ w + b), Unsqueeze(x[1] @ w + b), ...) of all indices along an axis  ->  x @ w + b

    An x of known shape is multiplied as one matrix, which NNAPI supports like the products of the steps.
    """
    rank, inputs = m.root.out.rank or 0, m.root.present_inputs
    axes = normal_axes([m.root.attr("axis", 1)], rank)
    first = _step(inputs[0], axes, rank)
    if axes is None or first is None or not axes[0] == first.part.axis < rank - 1 or first.part.x.rank != rank:
        return None
    x = first.part.x
    if len(inputs) != x.dim(axes[0]):
        return None
    wanted = (_Step(AxisRange(x, axes[0], i, i + 1), *first[1:]) for i in range(len(inputs)))
    if any(_step(v, axes, rank) != step for v, step in zip(inputs, wanted)):
        return None
    shape = x.static_shape
    if shape is None or 0 in shape:
        return _sum(x, first, m.root)
    flat = New("Reshape", [x, np.array((-1, shape[-1]), np.int64)])
    return New("Reshape", [_sum(flat, first), np.array((*shape[:-1], first.matrix.dim(1)), np.int64)], {}, like=m.root)


def _sum(x: NewInput, step: _Step, like: Node | None = None) -> New:
    """The step computed of x."""
    if step.row is None:
        return New("MatMul", [x, step.matrix], {}, like=like)
    return New("Add", [New("MatMul", [x, step.matrix]), step.row], {}, like=like)


def _step(value: Value, axes: list[int] | None, rank: int) -> _Step | None:
    """The step to which an Unsqueeze adds this axis; None if there is none, or if others read what it computes."""
    unsqueeze = own_producer(value, "Unsqueeze")
    if unsqueeze is None or rank < 3 or normal_axes(axes_of(unsqueeze), rank) != axes:
        return None
    product, row = _without_row(unsqueeze.inputs[0])
    matrix = None if product is None else constant_of(product.inputs[1])
    part = None if product is None else slice_of(product.inputs[0])
    if product is None or part is None or matrix is None or matrix.rank != 2:
        return None
    return _Step(part, product.present_inputs[1], row)


def _without_row(value: Value | None) -> tuple[Node | None, Value | None]:
    """The MatMul that makes a value, and the constant row that is added to it."""
    add = own_producer(value, "Add")
    if add is None:
        return own_producer(value, "MatMul"), None
    for x, row in (add.inputs[:2], add.inputs[1::-1]):
        const = constant_of(row)
        if const is not None and const.rank < 2:
            return own_producer(x, "MatMul"), row
    return None, None
