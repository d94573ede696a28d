"""Splits a graph between backends."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from ortconv.errors import UnsupportedError
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.nesting import enclosing
from ortconv.ir.order import readers_of
from ortconv.ir.units import NodeUnit
from ortconv.runtime.backend import Backend, Claiming, Region, claims


class Placement(NamedTuple):
    """The backend of a node, and the reasons of backends before it in order of preference, by backend name.

    Nodes of the same backend with the same `claim` form one region, without other nodes; `units` are those of the region.
    """

    node: Node
    backend: str
    refused: Mapping[str, str]
    claim: int | None = None
    units: tuple[NodeUnit, ...] = ()


def place(graph: Graph, backends: Sequence[Backend]) -> list[Placement]:
    """Assign each node to the first backend without an objection. UnsupportedError gives all reasons if no backend takes a node."""
    placed: dict[Node, Placement] = {}
    refused: dict[Node, dict[str, str]] = {node: {} for node in graph}
    for backend in backends:
        if claims(backend):
            _claim(graph, backend, placed, refused)
            continue
        for node in graph:
            if node not in placed:
                reason = next(iter(backend.objections(node)), None)
                if reason is None:
                    placed[node] = Placement(node, backend.name, refused[node])
                else:
                    refused[node][backend.name] = reason
    for node in graph:
        if node not in placed:
            raise _not_run(node, refused[node])
    return [placed[node] for node in graph]


def _not_run(node: Node, reasons: Mapping[str, str]) -> UnsupportedError:
    """The error for a node that no backend runs, for the reason of each of them by its name."""
    from ortconv.ir.signature import STANDARD

    hint = None if "onnxruntime" in reasons else "add the backend onnxruntime"
    if node.domain not in STANDARD:
        hint = "onnxruntime runs it with your library: --backend onnxruntime --custom-op-library FILE"
    text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return UnsupportedError(f"no backend runs this node ({text})", node=node.label, hint=hint)


def _claim(
    graph: Graph, backend: Claiming, placed: dict[Node, Placement], refused: Mapping[Node, dict[str, str]]
) -> None:
    """Place the groups that a backend claims, except groups with a node that is already placed on an earlier backend."""
    found = backend.claim(graph)
    reasons = dict(found.refused)
    for number, units in enumerate(found.groups):
        nodes = [node for unit in units for node in unit.nodes]
        if placed.keys().isdisjoint(nodes):
            placed.update({n: Placement(n, backend.name, refused[n], number, units) for n in nodes})
        else:
            reasons |= dict.fromkeys(nodes, "another backend runs a node of its group")
    for node, reason in reasons.items():
        if node not in placed:
            refused[node][backend.name] = reason


def split(
    graph: Graph,
    placements: Sequence[Placement],
    keep: Collection[Value] = (),
    file: Path | None = None,
    custom_op_library: Path | None = None,
    threads: int = 1,
) -> list[tuple[str, Region]]:
    """Group the placed nodes into as few regions as possible, in an order in which they can run. Each comes with its backend's
    name.

    `keep` lists additional values that regions must return.
    """
    runs = _runs(placements)
    whole = file if len(runs) == 1 and not keep else None
    found = []
    for run in runs:
        region = make_region(graph, [p.node for p in run], keep, whole)
        region = region._replace(custom_op_library=custom_op_library, units=run[0].units, threads=threads)
        found.append((run[0].backend, region))
    return found


def _runs(placements: Sequence[Placement]) -> list[list[Placement]]:
    """The placements of each region, in an order in which the regions can run."""
    if len({(p.backend, p.claim) for p in placements}) == 1:
        return [list(placements)]
    units, needs = _units(placements)
    keys = [(unit[0].backend, unit[0].claim) for unit in units]
    return [[p for u in run for p in units[u]] for run in group(keys, needs)]


def _units(placements: Sequence[Placement]) -> tuple[list[list[Placement]], list[list[int]]]:
    """Claimed groups and single nodes, in topological order, and the indices of those that each one or its subgraphs read."""
    firsts: dict[tuple[str, int], int] = {}
    unit_of: dict[Node | None, int] = {
        p.node: i if p.claim is None else firsts.setdefault((p.backend, p.claim), i) for i, p in enumerate(placements)
    }
    units: dict[int, list[Placement]] = {}
    before: dict[int, set[int]] = {}
    for p in placements:
        unit = unit_of[p.node]
        units.setdefault(unit, []).append(p)
        needed = {unit_of[v.producer] for v in p.node.present_reads if v.producer in unit_of}
        before.setdefault(unit, set()).update(needed - {unit})
    order = list(units) if len(units) == len(placements) else list(TopologicalSorter(before).static_order())
    number = {unit: n for n, unit in enumerate(order)}
    return [units[unit] for unit in order], [sorted(number[b] for b in before[unit]) for unit in order]


def group(backends: Sequence[Hashable], needs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group node indices by backend; every group comes after those that it depends on.

    `needs[i]` lists indices below i. A group takes all nodes of its backend that can run by then, even if they come late in the
    graph. The next backend is the one with the node that has the most backend changes still ahead. For two backends, no order has
    fewer groups.
    """
    readers = readers_of(needs)
    ahead = _changes_ahead(backends, readers)
    waiting = [len(before) for before in needs]
    ready: dict[Hashable, deque[int]] = {name: deque() for name in backends}
    for i, count in enumerate(waiting):
        if count == 0:
            ready[backends[i]].append(i)
    groups = []
    while any(ready.values()):
        queue = max(ready.values(), key=lambda q: max((ahead[i] for i in q), default=-1))
        run = []
        while queue:
            i = queue.popleft()
            run.append(i)
            for r in readers[i]:
                waiting[r] -= 1
                if waiting[r] == 0:
                    ready[backends[r]].append(r)
        groups.append(sorted(run))
    return groups


