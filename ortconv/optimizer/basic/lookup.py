"""Lookups that a Gather makes."""

from __future__ import annotations

from ortconv.ir.operands import axes_of
from ortconv.optimizer.conditions import copied_from_one
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

_COPIES = ("Tile", "Expand")
_TABLES = P(_COPIES, C("table"), ..., name="tables", shared=True)
_COLUMN = P("Unsqueeze", "rows", ..., name="column", shared=True)


@rule("RowLookupFusion", P("GatherElements", _TABLES, P(_COPIES, _COLUMN, ..., name="indices", shared=True)))
def look_up_rows(m: Match) -> Replacement:
    """GatherElements<axis=1>(copies of a table, copies of a column of indices)  ->  Gather(table, indices)"""
    table, tables, indices = m.tensor("table"), m.node("tables").out, m.node("indices").out
    if table.rank != 3 or m.rows.rank != 2 or m.root.attr("axis", 0) % 3 != 1:
        return None
    if axes_of(m.node("column")) not in ((2,), (-1,)) or indices.dim(2) != table.shape[2]:
        return None
    if copied_from_one(tables, 0) is None or copied_from_one(indices, 2) is None:
        return None
    return New("Gather", [table.numpy()[0], m.rows], {"axis": 0})


_ADDED = P("Unsqueeze", "index", ..., name="added", shared=True)


@rule("RowLookupFusion", P("GatherND", "x", C("index")), P("GatherND", "x", _ADDED))
def look_up_first_axis(m: Match) -> Replacement:
    """GatherND(x, indices of the first axis)  ->  Gather(x, indices), for constants, or if an Unsqueeze adds the last axis"""
    added, const = m.optional_node("added"), m.index.constant
    if m.root.attr("batch_dims", 0) or not m.index.rank:
        return None
    if added is not None:
        return New("Gather", [m.x, m.index], {"axis": 0}) if axes_of(added) in ((-1,), (m.index.rank,)) else None
    return New("Gather", [m.x, const.numpy()[..., 0]], {"axis": 0}) if const and m.index.dim(-1) == 1 else None
