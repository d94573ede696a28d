"""Fuses four strided Slices and a Concat along channels into SpaceToDepth, with a Gather if the order differs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import INT32_MAX, ints
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.pattern import Match, P

BLOCKS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""(row, column) where each block of SpaceToDepth's output channels starts, in its order."""


class StridedSlice(NamedTuple):
    """Every other row and column of x, beginning with the given ones."""

    x: Value
    start: tuple[int, int]


def _slices(node: Node) -> dict[int, int] | None:
    """The start index by axis of a Slice that selects every other element to the end; None for any other node."""
    x = node.inputs[0]
    starts, ends, steps = ints(node.input(1)), ints(node.input(2)), ints(node.input(4))
    axes = ints(node.input(3)) if node.input(3) is not None else None if starts is None else tuple(range(len(starts)))
    if x is None or starts is None or ends is None or axes is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    found: dict[int, int] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.dim(axis)
        is_end = end >= (size if isinstance(size, int) else INT32_MAX)
        if step != 2 or start not in (0, 1) or not is_end or axis % 4 in found or not -4 <= axis < 4:
            return None
        found[axis % 4] = start
    return found


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
    branches = []
    for i in range(4):
        node = m.bound[f"slice{i}"]
        depth = 2 if any(inner is node.inputs[0].producer for inner, _ in m.nodes) else 1
        branches.append(_branch(node, depth))
    known = [b for b in branches if b is not None]
    if len(known) < 4 or len({b.x for b in known}) != 1 or {b.start for b in known} != set(BLOCKS):
        return None
    x = known[0].x
    if x.rank != 4 or x.dtype not in (DType.FLOAT, DType.DOUBLE) or any(_is_odd(x, axis) for axis in (2, 3)):
        return None
    order = [BLOCKS.index(b.start) for b in known]
    if order == [0, 1, 2, 3]:
        return New("SpaceToDepth", [x], {"blocksize": 2}, types=[m.root.out.type])
    channels = x.dim(1)
    if not isinstance(channels, int):
        return None
    indices = np.concatenate([np.arange(block * channels, (block + 1) * channels) for block in order]).astype(np.int64)
    blocks = New("SpaceToDepth", [x], {"blocksize": 2}, types=[m.root.out.type])
    return New("Gather", [blocks, indices], {"axis": 1}, types=[m.root.out.type])


def _is_odd(x: Value, axis: int) -> bool:
    size = x.dim(axis)
    return isinstance(size, int) and size % 2 == 1


PASSES = (RulePass("SliceConcatToSpaceToDepthFusion", fuse_space_to_depth),)
