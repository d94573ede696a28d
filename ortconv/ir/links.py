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
        self._count += 1
        if before is None:
            self._append(node)
            return
        assert before.graph is self
        node.prev, node.next = before.prev, before
        if before.prev is None:
            self._head = node
        else:
            before.prev.next = node
        before.prev = node

    def _append(self, node: Node) -> None:
        node.prev, node.next = self._tail, None
        if self._tail is None:
            self._head = node
        else:
            self._tail.next = node
        self._tail = node

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
        for node in order:
            self._append(node)
