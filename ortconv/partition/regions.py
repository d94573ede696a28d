"""Groups the eligible units of a graph into partitions.

The graph is abstract here: units are numbered in topological order, and `producers[u]` lists the producing unit of each edge into
u, duplicates included. A partition need not be connected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.order import readers_of

Edges = Sequence[Sequence[int]]

Eligible = Callable[[int, Callable[[int], bool]], bool]
"""eligible(u, in_group) is true if the target supports u. `in_group(p)` is true if producer p is in the growing group."""


def group_by_wave(producers: Edges, eligible: Eligible) -> tuple[list[int], list[list[int]]]:
    """Return the wave of each unit, -1 if it is not eligible, and the groups: the eligible units of each wave.

    The wave of a unit is the largest number of edges from an eligible to an ineligible unit on any path to it.
    """
    waves: list[int] = []
    taken: list[bool] = []
    groups: list[list[int]] = []
    for u, before in enumerate(producers):
        wave = max((waves[p] for p in before), default=0)
        yes = eligible(u, lambda p, wave=wave: taken[p] and waves[p] == wave)  # type: ignore[misc]
        if not yes and any(taken[p] and waves[p] == wave for p in before):
            wave += 1
        waves.append(wave)
        taken.append(yes)
        if yes:
            groups.extend([] for _ in range(wave + 1 - len(groups)))
            groups[wave].append(u)
    return [wave if yes else -1 for wave, yes in zip(waves, taken, strict=True)], groups


def group_by_queue(producers: Edges, eligible: Eligible) -> list[list[int]]:
    """The same groups, grown one unit at a time as ONNX Runtime does. Units are in the order in which they join."""
    consumers = readers_of(producers)
    missing = [len(before) for before in producers]
    ready = deque(u for u, n in enumerate(missing) if n == 0)
    postponed: deque[int] = deque()
    answers: dict[int, bool] = {}
    groups: list[list[int]] = []
    group: dict[int, None] = {}
    border: set[int] = set()
    while ready or postponed:
        if not ready:
            if group:
                groups.append(list(group))
            group, border = {}, set()
            ready, postponed = postponed, ready
            continue
        u = ready.popleft()
        if u not in answers:
            answers[u] = eligible(u, group.__contains__)
        if answers[u]:
            group[u] = None
            border.discard(u)
        elif u in border:
            postponed.append(u)
            continue
        for v in consumers[u]:
            if answers[u]:
                border.add(v)
            missing[v] -= 1
            if missing[v] == 0:
                ready.append(v)
    if group:
        groups.append(list(group))
    return groups


def region_inputs(nodes: Iterable[Node]) -> list[Value]:
    """Values that the nodes read but do not produce, constants included, in order of first use."""
    nodes = list(nodes)
    inside = set(nodes)
    found: dict[Value, None] = {}
    for node in nodes:
        for value in node.present_reads:
            if value.producer not in inside:
                found[value] = None
    return list(found)


def region_outputs(nodes: Collection[Node]) -> list[Value]:
    """Values that the nodes produce and that other nodes read or the graph returns, in order of nodes."""
    inside = set(nodes)
    return [
        value
        for node in nodes
        for value in node.outputs
        if value is not None and (value.is_output or any(user not in inside for user, _ in value.uses))
    ]


def enclosing(node: Node, graph: Graph) -> Node | None:
    """The node of `graph` that is `node` or that contains it in a subgraph; None if there is none."""
    found: Node | None = node
    while found is not None and found.graph is not graph:
        found = None if found.graph is None else found.graph.owner
    return found
