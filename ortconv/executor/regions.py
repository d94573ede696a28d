"""Splitting a graph between backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path

from ortconv.errors import UnsupportedError
from ortconv.executor.backend import Backend, Claiming, Region
from ortconv.ir.graph import Graph, Node, Value, captures

Run = tuple[Backend, list[Node]]


def split(
    graph: Graph, backends: Sequence[Backend], file: Path | None = None, custom_op_library: Path | None = None
) -> list[tuple[Backend, Region]]:
    """Groups that backends claim, and runs of other nodes on the first backend that takes them, in an order to run."""
    runs = _runs(_units(graph, backends))
    whole = file if len(runs) == 1 else None
    return [(b, replace(_region(graph, nodes, whole), custom_op_library=custom_op_library)) for b, nodes in runs]


@dataclass(slots=True)
class _Unit:
    """Nodes that run as one: a claimed group, or a single node."""

    backend: Backend
    nodes: tuple[Node, ...]
    claimed: bool


def _units(graph: Graph, backends: Sequence[Backend]) -> list[_Unit]:
    """Each node on the first backend that takes it; a group only where no backend before took one of its nodes."""
    placed: dict[Node, _Unit] = {}
    reasons: dict[Node, list[str]] = {}
    for backend in backends:
        refused = None
        if isinstance(backend, Claiming):
            claim = backend.claim(graph)
            refused = claim.refused
            for nodes in claim.groups:
                if placed.keys().isdisjoint(nodes):
                    placed.update(dict.fromkeys(nodes, _Unit(backend, nodes, True)))
        for node in graph:
            if node not in placed:
                reason = refused.get(node, "") if refused is not None else next(iter(backend.objections(node)), None)
                if reason is None:
                    placed[node] = _Unit(backend, (node,), False)
                else:
                    reasons.setdefault(node, []).append(f"{backend.name}: {reason}")
    for node in graph:
        if node not in placed:
            raise UnsupportedError(f"no backend runs this node ({'; '.join(reasons[node])})", node=node.label)
    return list({id(placed[node]): placed[node] for node in graph}.values())


def _runs(units: Sequence[_Unit]) -> list[Run]:
    """Units in an order to run, single nodes of one backend together. Claimed groups wait until nothing else can run."""
    number = {node: u for u, unit in enumerate(units) for node in unit.nodes}
    needs = [_producers(unit, number) for unit in units]
    readers: list[list[int]] = [[] for _ in units]
    for u, before in enumerate(needs):
        for p in before:
            readers[p].append(u)
    waiting = [len(before) for before in needs]
    ready = [(unit.claimed, u) for u, unit in enumerate(units) if not waiting[u]]
    runs: list[Run] = []
    joins = False
    while ready:
        claimed, u = heappop(ready)
        unit = units[u]
        if claimed or not joins or runs[-1][0] is not unit.backend:
            runs.append((unit.backend, []))
        runs[-1][1].extend(unit.nodes)
        joins = not claimed
        for r in readers[u]:
            waiting[r] -= 1
            if not waiting[r]:
                heappush(ready, (units[r].claimed, r))
    return runs


def _producers(unit: _Unit, number: Mapping[Node, int]) -> set[int]:
    """The other units that make what a unit reads."""
    own = number[unit.nodes[0]]
    values = (v for node in unit.nodes for v in (*node.inputs, *captures(node)))
    return {number[v.producer] for v in values if v is not None and v.producer is not None and v.producer in number} - {
        own
    }


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
