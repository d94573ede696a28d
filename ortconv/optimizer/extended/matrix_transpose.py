"""Simplifies the transposition of a batch of matrices whose batch axes are flattened for it."""

from __future__ import annotations

from ortconv.ir.graph import Ints
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.split_transpose import merge_transposes
from ortconv.optimizer.passes import RulePass
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, refined, target


@rule("MatrixTransposeFusion", P("Reshape", P("Transpose", P("Reshape", "x", ..., name="flat"), name="transpose"), ...))
def fuse_matrix_transpose(m: Match) -> Replacement:
    """Reshape(Transpose<0, 2, 1>(Reshape(x, (-1, rows, columns))), (..., columns, rows))  ->  Transpose(x) of the last two axes

    Counterpart: none: beyond ONNX Runtime
    """
    x, flattened, transpose = m.x, m.node("flat"), m.node("transpose")
    rank = x.rank
    if rank is None or rank < 3 or transpose_perm(transpose) != (0, 2, 1):
        return None
    rows, columns = dim_of(x, rank - 2), dim_of(x, rank - 1)
    flat, whole = target(flattened), target(m.root)
    if flat is None or whole is None or len(flat) != 3 or len(whole) != rank:
        return None
    if not _are(flat, refined(flat, flattened.out), (-1, rows, columns)):
        return None
    if not _are(whole, refined(whole, m.root.out), (*(dim_of(x, i) for i in range(rank - 2)), columns, rows)):
        return None
    perm = Ints((*range(rank - 2), rank - 1, rank - 2))
    return New("Transpose", [x], {"perm": perm}, like=transpose)


def _are(stated: tuple[Element, ...], known: tuple[Element, ...], wanted: tuple[Element, ...]) -> bool:
    """True if the stated dimensions are the known ones. At most one of them may be -1; it is not compared."""
    open_ended = -1 in wanted
    return all(
        w == -1 or (w is not None and w in (s, k)) or (s == -1 and not open_ended)
        for s, k, w in zip(stated, known, wanted)
    )


PASSES = (RulePass("MatrixTransposeFusion", fuse_matrix_transpose, merge_transposes),)
