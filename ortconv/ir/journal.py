"""Records of a graph's edits. Without a journal, an edit costs one extra comparison."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ortconv.ir.graph import Graph, Node, Value


class NodeChanges(NamedTuple):
    """The edits between two calls of Journal.take: labels of the removed and added nodes, and totals for the whole model.

    Bytes count constants that are read or returned; seconds include the time spent on finding the edits.
    """

    consumed: tuple[str, ...]
    made: tuple[str, ...]
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    seconds: float

    def then(self, later: NodeChanges) -> NodeChanges:
        """This change and the one that follows it, as one."""
        return NodeChanges(
            self.consumed + later.consumed, self.made + later.made, self.nodes_before, later.nodes_after,
            self.bytes_before, later.bytes_after, self.seconds + later.seconds,
        )  # fmt: skip


FEW = 16
"""An edit of a constant marks its readers as changed only up to this number of them: no pattern covers more."""


class Edits:
    """Follows a graph and its subgraphs until closed: records the changed nodes, and counts the nodes of each operator."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.changed: dict[Node, None] = {}
        """Nodes that were added, have other inputs, or share a value with such a node. Removed nodes may be among them."""
        self.removed: list[Node] = []
        """Nodes that were removed. Some of them may be in a graph again."""
        self.links = 0
        """Number of times that a node was added or removed."""
        self.operators: Counter[tuple[str, str]] = Counter()
        """Number of nodes for each (domain, operator)."""
        for g in graph.graphs():
            g.journal = self
            self.operators.update((node.domain, node.op) for node in g)

    def node_added(self, node: Node) -> None:
        """Called when a node has been added to a graph."""
        self.links += 1
        self.changed[node] = None
        self.operators[node.domain, node.op] += 1
        for sub in node.subgraphs if node.attrs else ():
            for g in sub.graphs():
                g.journal = self

    def node_removed(self, node: Node) -> None:
        """Called when a node has been removed from a graph."""
        self.links += 1
        self.removed.append(node)
        self.operators[node.domain, node.op] -= 1

    def node_changed(self, node: Node, values: Iterable[Value | None]) -> None:
        """Called when a node starts or stops reading these values, or its attributes have changed."""
        self.changed[node] = None
        self.values_changed(values)

    def values_changed(self, values: Iterable[Value | None]) -> None:
        """Called when these values gain or lose a reader, or their type has changed."""
        changed = self.changed
        for value in values:
            if value is not None:
                if value.producer is not None:
                    changed[value.producer] = None
                elif len(value.uses) <= FEW or value.const is None:
                    for node, _ in value.uses:
                        changed[node] = None

    def value_replaced(self, new: Value, old: Value) -> None:
        """Called when `new` replaces `old` everywhere."""

    def close(self) -> None:
        """Detach from the graph and its subgraphs."""
        for g in self._graph.graphs():
            g.journal = None


class Journal(Edits):
    """Records edits with labels and sizes. The time for an edit does not depend on the graph's size."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._bytes_of: dict[Value, int] = {}
        self._added_sizes: dict[Node, int] = {}
        """The added nodes, each with the number of nodes in it, itself included."""
        self._removed_labels: dict[Node, tuple[str, int]] = {}
        """The removed nodes, each with its label and the number of nodes in it."""
        self._touched: dict[Value, None] = {}
        self._names = {v.name: v for node in graph for v in node.outputs if v is not None}
        self._replaced_by: dict[Value, Value] = {}
        self._began = time.perf_counter()
        self.nodes = 0
        self.bytes = 0
        for g in graph.graphs():
            self.nodes += len(g)
            self.values_changed(g.initializers.values())
        self.take()

    def node_added(self, node: Node) -> None:
        super().node_added(node)
        if self._removed_labels.pop(node, None) is None:
            self._added_sizes[node] = _size(node)

    def node_removed(self, node: Node) -> None:
        """Called when a node has been removed from a graph."""
        super().node_removed(node)
        if self._added_sizes.pop(node, None) is None:
            self._removed_labels[node] = node.label, _size(node)

    def values_changed(self, values: Iterable[Value | None]) -> None:
        values = tuple(values)
        super().values_changed(values)
        self._touched.update((v, None) for v in values if v is not None and v.const is not None)

    def value_replaced(self, new: Value, old: Value) -> None:
        self._replaced_by[old] = new

    def names(self) -> dict[str, str]:
        """Current names, by original name, of values of the main graph that nodes produced at first and still do."""
        found = {}
        for name, value in self._names.items():
            seen = {value}
            while (successor := self._replaced_by.get(value)) is not None and successor not in seen:
                value = successor
                seen.add(successor)
            if value.producer is not None and value.producer.graph is self._graph:
                found[name] = value.name
        return found

    def take(self) -> NodeChanges:
        """The edits since the previous call."""
        nodes, count, seconds = self.nodes, self.bytes, time.perf_counter() - self._began
        self.nodes += sum(self._added_sizes.values()) - sum(size for _, size in self._removed_labels.values())
        for value in self._touched:
            used = value.uses or value.is_output
            held = getattr(value.const, "nbytes", 0) if used else 0
            self.bytes += held - self._bytes_of.get(value, 0)
            self._bytes_of[value] = held
        consumed = tuple(label for label, _ in self._removed_labels.values())
        made = tuple(n.label for n in self._added_sizes)
        change = NodeChanges(consumed, made, nodes, self.nodes, count, self.bytes, seconds)
        for log in (self._added_sizes, self._removed_labels, self._touched):
            log.clear()
        self._began = time.perf_counter()
        return change


def _size(node: Node) -> int:
    """The number of nodes in a node: itself and those of its subgraphs."""
    return 1 + sum(1 for sub in node.subgraphs for _ in sub.walk()) if node.attrs else 1
