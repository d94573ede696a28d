"""Records of a graph's edits. A graph without a journal pays one comparison for each edit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortconv.ir.graph import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two looks: the labels of the nodes that went and came; nodes and bytes are the whole model's.

    Bytes are those of the constants that something reads or returns; seconds include the search for what to change.
    """

    consumed: tuple[str, ...]
    made: tuple[str, ...]
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    seconds: float


class Journal:
    """Follows a graph and all below it until closed; the time for each edit does not depend on the graph's size."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._bytes_of: dict[Value, int] = {}
        self._came: dict[Node, int] = {}
        self._went: dict[Node, tuple[str, int]] = {}
        self._touched: dict[Value, None] = {}
        self._names = {v.name: v for node in graph for v in node.outputs if v is not None}
        self._heirs: dict[Value, Value] = {}
        self._began = time.perf_counter()
        self.nodes = 0
        self.bytes = 0
        for g in graph.graphs():
            g.journal = self
            self.nodes += len(g)
            self.saw(g.initializers.values())
        self.take()

    def came(self, node: Node) -> None:
        """A node was put into a graph."""
        for sub in node.subgraphs if node.attrs else ():
            for g in sub.graphs():
                g.journal = self
        if self._went.pop(node, None) is None:
            self._came[node] = _size(node)

    def went(self, node: Node) -> None:
        """A node was removed from a graph."""
        if self._came.pop(node, None) is None:
            self._went[node] = node.label, _size(node)

    def saw(self, values: Iterable[Value | None]) -> None:
        """These values gained or lost a reader."""
        self._touched.update((v, None) for v in values if v is not None and v.const is not None)

    def stands(self, new: Value, old: Value) -> None:
        """A value took the place of another one, everywhere."""
        self._heirs[old] = new

    def names(self) -> dict[str, str]:
        """The names of the values that nodes of the main graph made at first and still make, each with its name today."""
        found = {}
        for name, value in self._names.items():
            seen = {value}
            while (heir := self._heirs.get(value)) is not None and heir not in seen:
                value = heir
                seen.add(heir)
            if value.producer is not None and value.producer.graph is self._graph:
                found[name] = value.name
        return found

    def take(self) -> Change:
        """What happened since the last time."""
        nodes, count, seconds = self.nodes, self.bytes, time.perf_counter() - self._began
        self.nodes += sum(self._came.values()) - sum(size for _, size in self._went.values())
        for value in self._touched:
            used = value.uses or value.is_output
            held = getattr(value.const, "nbytes", 0) if used else 0
            self.bytes += held - self._bytes_of.get(value, 0)
            self._bytes_of[value] = held
        consumed, made = tuple(label for label, _ in self._went.values()), tuple(n.label for n in self._came)
        change = Change(consumed, made, nodes, self.nodes, count, self.bytes, seconds)
        for log in (self._came, self._went, self._touched):
            log.clear()
        self._began = time.perf_counter()
        return change

    def close(self) -> None:
        """Stop following."""
        for g in self._graph.graphs():
            g.journal = None


def _size(node: Node) -> int:
    return 1 + sum(1 for sub in node.subgraphs for _ in sub.walk()) if node.attrs else 1
