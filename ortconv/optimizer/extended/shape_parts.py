"""Parts of shapes, as exporters select and join them, become few nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import ints, producer_of
from ortconv.ir.slices import axis_slices
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.shapes import Element, are_equal, elements, side_by_side

_SHAPE = P("Shape", "x", name="shape", shared=True)

_SHAPE_WITH_BOUNDS = 15
"""The opset from which on Shape has bounds."""


@rule(
    "ShapePartFusion",
    P("Unsqueeze", P("Gather", _SHAPE, C("index"), name="part"), ...),
    P("Gather", _SHAPE, C("index"), name="part"),
    P("Slice", _SHAPE, ..., name="part"),
)
def fuse_part(m: Match) -> Replacement:
    """Unsqueeze(Gather(Shape(x), i))  ->  Shape<start = i, end = i + 1>(x); also Gather or Slice of neighboring dimensions

    Counterpart: none: ONNX Runtime keeps these nodes
    """
    shape, part, rank = m.node("shape"), m.node("part"), m.x.rank
    if rank is None or m.root.opset < _SHAPE_WITH_BOUNDS or m.root.out.rank != 1:
        return None
    picked = _picked(part, range(rank)[slice(shape.attr("start", 0), shape.attr("end", rank))])
    if not picked or list(picked) != list(range(picked[0], picked[-1] + 1)):
        return None
    bounds: dict[str, Attribute] = {"start": picked[0], "end": picked[-1] + 1}
    return New("Shape", [m.x], bounds, like=m.root)


def _picked(part: Node, dims: Sequence[int]) -> Sequence[int]:
    """The elements of a list that a Gather or Slice selects; () if they are unknown."""
    if part.op == "Gather":
        index = ints(part.input(1)) or ()
        return [dims[i] for i in index] if all(-len(dims) <= i < len(dims) for i in index) else ()
    slices = axis_slices(part, ints)
    return dims[slices[0].start : slices[0].end : slices[0].step] if slices is not None and len(slices) == 1 else ()


@rule("ShapeSelectFusion", P("Where", P("Equal", "left", "right", shared=True), "then", "otherwise"))
def fuse_select(m: Match) -> Replacement:
    """Where(shape == -1, x, shape)  ->  Concat of elements of both, if it is known which dimensions are -1

    As PyTorch writes the shape of an expanded tensor, in which -1 keeps a dimension.

    Counterpart: none: ONNX Runtime keeps these nodes
    """
    cases = list(side_by_side([elements(v) for v in (m.left, m.right, m.then, m.otherwise)]) or ())
    if not cases or (m.root.out.dtype, m.root.out.rank) != (DType.INT64, 1):
        return None
    parts: list[NewInput] = []
    for place, (left, right, *values) in enumerate(cases):
        equal = are_equal(left, right)
        part = _part(m.then if equal else m.otherwise, values[not equal], place)
        if equal is None or part is None:
            return None
        parts.append(part)
    return New("Concat", parts, {"axis": 0}, like=m.root) if len(parts) != 1 else parts[0]


def _part(shape: Value, element: Element, place: int) -> NewInput | None:
    """A list of this element of a shape; None if there is none yet."""
    if isinstance(element, int):
        return np.array([element], np.int64)
    join = producer_of(shape, "Concat")
    for operand in () if join is None else join.present_inputs:
        length = operand.dim(0)
        if length == 1 and not place:
            return operand
        if not isinstance(length, int) or place < length:
            return None
        place -= length
    return shape if shape.shape == (1,) else None
