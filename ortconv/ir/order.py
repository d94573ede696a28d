"""Topological order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from ortconv.errors import GraphError

if TYPE_CHECKING:
    from ortconv.ir.graph import Graph, Node


def is_topological(graph: Graph) -> bool:
    """True if every node comes after its producers."""
    seen: set[Node] = set()
    for node in graph:
        if not seen.issuperset(producers(graph, node)):
            return False
        seen.add(node)
    return True


def readers_of(needs: Sequence[Iterable[int]]) -> list[list[int]]:
    """For each index, the indices that need it: the edges of `needs`, reversed."""
    readers: list[list[int]] = [[] for _ in needs]
    for i, needed in enumerate(needs):
        for p in needed:
            readers[p].append(i)
    return readers


def topological(graph: Graph) -> list[Node]:
    """The nodes in topological order, and else in their present order. Raises GraphError if there is a cycle."""
    order = list(graph)
    position = {node: i for i, node in enumerate(order)}
    done = sorted_by([{position[p] for p in producers(graph, node)} for node in order])
    if len(done) < len(order):
        stuck = min(set(range(len(order))).difference(done))
        raise GraphError("the graph has a cycle", node=order[stuck].label)
    return [order[i] for i in done]


def sorted_by(needs: Sequence[Set[int]]) -> list[int]:
    """The indices, each after those that it needs, and else in ascending order. Those that need a cycle are left out."""
    readers, waiting = readers_of(needs), [len(needed) for needed in needs]
    ready = [i for i, n in enumerate(waiting) if n == 0]
    done: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        done.append(i)
        for r in readers[i]:
            waiting[r] -= 1
            if waiting[r] == 0:
                heapq.heappush(ready, r)
    return done


def producers(graph: Graph, node: Node) -> Iterator[Node]:
    """Nodes of a graph that produce the inputs of a node or outer values that its subgraphs read."""
    for value in node.reads:
        if value is not None and value.producer is not None and value.graph is graph:
            yield value.producer
