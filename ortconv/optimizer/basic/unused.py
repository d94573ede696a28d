"""Removes nodes whose outputs are unused."""

from __future__ import annotations

from ortconv.ir.graph import Graph, Node
from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.engine import Context

REMOVABLE_DOMAINS = frozenset({"", "ai.onnx.ml", MICROSOFT})


def remove_unused(graph: Graph, context: Context) -> int:
    """Remove the nodes with unused outputs, except those of operators that may have side effects.

    Counterpart: none: ONNX Runtime keeps unused nodes, unless they fed nodes that a fusion replaced
    """
    changes = 0
    since = context.since
    for node in reversed(graph):
        if node.touched < since or node.used_output is not None or not _is_pure(node) or not context.may_touch(node):
            continue
        label = node.label
        graph.remove(node)
        context.record("UnusedNodeElimination", label)
        context.mark_touched()
        changes += 1
    return changes


def _is_pure(node: Node) -> bool:
    return node.domain in REMOVABLE_DOMAINS and all(_is_pure(inner) for sub in node.subgraphs for inner in sub)
