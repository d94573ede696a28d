"""Fusion groups, and the scope in which they are found."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from ortconv.executor.replay.work import Function
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array

Constant = Callable[[Value | None], Array | None]
"""The array of a value; None if it is absent or not constant."""

Bind = Callable[[Node], tuple[Function, list[Value | None]]]
"""A node's kernel with all constants bound, and the values that are its operands."""


class Group(NamedTuple):
    """Nodes that run as one step, in topological order. The step runs at the position of the last one, and makes its outputs."""

    nodes: tuple[Node, ...]
    reads: list[Value | None]
    function: Function | None
    """The function of the values that the group reads; None if there is nothing to compute."""


class Scope:
    """The nodes of a plan, in order, and the groups that have claimed some. Values in `live_out` have readers elsewhere."""

    def __init__(self, nodes: Sequence[Node], constant: Constant, bind: Bind, live_out: Iterable[Value]) -> None:
        self.constant, self.bind, self.live_out = constant, bind, set(live_out)
        self.groups: dict[Node, Group] = {}
        """Groups by their last node."""
        self.claimed: set[Node] = set()
        self.narrow(nodes)

    def narrow(self, nodes: Sequence[Node]) -> None:
        """Keep only these nodes in the scope."""
        self.nodes = nodes
        self.index = {node: index for index, node in enumerate(nodes)}

    def claim(self, group: Group) -> None:
        """Add a group, unless one of its nodes belongs to another group already."""
        if self.claimed.isdisjoint(group.nodes):
            self.claimed.update(group.nodes)
            self.groups[group.nodes[-1]] = group
            # Uses do not show these readers: a group may read the input of a node instead of its output.
            self.live_out.update(v for v in group.reads if v is not None)

    def maker(self, value: Value | None, readers: Container[Node]) -> Node | None:
        """The unclaimed node that computes a value, if only these nodes read the value."""
        node = None if value is None else value.producer
        if value is None or node not in self.index or node in self.claimed or value in self.live_out:
            return None
        return node if all(user in readers for user, _ in value.uses) else None

    def sorted(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(sorted(nodes, key=self.index.__getitem__))

    def reads(self, nodes: Sequence[Node]) -> list[Value | None]:
        """The values that these nodes read from other nodes, without constants."""
        made = {v for node in nodes for v in node.outputs if v is not None}
        inputs = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made)
        return [v for v in inputs if self.constant(v) is None]

    def unfused(self, nodes: Sequence[Node], reads: Sequence[Value | None]) -> Function:
        """The reference of a group with one output: its nodes run one by one."""
        constant, bind = self.constant, self.bind
        bound = cache(lambda: [(*bind(node), node.out) for node in nodes])

        def run(*operands: Any) -> Any:
            known: dict[Value | None, Any] = dict(zip(reads, operands, strict=True))
            result = None
            for function, needed, made in bound():
                result = function(*[known[v] if v in known else constant(v) for v in needed])
                known[made] = result = result[0] if type(result) is tuple else result
            return result

        return run
