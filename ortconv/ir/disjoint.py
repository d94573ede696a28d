"""Disjoint sets (union-find)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Disjoint sets of items. At first, each item is in a set of its own."""

    def __init__(self, items: Iterable[T]) -> None:
        self._parent = {item: item for item in items}

    def __contains__(self, item: object) -> bool:
        return item in self._parent

    def find(self, item: T) -> T:
        """The representative of this item's set."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, a: T, b: T) -> None:
        """Merge the sets of `a` and `b`."""
        self._parent[self.find(a)] = self.find(b)

    def sets(self) -> list[list[T]]:
        """All sets in the order of their first items, each with its items in order."""
        found: dict[T, list[T]] = {}
        for item in self._parent:
            found.setdefault(self.find(item), []).append(item)
        return list(found.values())
