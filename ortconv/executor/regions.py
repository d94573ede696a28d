"""Splitting a graph between backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ortconv.errors import UnsupportedError
from ortconv.executor.backend import Backend, Region
from ortconv.ir.graph import Graph, Node, Value, captures


def split(
    graph: Graph, backends: Sequence[Backend], file: Path | None = None, custom_op_library: Path | None = None
) -> list[tuple[Backend, Region]]:
    """Runs of nodes, in topological order, each on the first backend that takes all of its nodes."""
    runs: list[tuple[Backend, list[Node]]] = []
    for node in graph:
        backend = _place(node, backends)
        if not runs or runs[-1][0] is not backend:
            runs.append((backend, []))
        runs[-1][1].append(node)
    whole = file if len(runs) == 1 else None
    return [(b, replace(_region(graph, nodes, whole), custom_op_library=custom_op_library)) for b, nodes in runs]


def _place(node: Node, backends: Sequence[Backend]) -> Backend:
    reasons = []
    for backend in backends:
        reason = next(iter(backend.objections(node)), None)
        if reason is None:
            return backend
        reasons.append(f"{backend.name}: {reason}")
    raise UnsupportedError(f"no backend runs this node ({'; '.join(reasons)})", node=node.label)


def _region(graph: Graph, nodes: list[Node], file: Path | None) -> Region:
    inside = set(nodes)
    if file is not None or len(nodes) == len(graph):
        made = [v for v in graph.outputs if v.producer is not None]
        return Region(graph, tuple(nodes), tuple(graph.inputs), tuple(made), file)
    reads: dict[Value, None] = {}
    for node in nodes:
        for value in (*node.inputs, *captures(node)):
            if value is not None and value.producer not in inside and (value.const is None or value.is_input):
                reads[value] = None
    outputs = [
        v
        for n in nodes
        for v in n.outputs
        if v is not None and (v.is_output or any(_owner_in(graph, user) not in inside for user, _ in v.uses))
    ]
    return Region(graph, tuple(nodes), tuple(reads), tuple(outputs))


def _owner_in(graph: Graph, node: Node) -> Node:
    """The node of `graph` that is, or holds, a node somewhere below it."""
    while node.graph is not graph:
        assert node.graph is not None
        assert node.graph.owner is not None
        node = node.graph.owner
    return node
