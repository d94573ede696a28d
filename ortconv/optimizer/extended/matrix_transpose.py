"""Simplifies the transposition of a batch of matrices whose batch axes are flattened for it."""

from __future__ import annotations

from ortconv.ir.graph import Ints, Node
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.split_transpose import merge_transposes
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, refined, target


@rule("MatrixTransposeFusion", P("Reshape", P("Transpose", P("Reshape", "x", ..., name="flat"), name="transpose"), ...))
def fuse_matrix_transpose(m: Match) -> Replacement:
    """Reshape(Transpose<0, 2, 1>(Reshape(x, (-1, rows, columns))), (..., columns, rows))  ->  Transpose(x) of the last two axes

    Counterpart: none: beyond ONNX Runtime
    """
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


RULES = fuse_matrix_transpose + merge_transposes
