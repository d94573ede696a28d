"""Minimum cuts: one of two labels for each node of a dataflow graph, with the fewest changes of label along values."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

ENDLESS = 1 << 60


def minimum_cut(count: int, values: Sequence[tuple[int, Sequence[int]]], inside: Collection[int]) -> set[int]:
    """The nodes on the inner side of a minimum cut through nodes 0 to `count` - 1. If there are several such cuts, the
    inner side is the largest one.

    Each of `values` is (producer, readers). A negative number is a node that is always outside. A value costs 1 if any
    reader is on another side than its producer: one conversion serves all readers. Nodes of `inside` are always on the
    inner side. Dinic's algorithm.
    """
    network = _Network(count + 2)
    source, sink = count, count + 1
    for node in inside:
        network.connect(source, node, ENDLESS)
    for producer, readers in values:
        maker = sink if producer < 0 else producer
        ends = {sink if reader < 0 else reader for reader in readers} - {maker}
        if not ends:
            continue
        leaving, entering = network.node(), network.node()
        network.connect(maker, leaving, 1)
        network.connect(entering, maker, 1)
        for end in ends:
            network.connect(leaving, end, ENDLESS)
            network.connect(end, entering, ENDLESS)
    network.saturate(source, sink)
    outside = network.reaching(sink)
    return {node for node in range(count) if node not in outside}


class _Network:
    """A flow network. Edge e and its reverse e ^ 1 have the remaining capacities `room[e]` and `room[e ^ 1]`."""

    def __init__(self, count: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(count)]
        self.head: list[int] = []
        self.room: list[int] = []

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def connect(self, tail: int, head: int, capacity: int) -> None:
        self.edges[tail].append(len(self.head))
        self.edges[head].append(len(self.head) + 1)
        self.head += (head, tail)
        self.room += (capacity, 0)

    def saturate(self, source: int, sink: int) -> None:
        """Send the maximum flow from source to sink."""
        while (level := self._levels(source, sink)) is not None:
            next_edge = [0] * len(self.edges)
            while self._augment(source, sink, level, next_edge):
                pass

    def reaching(self, sink: int) -> set[int]:
        """The nodes from which the sink is still reachable."""
        found, queue = {sink}, deque([sink])
        while queue:
            for edge in self.edges[queue.popleft()]:
                tail = self.head[edge]
                if self.room[edge ^ 1] and tail not in found:
                    found.add(tail)
                    queue.append(tail)
        return found

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Distances from the source along edges with remaining capacity; None if the sink is not reachable."""
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                head = self.head[edge]
                if self.room[edge] and level[head] < 0:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level if level[sink] >= 0 else None

    def _augment(self, source: int, sink: int, level: list[int], next_edge: list[int]) -> bool:
        """Augment one path of the level graph. Every finite capacity is 1, so each path carries a flow of 1."""
        path: list[int] = []
        node = source
        while node != sink:
            edges = self.edges[node]
            while next_edge[node] < len(edges):
                edge = edges[next_edge[node]]
                if self.room[edge] and level[self.head[edge]] == level[node] + 1:
                    break
                next_edge[node] += 1
            else:
                if not path:
                    return False
                node = self.head[path.pop() ^ 1]
                next_edge[node] += 1
                continue
            path.append(edge)
            node = self.head[edge]
        for edge in path:
            self.room[edge] -= 1
            self.room[edge ^ 1] += 1
        return True
