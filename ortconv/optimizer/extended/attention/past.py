"""Keys and values of earlier steps, concatenated before those of the present step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import producer_of
from ortconv.ir.types import DType
from ortconv.optimizer.extended.attention.heads import Heads, length, split_heads
from ortconv.optimizer.shapes import dim_of

ROWS = 2
"""The axis of heads (batch, count, rows, size) along which steps are concatenated."""


class Joined(NamedTuple):
    """A node Concat(earlier heads, later heads) along the rows."""

    node: Node
    earlier: Value
    later: Heads


Past = tuple[Joined, Joined]
"""The nodes that append the later keys, and the later values."""


def joined(side: Heads) -> Joined | None:
    """The Concat from which keys or values come, if it appends later ones to earlier ones; else None."""
    node = producer_of(side.source, "Concat")
    if node is None or side.source is not side.whole or (len(node.inputs), node.attr("axis", 0) % 4) != (2, ROWS):
        return None
    earlier, later = node.inputs
    heads = split_heads(later)
    if earlier is None or heads is None or heads.whole is None or heads.scale != 1:
        return None
    if (earlier.dtype, earlier.rank) != (DType.FLOAT, 4):
        return None
    sizes = {(side.count, side.size), (heads.count, heads.size), (earlier.dim(1), earlier.dim(3))}
    return Joined(node, earlier, heads) if len(sizes) == 1 else None


def past_of(key: Heads, value: Heads) -> Past | None:
    """The Concats of keys and values, if both have the same numbers of earlier and later rows; else None."""
    keys, values = joined(key), joined(value)
    if keys is None or values is None or keys.node is values.node or key.size != value.size:
        return None
    same = dim_of(keys.earlier, ROWS) == dim_of(values.earlier, ROWS) or length(keys.later, 1) & length(values.later, 1)
    return (keys, values) if same else None


class Pasts:
    """The keys and values of one graph, to decide which Concats attention itself can compute."""

    def __init__(self, graph: Graph, sides: Iterable[tuple[Heads, Heads]]) -> None:
        self.places = {node: place for place, node in enumerate(graph)}
        self.readers = Counter(side.source for pair in sides for side in pair)

    def find(self, key: Heads, value: Heads, others: Iterable[Value | None]) -> Past | None:
        """The Concats of keys and values, if no other attention reads them and no other input depends on them; else None."""
        past = past_of(key, value)
        if past is None or any(self.readers[side.node.out] > 1 for side in past):
            return None
        inputs = (*others, *(value for side in past for value in (side.earlier, side.later.source)))
        return None if self._needs(inputs, [side.node for side in past]) else past

    def _needs(self, values: Iterable[Value | None], nodes: Sequence[Node]) -> bool:
        """True if any of the values depends on an output of one of the nodes."""
        first = min(self.places[node] for node in nodes)
        seen: set[Node] = set()
        stack = _producers(values)
        while stack:
            node = stack.pop()
            if node in seen or self.places.get(node, first) < first:
                continue
            if node in nodes:
                return True
            seen.add(node)
            stack += _producers(node.reads)
        return False


def _producers(values: Iterable[Value | None]) -> list[Node]:
    return [v.producer for v in values if v is not None and v.producer is not None]
