"""A linked list of nodes; iteration over it survives insertion and removal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortconv.ir.graph import Node


class Links:
    """The nodes of a graph, in order. A removed node keeps its link to the next one, so that loops continue."""

    def __init__(self) -> None:
        self._head: Node | None = None
        self._tail: Node | None = None
        self._count = 0

    def __iter__(self) -> Iterator[Node]:
        node = self._head
        while node is not None:
            if node.graph is self:
                yield node
            node = node.next

    def __reversed__(self) -> Iterator[Node]:
        node = self._tail
        while node is not None:
            if node.graph is self:
                yield node
            node = node.prev

    def __len__(self) -> int:
        return self._count

    def _link(self, node: Node, before: Node | None) -> None:
        """Insert a node before the node `before`, or at the end if it is None."""
        assert before is None or before.graph is self
        prev = self._tail if before is None else before.prev
        node.prev, node.next = prev, before
        if prev is None:
            self._head = node
        else:
            prev.next = node
        if before is None:
            self._tail = node
        else:
            before.prev = node
        self._count += 1

    def _unlink(self, node: Node) -> None:
        if node.prev is None:
            self._head = node.next
        else:
            node.prev.next = node.next
        if node.next is None:
            self._tail = node.prev
        else:
            node.next.prev = node.prev
        self._count -= 1

    def _relink(self, order: Iterable[Node]) -> None:
        """Put the nodes into the order of `order`, which has the same nodes."""
        self._head = self._tail = None
        self._count = 0
        for node in order:
            Links._link(self, node, None)
