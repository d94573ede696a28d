"""Permutations of axes: axis i of Transpose<perm>(x) is axis perm[i] of x."""

from __future__ import annotations

import math

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.types import DType, Shape, TensorType, ValueType

Perm = tuple[int, ...]


def identity(rank: int) -> Perm:
    return tuple(range(rank))


def inverse(perm: Perm) -> Perm:
    result = [0] * len(perm)
    for i, axis in enumerate(perm):
        result[axis] = i
    return tuple(result)


def compose(first: Perm, second: Perm) -> Perm:
    """The permutation of Transpose<second>(Transpose<first>(x))."""
    return tuple(first[axis] for axis in second)


def channels_to_first(rank: int) -> Perm:
    """The permutation that moves the channels from the end to axis 1."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_to_last(rank: int) -> Perm:
    """The permutation that moves the channels from axis 1 to the end."""
    return (0, *range(2, rank), 1)


def operand_perm(rank: int, transposed: int, batch: int) -> Perm:
    """The permutation that FusedMatMul applies to an operand: axis i of the multiplied matrix is axis perm[i] of the operand."""
    perm = list(range(rank))
    if batch:
        perm = [*perm[1:-1], 0, perm[-1]]
    if transposed:
        perm[-1], perm[-2] = perm[-2], perm[-1]
    return tuple(perm)


def moves_only_ones(shape: Shape | None, perm: Perm) -> bool:
    """True if the axes that a permutation moves relative to others have one element."""
    if shape is None or len(shape) != len(perm):
        return False
    axes = [axis for axis in perm if shape[axis] != 1]
    return axes == sorted(axes)


def permuted_type(type: ValueType | None, perm: Perm) -> ValueType | None:
    """The type of a value after Transpose<perm>."""
    if not isinstance(type, TensorType) or type.shape is None or len(type.shape) != len(perm):
        return type
    return TensorType(type.dtype, tuple(type.shape[axis] for axis in perm))


def transpose_perm(node: Node | None) -> Perm | None:
    """The permutation of a Transpose node; None for any other node, or if the rank is unknown."""
    if node is None or not node.is_op("Transpose"):
        return None
    x: Value | None = node.inputs[0]
    if "perm" in node.attrs:
        return tuple(node.attr("perm", Ints()))
    rank = node.out.rank if x is None or x.rank is None else x.rank
    return None if rank is None else tuple(reversed(range(rank)))


def source_with_channels_last(value: Value) -> Value | None:
    """The input of the Transpose that moved a value's channels to axis 1; None if there is no such Transpose."""
    node = value.producer
    return node.inputs[0] if node is not None and transpose_perm(node) == channels_to_first(value.rank or 0) else None


SMALLEST_BLOCK = 8
SMALLEST = 4096
"""Tensors with fewer elements are not changed: the second node would cost more than it saves."""


def halves(perm: Perm, x: Value) -> tuple[Perm, Perm] | None:
    """Two consecutive permutations that together are faster than this one; None if there are none.

    The kernel is fast if one axis moves past others, and if the last axis is long and stays: then it copies blocks. One
    of the two moves an axis to or from the end, and the other one moves blocks.
    """
    lengths = [d if isinstance(d, int) else 1 for d in x.shape or ()]
    if not perm or len(lengths) != len(perm) or x.dtype is DType.STRING or not _is_slow(perm, lengths):
        return None
    end = len(perm) - 1
    kept, order = (perm[-1], range(end + 1)) if lengths[perm[-1]] >= lengths[-1] else (end, perm)
    first = (*(axis for axis in order if axis != kept), kept)
    second = tuple(first.index(axis) for axis in perm)
    return None if perm in (first, second) else (first, second)


def _is_slow(perm: Perm, lengths: list[int]) -> bool:
    """True if the kernel moves elements one by one, and two others could copy blocks."""
    if _moves_one_axis(perm) or perm[-1] == len(perm) - 1:
        return False
    return math.prod(lengths) >= SMALLEST and max(lengths[perm[-1]], lengths[-1]) >= SMALLEST_BLOCK


def _moves_one_axis(perm: Perm) -> bool:
    """True if the other axes are in order after one axis, or axes that stay neighbors, are removed."""
    starts = [axis for i, axis in enumerate(perm) if i == 0 or perm[i - 1] != axis - 1]
    rests = (starts[:i] + starts[i + 1 :] for i in range(len(starts)))
    return any(rest == sorted(rest) for rest in rests)
