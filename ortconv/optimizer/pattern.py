"""Patterns: what a rewrite rule looks for, written as the expression it looks for.

    P("Add", P("Conv", "x", C("w"), C("b", optional=True), name="conv"), C("k"), commutative=True)

A string binds any value; the same string twice must bind the same value, and "x?" may be left out. C binds a constant
that no caller can override. P binds a node through its first output; inner nodes must have no other reader and must not be
returned by the graph, unless `shared=True`. An ellipsis as last input accepts whatever follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Union

from ortconv.ir.graph import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class C:
    """A constant. `one` demands a single element; `where` is a further condition on the value."""

    name: str
    optional: bool = False
    one: bool = False
    where: Callable[[Value], bool] | None = None


class P:
    """A node: operator (or several), its inputs, and conditions on it."""

    __slots__ = ("commutative", "domain", "inputs", "name", "ops", "shared", "where")

    def __init__(
        self,
        ops: str | tuple[str, ...],
        *inputs: Operand,
        name: str = "",
        domain: str = "",
        commutative: bool = False,
        shared: bool = False,
        where: Callable[[Node], bool] | None = None,
    ) -> None:
        self.ops = (ops,) if isinstance(ops, str) else ops
        self.inputs = inputs
        self.name = name
        self.domain = domain
        self.commutative = commutative
        self.shared = shared
        self.where = where


Operand = Union[str, C, P, EllipsisType, None]
"""What an input may be; None demands that it is left out."""


class Match:
    """What a pattern bound: `m.x` is the value or node of that name, None for an optional one that is absent."""

    __slots__ = ("bound", "nodes", "root")

    def __init__(self, root: Node) -> None:
        self.root = root
        self.bound: dict[str, Any] = {}
        self.nodes: list[tuple[Node, bool]] = []

    def __getattr__(self, name: str) -> Any:
        try:
            return self.bound[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def graph(self) -> Graph:
        assert self.root.graph is not None
        return self.root.graph


def match(pattern: P, root: Node) -> Match | None:
    """The first way in which the pattern fits at this node, or None. The engine looks at what surrounds it."""
    found = Match(root)
    return found if _node(pattern, root, found, is_root=True) else None


def _node(pattern: P, node: Node, m: Match, *, is_root: bool = False) -> bool:
    if node.op not in pattern.ops or node.domain != pattern.domain:
        return False
    if pattern.where is not None and not pattern.where(node):
        return False
    bound, count = dict(m.bound), len(m.nodes)
    for operands in _orders(pattern):
        if pattern.name:
            m.bound[pattern.name] = node
        if not is_root:
            m.nodes.append((node, pattern.shared))
        if _inputs(operands, node, m):
            return True
        m.bound = dict(bound)
        del m.nodes[count:]
    return False


def _orders(pattern: P) -> Iterator[tuple[Operand, ...]]:
    yield pattern.inputs
    if pattern.commutative and len(pattern.inputs) >= 2:
        yield (pattern.inputs[1], pattern.inputs[0], *pattern.inputs[2:])


def _inputs(operands: tuple[Operand, ...], node: Node, m: Match) -> bool:
    open_ended = bool(operands) and operands[-1] is ...
    count = len(operands) - open_ended
    if not open_ended and any(v is not None for v in node.inputs[count:]):
        return False
    return all(_operand(operands[slot], node.input(slot), node, m) for slot in range(count))


def _operand(operand: Operand, value: Value | None, node: Node, m: Match) -> bool:
    if isinstance(operand, str):
        name = operand.rstrip("?")
        if value is None:
            if name == operand:
                return False
            m.bound.setdefault(name, None)
            return True
        return m.bound.setdefault(name, value) is value
    if isinstance(operand, C):
        if value is None:
            m.bound.setdefault(operand.name, None)
            return operand.optional
        const = value.constant
        if (
            const is None
            or (operand.one and const.size != 1)
            or (operand.where is not None and not operand.where(value))
        ):
            return False
        return m.bound.setdefault(operand.name, value) is value
    if isinstance(operand, P):
        if value is None or value.producer is None or value.index != 0 or value.graph is not node.graph:
            return False
        return _node(operand, value.producer, m)
    return value is None
