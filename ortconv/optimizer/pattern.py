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
        *inputs: PatternInput,
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


PatternInput = Union[str, C, P, EllipsisType, None]
"""What an input may be; None demands that it is left out."""


class Match:
    """What a pattern bound: `m.x` is the value or node of that name, None for an optional one that is absent."""

    __slots__ = ("bound", "nodes", "root")

    def __init__(self, root: Node, bound: Bound, nodes: InnerNodes) -> None:
        self.root = root
        self.bound = bound
        self.nodes = nodes

    def __getattr__(self, name: str) -> Any:
        try:
            return self.bound[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def graph(self) -> Graph:
        assert self.root.graph is not None
        return self.root.graph


Bound = dict[str, Any]
InnerNodes = tuple[tuple[Node, bool], ...]
"""The matched nodes other than the root, each with whether others may read it."""


def matches(pattern: P, root: Node) -> Iterator[Match]:
    """Every way in which the pattern fits at this node. What surrounds a match is the engine's concern."""
    if _may_fit(pattern, root):
        for bound, inner in _node(pattern, root, {}, ()):
            yield Match(root, bound, inner)


def _may_fit(pattern: P, node: Node) -> bool:
    """A look at the operators around a node that turns away nearly all that cannot match, and costs next to nothing."""
    if node.op not in pattern.ops or node.domain != pattern.domain:
        return False
    if not all(map(_operand_may_fit, pattern.inputs, node.inputs)) and not (
        pattern.commutative and all(map(_operand_may_fit, pattern.inputs, node.inputs[1::-1]))
    ):
        return False
    return pattern.where is None or pattern.where(node)


def _operand_may_fit(operand: PatternInput, value: Value | None) -> bool:
    if isinstance(operand, P):
        return value is not None and (producer := value.producer) is not None and producer.op in operand.ops
    if isinstance(operand, C):
        return value.const is not None if value is not None else operand.optional
    return True


def _node(pattern: P, node: Node, bound: Bound, inner: InnerNodes) -> Iterator[tuple[Bound, InnerNodes]]:
    if pattern.name:
        bound = {**bound, pattern.name: node}
    for operands in _orders(pattern):
        open_ended = bool(operands) and operands[-1] is ...
        count = len(operands) - open_ended
        if open_ended or all(v is None for v in node.inputs[count:]):
            yield from _inputs(operands[:count], 0, node, bound, inner)


def _orders(pattern: P) -> Iterator[tuple[PatternInput, ...]]:
    yield pattern.inputs
    if pattern.commutative:
        yield (pattern.inputs[1], pattern.inputs[0], *pattern.inputs[2:])


def _inputs(
    operands: tuple[PatternInput, ...], slot: int, node: Node, bound: Bound, inner: InnerNodes
) -> Iterator[tuple[Bound, InnerNodes]]:
    if slot == len(operands):
        yield bound, inner
        return
    operand, value = operands[slot], node.input(slot)
    if isinstance(operand, P):
        if value is None or value.producer is None or value.index != 0 or value.graph is not node.graph:
            return
        producer = value.producer
        if _may_fit(operand, producer):
            for b, i in _node(operand, producer, bound, (*inner, (producer, operand.shared))):
                yield from _inputs(operands, slot + 1, node, b, i)
        return
    after = _bind(operand, value, bound)
    if after is not None:
        yield from _inputs(operands, slot + 1, node, after, inner)


def _bind(operand: PatternInput, value: Value | None, bound: Bound) -> Bound | None:
    """What is bound after an operand that is no node took a value; None if it does not take it."""
    if isinstance(operand, C):
        if value is None:
            return {operand.name: None, **bound} if operand.optional else None
        const = value.constant
        if const is None or (operand.one and const.size != 1):
            return None
        if operand.where is not None and not operand.where(value):
            return None
        name = operand.name
    elif isinstance(operand, str):
        name = operand.rstrip("?")
        if value is None:
            return {name: None, **bound} if name != operand else None
    else:
        return bound if value is None else None
    if name in bound:
        return bound if bound[name] is value else None
    return {**bound, name: value}
