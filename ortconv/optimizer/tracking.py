"""Tracks the nodes that a pass must visit: those of its operators and, when it runs again, only near changes since then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count
from operator import attrgetter

from ortconv.ir.graph import Graph, Node
from ortconv.ir.journal import Edits
from ortconv.ir.nesting import with_owners

BEHIND, AHEAD = 2, 8
"""The neighborhood of a change: BEHIND steps back to producers, and from there AHEAD steps forward to all readers."""

LARGE_SHARE = 1 / 8
"""If a larger share of the nodes has changed, all nodes count as near a change."""

Operator = tuple[str, str]
"""(domain, name)"""

_runs = count(1)
_place = attrgetter("place")


class Tracker:
    """Follows the changes of a graph and its subgraphs while passes run over them.

    Runs of passes are numbered. A node near a change has the number of the run in `Node.touched`.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._own = graph.journal is None
        self.edits = Edits(graph) if graph.journal is None else graph.journal
        self.edits.changed.clear()
        self.run = next(_runs)
        self._ran: dict[object, int] = {}
        self.since = 0
        """The first run whose changes are new to the present pass; 0 if all nodes are new to it."""
        self._index: dict[Graph, tuple[int, dict[Operator, list[Node]]]] = {}

    def close(self) -> None:
        if self._own:
            self.edits.close()

    def begin(self, running: object) -> None:
        """Must be called when a pass begins to run."""
        self.since = self._ran.get(running, 0)
        self.run = self._ran[running] = next(_runs)

    def has_all(self, *groups: Collection[Operator]) -> bool:
        """True if the model has a node of one of the operators of each group that is not empty."""
        counts = self.edits.operators
        return all(not group or any(counts[operator] > 0 for operator in group) for group in groups)

    def nodes(self, graph: Graph, operators: Iterable[Operator]) -> list[Node]:
        """The nodes of these operators in a graph, in the graph's order."""
        links, index = self._index.get(graph, (-1, {}))
        if links != self.edits.links:
            index = {}
            for place, node in enumerate(graph):
                node.place = place
                index.setdefault((node.domain, node.op), []).append(node)
            self._index[graph] = self.edits.links, index
        found = [nodes for operator in operators if (nodes := index.get(operator)) is not None]
        return list(found[0]) if len(found) == 1 else sorted(chain.from_iterable(found), key=_place)

    def mark_touched(self, others: Iterable[Node] = ()) -> None:
        """Mark the nodes near changes since the last call, and `others`, as touched in the present run."""
        changed = self.edits.changed
        everywhere = len(changed) > LARGE_SHARE * self.edits.operators.total()
        near = self._graph.walk() if everywhere else _neighborhood(changed)
        for node in chain(others, near):
            node.touched = self.run
        changed.clear()

    def release(self) -> None:
        """Free the nodes that were removed from the graph. Must be called when nothing refers to them any more, between passes.

        A node and its outputs refer to each other, so that only a garbage collection would free them.
        """
        for node in self.edits.removed:
            if node.graph is None:
                node.outputs, node.prev, node.next = (), None, None
        if self.edits.removed:
            self._index.clear()
        self.edits.removed.clear()


def _neighborhood(changed: Iterable[Node]) -> set[Node]:
    """The nodes near changed ones that are still in a graph."""
    near = last = _all_with_owners(node for node in changed if node.graph is not None)
    for _ in range(BEHIND):
        last = set(producers(last)) - near
        near |= last
    last = near
    for _ in range(AHEAD):
        readers = {reader for node in last for v in node.outputs if v is not None for reader, _ in v.uses} - near
        if not readers:
            break
        last = _all_with_owners(readers)
        near |= last
    return near


def producers(nodes: Iterable[Node]) -> Iterator[Node]:
    """The producers of the nodes' inputs."""
    return (p for node in nodes for v in node.inputs if v is not None and (p := v.producer) is not None)


def _all_with_owners(nodes: Iterable[Node]) -> set[Node]:
    """The nodes, and the nodes that contain them in subgraphs."""
    return set(chain.from_iterable(map(with_owners, nodes)))
