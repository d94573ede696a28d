"""Parts that Gather, Slice and Split select from a tensor along one axis; slices stacked in order become the tensor itself."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.schema import attribute
from ortconv.optimizer.conditions import axes_of, equal_shapes, ints
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.extended.split import slice_part
from ortconv.optimizer.pattern import Match, P


class SlicedPart(NamedTuple):
    """[start, end) of a tensor along an axis."""

    x: Value
    axis: int
    start: int
    end: int


def part_of(value: Value) -> SlicedPart | None:
    """The part that a Split or Slice selects along one axis, if its bounds are known; else None."""
    node = value.producer
    x = None if node is None or node.domain != "" or not node.inputs else node.inputs[0]
    if node is None or x is None or not x.rank:
        return None
    if node.op == "Split":
        axis = (attribute(node, "axis") or 0) % x.rank
        sizes = [None if v is None else v.dim(axis) for v in node.outputs[: value.index + 1]]
        known = [size for size in sizes if isinstance(size, int)]
        return SlicedPart(x, axis, sum(known[:-1]), sum(known)) if len(known) == len(sizes) else None
    part = slice_part(node, x) if node.op == "Slice" else None
    return None if part is None else SlicedPart(x, part.axis, part.start, part.end)


def slice_of(value: Value) -> SlicedPart | None:
    """The position in another tensor of a slice without its axis; None if the value is no such slice."""
    node = value.producer
    if node is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    inner = node.inputs[0]
    if node.op != "Squeeze":
        return _gathered(node, 0)
    is_gather = inner.producer is not None and inner.producer.is_op("Gather")
    found = _gathered(inner.producer, 1) if is_gather and inner.producer is not None else part_of(inner)
    axes, rank = axes_of(node), inner.rank
    if found is None or not rank or axes is None or len(axes) != 1 or axes[0] % rank != found.axis:
        return None
    return found if found.end - found.start == 1 else None


def _gathered(node: Node, rank: int) -> SlicedPart | None:
    """The part selected by a Gather with a single index of this rank; None for any other node."""
    index = node.input(1)
    if not node.is_op("Gather") or index is None or index.rank != rank:
        return None
    x, numbers, axis = node.inputs[0], ints(index), node.attr("axis", 0)
    size = None if x is None else x.dim(axis)
    if x is None or not x.rank or numbers is None or len(numbers) != 1 or not isinstance(size, int):
        return None
    start = numbers[0] % size if -size <= numbers[0] < size else None
    return None if start is None else SlicedPart(x, axis % x.rank, start, start + 1)


@rule("StackedSlicesElimination", P("Concat", ..., name="concat"))
def stack_slices(m: Match) -> Replacement:
    """Concat(Unsqueeze(x[0]), Unsqueeze(x[1]), ...) of all indices along an axis  ->  x, or Transpose(x)

    Counterpart: none: beyond ONNX Runtime
    """
    axis, rank = m.concat.attr("axis", 0), m.root.out.rank
    parts: list[SlicedPart] = []
    if not rank:
        return None
    for value in m.concat.inputs:
        node = None if value is None else value.producer
        if node is None or not node.is_op("Unsqueeze") or node.inputs[0] is None:
            return None
        axes, part = axes_of(node), slice_of(node.inputs[0])
        if part is None or axes is None or [a % rank for a in axes] != [axis % rank]:
            return None
        if part.start != len(parts) or (parts and (part.x is not parts[0].x or part.axis != parts[0].axis)):
            return None
        parts.append(part)
    x = parts[0].x
    if len(parts) != x.dim(parts[0].axis):
        return None
    perm = [i for i in range(rank) if i != parts[0].axis]
    perm.insert(axis % rank, parts[0].axis)
    if perm == sorted(perm):
        return x if equal_shapes(x.shape, m.root.out.shape) else None
    return New("Transpose", [x], {"perm": Ints(perm)}, like=m.root, types=[m.root.out.type])


PASSES = (RulePass("StackedSlicesElimination", stack_slices),)
