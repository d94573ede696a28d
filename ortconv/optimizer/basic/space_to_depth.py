"""Fuses four strided Slices and a Concat along channels into SpaceToDepth, with a Gather if the order differs.

With channels last, into a Transpose between Reshapes.
"""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Ints, Node
from ortconv.ir.operands import ints
from ortconv.ir.slices import AxisSlice, axis_slices
from ortconv.ir.types import INT32_MAX, Dim, DType
from ortconv.optimizer.conditions import numbers, with_shape
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P, PatternInput

BLOCKS: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (1, 0), (1, 1))
"""(row, column) where each block of SpaceToDepth's output channels starts, in its order."""


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


def _start(nodes: list[Node], rows: int = 2) -> tuple[int, int] | None:
    """The first row and column of consecutive Slices of every other row and every other column; None for any others."""
    starts: dict[int, int] = {}
    for node in nodes:
        found = _slices(node)
        if found is None or found.keys() & starts.keys():
            return None
        starts |= found
    return (starts[rows], starts[rows + 1]) if starts.keys() == {rows, rows + 1} else None


def _pattern(depth: int, axes: tuple[int, int] = (1, -3)) -> P:
    """A Concat along this axis of four slices of x, each of them by this number of Slices."""
    slices: list[PatternInput] = ["x"] * len(BLOCKS)
    for each in range(depth):
        slices = [P("Slice", x, ..., name=f"slice{i}_{each}") for i, x in enumerate(slices)]
    return P("Concat", *slices, where=lambda node: node.attr("axis", 0) in axes)


def _starts(m: Match, rows: int) -> list[tuple[int, int] | None]:
    """The first row and column of each matched slice."""
    return [_start(m.optional_nodes(f"slice{i}_0", f"slice{i}_1"), rows) for i in range(len(BLOCKS))]


@rule("SliceConcatToSpaceToDepthFusion", _pattern(1), _pattern(2))
def fuse_space_to_depth(m: Match) -> Replacement:
    """Concat(x[::2, ::2], x[::2, 1::2], x[1::2, ::2], x[1::2, 1::2])  ->  SpaceToDepth<2>(x)

    Counterpart: SliceConcatToSpaceToDepthFusion
    """
    x = m.x
    starts = _starts(m, 2)
    if set(starts) != set(BLOCKS) or x.dtype not in (DType.FLOAT, DType.DOUBLE) or x.rank != 4:
        return None
    if any(isinstance(size, int) and size % 2 for size in (x.dim(2), x.dim(3))):
        return None
    order, channels = [BLOCKS.index(start) for start in starts if start is not None], x.dim(1)
    blocks = New("SpaceToDepth", [x], {"blocksize": 2})
    if order == [0, 1, 2, 3]:
        return blocks
    if not isinstance(channels, int):
        return None
    indices = np.arange(4 * channels, dtype=np.int64).reshape(4, channels)[order].reshape(-1)
    return New("Gather", [blocks, indices], {"axis": 1})


_ORDERS = {BLOCKS: (0, 1, 3, 2, 4, 5), ((0, 0), (1, 0), (0, 1), (1, 1)): (0, 1, 3, 4, 2, 5)}
"""Orders of slices, and the permutations of (batch, rows, 2, columns, 2, channels) with their results."""


@rule("PatchMergingFusion", _pattern(1, (3, -1)), _pattern(2, (3, -1)))
def merge_patches(m: Match) -> Replacement:
    """Concat(x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2])  ->  Reshape(Transpose(Reshape(x)))

    For channels last, as in Swin. It takes half of the time.

    Counterpart: none: ONNX Runtime fuses only slices of images with channels first
    """
    sizes = numbers(*(m.x.shape or ())[1:])
    perm = _ORDERS.get(tuple(start for start in _starts(m, 1) if start is not None))
    if len(sizes) != 3 or perm is None or sizes[0] % 2 or sizes[1] % 2:
        return None
    rows, columns, channels = sizes[0] // 2, sizes[1] // 2, sizes[2]
    dims = (0, rows, 2, columns, 2, channels)
    split = New("Reshape", [m.x, np.array(dims, np.int64)], {}, types=[with_shape(m.x, (m.x.dim(0), *dims[1:]))])
    type = with_shape(m.x, (m.x.dim(0), *(dims[axis] for axis in perm[1:])))
    moved = New("Transpose", [split], {"perm": Ints(perm)}, types=[type])
    return New("Reshape", [moved, np.array((0, rows, columns, 4 * channels), np.int64)], {})
