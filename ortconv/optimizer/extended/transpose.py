"""Transposes in the form that ONNX Runtime's kernel does fastest: it moves blocks, but else element by element."""

from __future__ import annotations

from ortconv.ir.graph import Ints, Node
from ortconv.optimizer.basic import reshape
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import compose, halves, transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, refined, target


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
    sets, open_ended = zip(stated, refined(stated, reshape.out), wanted), -1 in wanted
    return all(w == -1 or (w is not None and w in (s, k)) or (s == -1 and not open_ended) for s, k, w in sets)


MATRIX = fuse_matrix_transpose + merge_transposes
