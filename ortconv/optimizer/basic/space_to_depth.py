"""Fuses four strided Slices and a Concat along channels into SpaceToDepth, with a Gather if the order differs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import ints
from ortconv.ir.slices import AxisSlice, axis_slices
from ortconv.ir.types import INT32_MAX, Dim, DType
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P

BLOCKS: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (1, 0), (1, 1))
"""(row, column) where each block of SpaceToDepth's output channels starts, in its order."""


class StridedSlice(NamedTuple):
    """Every other row and column of x, beginning with the given ones."""

    x: Value
    start: tuple[int, int]


def _slices(node: Node) -> dict[int, int] | None:
    """The start index by axis of a Slice that selects every other element to the end; None for any other node."""
    x, parts = node.inputs[0], axis_slices(node, ints)
    if x is None or parts is None or not all(_is_every_other(part, x.dim(part.axis)) for part in parts):
        return None
    found = {part.axis % 4: part.start for part in parts if -4 <= part.axis < 4}
    return found if len(found) == len(parts) else None


def _is_every_other(part: AxisSlice[int], size: Dim) -> bool:
    last = size if isinstance(size, int) else INT32_MAX
    return part.step == 2 and part.start in (0, 1) and isinstance(part.end, int) and part.end >= last


def _branch(node: Node, depth: int) -> StridedSlice | None:
    """The combined slice of `depth` consecutive Slices, of which `node` is the last, if it is one of the four phases; else None."""
    starts: dict[int, int] = {}
    x: Value | None = node.out
    for _ in range(depth):
        if x is None or x.producer is None:
            return None
        found = _slices(x.producer)
        if found is None or found.keys() & starts.keys():
            return None
        starts |= found
        x = x.producer.inputs[0]
    return StridedSlice(x, (starts[2], starts[3])) if x is not None and starts.keys() == {2, 3} else None


def _pattern(depth: int) -> P:
    def branch(i: int) -> P:
        return P("Slice", *([P("Slice", ...)] * (depth - 1)), ..., name=f"slice{i}")

    return P("Concat", *map(branch, range(4)), where=lambda node: node.attr("axis", 0) in (1, -3))


@rule("SliceConcatToSpaceToDepthFusion", _pattern(1), _pattern(2))
def fuse_space_to_depth(m: Match) -> Replacement:
    """Concat(x[::2, ::2], x[::2, 1::2], x[1::2, ::2], x[1::2, 1::2])  ->  SpaceToDepth<2>(x)

    Counterpart: SliceConcatToSpaceToDepthFusion
    """
    slices = [m.node(f"slice{i}") for i in range(4)]
    branches = [found for node in slices if (found := _branch(node, len(m.nodes) // 4)) is not None]
    if len({b.x for b in branches}) != 1 or {b.start for b in branches} != set(BLOCKS):
        return None
    x = branches[0].x
    if x.dtype not in (DType.FLOAT, DType.DOUBLE) or x.rank != 4:
        return None
    if any(isinstance(size, int) and size % 2 for size in (x.dim(2), x.dim(3))):
        return None
    order, channels = [BLOCKS.index(b.start) for b in branches], x.dim(1)
    blocks = New("SpaceToDepth", [x], {"blocksize": 2})
    if order == [0, 1, 2, 3]:
        return blocks
    if not isinstance(channels, int):
        return None
    indices = np.arange(4 * channels, dtype=np.int64).reshape(4, channels)[order].reshape(-1)
    return New("Gather", [blocks, indices], {"axis": 1})
