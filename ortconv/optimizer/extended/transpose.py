"""Transposes in the form that ONNX Runtime's kernel does fastest: it moves blocks, but else element by element."""

from __future__ import annotations

import math

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.types import DType
from ortconv.optimizer.basic import reshape
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import Perm, compose, transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, refined, target

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


@rule("TransposeSplit", P("Transpose", "x"))
def split_transpose(m: Match) -> Replacement:
    """Transpose(x) that moves more than one axis, the last one included  ->  Transpose(Transpose(x))

    Counterpart: none: its kernel then moves elements one by one
    """
    pair = halves(transpose_perm(m.root) or (), m.x)
    if pair is None:
        return None
    inner = New("Transpose", [m.x], {"perm": Ints(pair[0])})
    return New("Transpose", [inner], {"perm": Ints(pair[1])}, like=m.root)


@rule("TransposeFusion", *(r.pattern for r in reshape.merge_transposes))
def merge_transposes(m: Match) -> Replacement:
    """Transpose(Transpose(x))  ->  Transpose(x) or x, unless two are faster than one

    Counterpart: TransposeOptimizer
    """
    first, second = transpose_perm(m.node("inner")), transpose_perm(m.root)
    if first and second and halves(compose(first, second), m.x) == (first, second):
        return None
    return reshape.merge_transposes[0].build(m)


@rule("MatrixTransposeFusion", P("Reshape", P("Transpose", P("Reshape", "x", ..., name="flat"), name="transpose"), ...))
def fuse_matrix_transpose(m: Match) -> Replacement:
    """Reshape(Transpose<0, 2, 1>(Reshape(x, (-1, rows, columns))), (..., columns, rows))  ->  Transpose(x) of the last two axes"""
    x, transpose = m.x, m.node("transpose")
    rank = x.rank or 0
    if rank < 3 or transpose_perm(transpose) != (0, 2, 1):
        return None
    *lead, rows, columns = (dim_of(x, i) for i in range(rank))
    if not _makes(m.node("flat"), (-1, rows, columns)) or not _makes(m.root, (*lead, columns, rows)):
        return None
    perm = Ints((*range(rank - 2), rank - 1, rank - 2))
    return New("Transpose", [x], {"perm": perm}, like=transpose)


def _makes(reshape: Node, wanted: tuple[Element, ...]) -> bool:
    """True if a Reshape makes these dimensions. At most one of them may be -1; it is not compared."""
    stated = target(reshape)
    if stated is None or len(stated) != len(wanted):
        return False
    open_ended = -1 in wanted
    return all(
        w == -1 or (w is not None and w in (s, k)) or (s == -1 and not open_ended)
        for s, k, w in zip(stated, refined(stated, reshape.out), wanted)
    )


MATRIX = fuse_matrix_transpose + merge_transposes
