"""Groups the eligible units of a graph into partitions.

The graph is abstract here: units are numbered in topological order, and `producers[u]` lists the producing unit of each edge into
u, duplicates included. A partition need not be connected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ortconv.ir.graph import Node, Value

Eligible = Callable[[int, Callable[[int], bool]], bool]
"""eligible(u, in_group) is true if the target supports u. `in_group(p)` is true if producer p is in the growing group."""


def group_by_wave(producers: Sequence[Sequence[int]], eligible: Eligible) -> list[list[int]]:
    """The groups: the eligible units of each wave. They are the groups that ONNX Runtime's partitioner forms.

    The wave of a unit is the largest number of edges from an eligible to an ineligible unit on any path to it.
    """
    waves: list[int] = []
    eligibles: list[bool] = []
    groups: list[list[int]] = []
    for u, before in enumerate(producers):
        wave = max((waves[p] for p in before), default=0)
        is_eligible = eligible(u, lambda p, wave=wave: eligibles[p] and waves[p] == wave)  # type: ignore[misc]
        if not is_eligible and any(eligibles[p] and waves[p] == wave for p in before):
            wave += 1
        waves.append(wave)
        eligibles.append(is_eligible)
        if is_eligible:
            groups.extend([] for _ in range(wave + 1 - len(groups)))
            groups[wave].append(u)
    return groups


def region_inputs(nodes: Iterable[Node]) -> list[Value]:
    """Values that the nodes read but do not produce, constants included, in order of first use."""
    nodes = list(nodes)
    inside = set(nodes)
    return list(dict.fromkeys(v for node in nodes for v in node.present_reads if v.producer not in inside))


def region_outputs(nodes: Collection[Node]) -> list[Value]:
    """Values that the nodes produce and that other nodes read or the graph returns, in order of nodes."""
    inside = set(nodes)
    made = (value for node in nodes for value in node.present_outputs)
    return [value for value in made if value.is_output or any(user not in inside for user, _ in value.uses)]
