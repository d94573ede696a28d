"""Parts that Gather, Slice and Split select from a tensor along one axis."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Value
from ortconv.ir.operands import axes_of, ints, producer_of
from ortconv.ir.slices import axis_slices, selected


class AxisRange(NamedTuple):
    """[start, end) of a tensor along an axis, counted from the front."""

    x: Value
    axis: int
    start: int
    end: int


def part_of(value: Value | None) -> AxisRange | None:
    """The part that a Split or Slice selects along one axis, if its bounds are known; else None."""
    split = producer_of(value, "Split")
    if value is None or split is None:
        return sliced_part(value)
    x = split.inputs[0]
    if x is None or not x.rank:
        return None
    axis = split.attr("axis", 0) % x.rank
    sizes = [None if v is None else v.dim(axis) for v in split.outputs[: value.index + 1]]
    known = [size for size in sizes if isinstance(size, int)]
    return AxisRange(x, axis, sum(known[:-1]), sum(known)) if len(known) == len(sizes) else None


def sliced_part(value: Value | None) -> AxisRange | None:
    """The part that a Slice selects along one axis with step 1, if its bounds are known; else None."""
    found = sliced_indices(value)
    if found is None or found.indices.step != 1:
        return None
    return AxisRange(found.x, found.axis, found.indices.start, found.indices.stop)


class AxisIndices(NamedTuple):
    """Elements of a tensor along an axis, counted from the front."""

    x: Value
    axis: int
    indices: range


def sliced_indices(value: Value | None) -> AxisIndices | None:
    """The elements that a Slice selects along one axis, in forward order, if they are known; else None."""
    node = producer_of(value, "Slice")
    parts = None if node is None else axis_slices(node, ints)
    if node is None or parts is None or len(parts) != 1:
        return None
    x, (start, end, axis, step) = node.present_inputs[0], parts[0]
    size = x.dim(axis)
    if not isinstance(size, int) or not isinstance(start, int) or not isinstance(end, int) or step < 1:
        return None
    return AxisIndices(x, axis % (x.rank or 1), selected(start, end, step, size))


def gathered(value: Value | None, *, keeps: bool) -> AxisRange | None:
    """The part that a Gather with one index selects; with `keeps`, its axis stays with length 1. Else None."""
    node = producer_of(value, "Gather")
    if node is None:
        return None
    x, index = node.present_inputs
    found, axis = ints(index), node.attr("axis", 0)
    size = x.dim(axis)
    if found is None or len(found) != 1 or index.rank != int(keeps):
        return None
    if not x.rank or not isinstance(size, int) or not -size <= found[0] < size:
        return None
    start = found[0] % size
    return AxisRange(x, axis % x.rank, start, start + 1)


def picked_part(value: Value | None) -> AxisRange | None:
    """The part that a Slice along one axis, or a Gather with one index selects; else None."""
    return sliced_part(value) or gathered(value, keeps=True) or gathered(value, keeps=False)


def slice_of(value: Value | None) -> AxisRange | None:
    """The position in another tensor of a slice without its axis; None if the value is no such slice."""
    squeeze = producer_of(value, "Squeeze")
    if squeeze is None:
        return gathered(value, keeps=False)
    part = gathered(squeeze.inputs[0], keeps=True) or part_of(squeeze.inputs[0])
    if part is None or part.end - part.start != 1:
        return None
    return part if axes_of(squeeze) in ((part.axis,), (part.axis - (part.x.rank or 0),)) else None