def _changes_ahead(backends: Sequence[Hashable], readers: Sequence[Sequence[int]]) -> list[int]:
    """For each node, the most changes of backend on a path from it."""
    ahead = [0] * len(backends)
    for i in reversed(range(len(backends))):
        ahead[i] = max((ahead[r] + (backends[r] != backends[i]) for r in readers[i]), default=0)
    return ahead


def make_region(graph: Graph, nodes: Sequence[Node], keep: Collection[Value] = (), file: Path | None = None) -> Region:
    """The region of some nodes. Its inputs are the values made elsewhere, without constants; its outputs are those that other
    nodes read, that the graph returns, or that are in `keep`.
    """
    if file is not None or (len(nodes) == len(graph) and not keep):
        made = [v for v in graph.outputs if v.producer is not None]
        return Region(graph, tuple(nodes), tuple(graph.inputs), tuple(made), file)
    inside = set(nodes)
    read = dict.fromkeys(v for node in nodes for v in node.present_reads)
    outer = tuple(v for v in read if v.producer not in inside and not v.is_constant)
    results = (v for node in nodes for v in node.present_outputs)
    return Region(graph, tuple(nodes), outer, tuple(v for v in results if v in keep or is_needed(graph, v, inside)))


def is_needed(graph: Graph, value: Value, inside: Collection[Node]) -> bool:
    """True if the graph returns a value, or a node that is not `inside` reads it."""
    return value.is_output or any(enclosing(user, graph) not in inside for user, _ in value.uses)


def last_uses(regions: Sequence[Region], keep: Iterable[Value] = ()) -> list[tuple[Value, ...]]:
    """For each region, the values that are no longer needed after it has run, without those in `keep`."""
    kept = set(keep)
    last: dict[Value, int] = {}
    for i, region in enumerate(regions):
        last |= dict.fromkeys((*region.outputs, *region.inputs), i)
    found: list[list[Value]] = [[] for _ in regions]
    for value, i in last.items():
        if value not in kept:
            found[i].append(value)
    return [tuple(values) for values in found]
