"""What a Slice selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import ints
from ortconv.ir.symbols import as_dim, at_most
from ortconv.ir.types import INT32_MAX, Dim

E = TypeVar("E")

WHOLE = frozenset({INT32_MAX, 2**63 - 1})
"""Ends that include the first element if the step is negative: onnxruntime interprets them so, and exporters rely on it."""


class AxisSlice(NamedTuple, Generic[E]):
    """The part of an axis that a Slice selects. Its start and end are numbers, or what else a caller knows of them."""

    start: E
    end: E
    axis: int
    step: int

    def length(self, dim: Dim) -> Dim:
        """The length of the part of an axis of length `dim`. An end of INT32_MAX or more is the end of the axis."""
        start, end, step = self.start, self.end, self.step
        if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
            return len(selected(start, end, step, dim)) if step else None
        if start != 0 or step != 1:
            return None
        return dim if isinstance(end, int) and end >= INT32_MAX else at_most(as_dim(end), dim)


def axis_slices(node: Node, look: Callable[[Value | None], Sequence[E] | None]) -> list[AxisSlice[E]] | None:
    """The part that a Slice selects of each of its axes, with starts and ends read by `look`; None if they are unknown."""
    starts: Sequence[E] | None
    ends: Sequence[E] | None
    axes: tuple[int, ...] | None
    steps: tuple[int, ...] | None
    if "starts" in node.attrs:
        starts, ends = node.attr("starts", ()), node.attr("ends", ())
        axes, steps = node.attr("axes", ()), ()
    else:
        starts, ends = look(node.input(1)), look(node.input(2))
        axes, steps = ints(node.input(3), ()), ints(node.input(4), ())
    if starts is None or ends is None or axes is None or steps is None or len(starts) != len(ends):
        return None
    size, rank = len(starts), None if node.inputs[0] is None else node.inputs[0].rank
    if rank is not None and any(not -rank <= axis < rank for axis in axes):
        return None
    return [AxisSlice(*part) for part in zip(starts, ends, axes or range(size), steps or (1,) * size)]


def selected(start: int, end: int, step: int, size: int) -> range:
    """The indices that a Slice selects. With a negative step, `stop` is -1 if they go down to the first element."""
    if step > 0:
        return range(*slice(start, end, step).indices(size))
    start = start + size if start < 0 else start
    end = -1 if end in WHOLE else end + size if end < 0 else end
    # Unlike in Python, a start before the first element is the first element.
    return range(min(max(start, 0), size - 1), max(end, -1), step) if size else range(0)
