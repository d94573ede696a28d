"""Patterns of rewrite rules, written like the expressions that they match.

    P("Add", P("Conv", "x", C("w"), C("b", optional=True), name="conv"), C("k"), commutative=True)

A string binds any value; the same string twice must bind the same value, and "x?" may be absent. C binds a constant
that no caller can override. P binds a node through its first output; inner nodes must have no other reader and must not be
returned by the graph, unless `shared=True`. An ellipsis as last input accepts any further inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import NamedTuple, Union, cast

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.tensor import Tensor


class C(NamedTuple):
    """Pattern of a constant. `one` requires a single element; `where` is a further condition on the value."""

    name: str
    optional: bool = False
    one: bool = False
    where: Callable[[Value], bool] | None = None


class P:
    """Pattern of a node: one or several operators, its inputs, and conditions on it."""

    __slots__ = ("commutative", "domain", "inputs", "name", "open_ended", "ops", "orders", "shared", "where")

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
        self.open_ended = bool(inputs) and inputs[-1] is ...
        operands = inputs[: len(inputs) - self.open_ended]
        self.orders: tuple[tuple[PatternInput, ...], ...] = (
            (operands, (operands[1], operands[0], *operands[2:])) if commutative else (operands,)
        )


PatternInput = Union[str, C, P, EllipsisType, None]
"""The kinds of inputs in a pattern; None requires an absent input."""


def with_factor(x: PatternInput, factor: C, name: str = "") -> tuple[P, P]:
    """Patterns of x multiplied and divided by a constant."""
    return P("Mul", x, factor, commutative=True, name=name), P("Div", x, factor, name=name)


class Match:
    """The bindings of a pattern: `m.x` is a value, `m.node("conv")` a node, `m.tensor("w")` the content of a constant.

    `m.x` is None if the pattern permits an absent input and there is none. Its type is Value nevertheless.
    """

    __slots__ = ("bound", "nodes", "root")

    def __init__(self, root: Node, bound: Bound, nodes: InnerNodes) -> None:
        self.root = root
        self.bound = bound
        self.nodes = nodes

    def __getattr__(self, name: str) -> Value:
        try:
            found = self.bound[name]
        except KeyError:
            raise AttributeError(name) from None
        assert not isinstance(found, Node), f'{name} is a node: use node("{name}")'
        return cast(Value, found)

    def node(self, name: str) -> Node:
        """The node with that name."""
        found = self.bound[name]
        assert isinstance(found, Node)
        return found

    def tensor(self, name: str) -> Tensor:
        """The content of the constant with that name."""
        found = self.bound[name]
        assert isinstance(found, Value)
        assert found.constant is not None
        return found.constant

    def values(self, *names: str) -> list[Value]:
        """The values with these names that are present."""
        return [value for name in names if (value := self.optional(name)) is not None]

    def optional(self, name: str) -> Value | None:
        """The value with that name; None if it is absent, or if this pattern of the rule does not have it."""
        found = self.bound.get(name)
        assert not isinstance(found, Node)
        return found

    def optional_node(self, name: str) -> Node | None:
        """The node with that name; None if this pattern of the rule does not have it."""
        return self.node(name) if name in self.bound else None

    def optional_nodes(self, *names: str) -> list[Node]:
        """The nodes with these names that this pattern of the rule has."""
        return [self.node(name) for name in names if name in self.bound]

    @property
    def graph(self) -> Graph:
        return self.root.parent


Bound = dict[str, Value | Node | None]
InnerNodes = tuple[tuple[Node, bool], ...]
"""The matched nodes without the root, each with True if other nodes may read its output."""


Kind = str | bool | None
"""The kind of an input: the operator that produces it; without a producer, True if it is constant; None if it is absent."""


def kinds(node: Node, count: int) -> tuple[Kind, ...]:
    """The kinds of a node's first `count` inputs."""
    return tuple(
        [None if v is None else v.producer.op if v.producer else v.const is not None for v in node.inputs[:count]]
    )


def may_fit(pattern: P, found: tuple[Kind, ...]) -> bool:
    """False if no node whose inputs have these kinds can match. The node's own operator is not checked."""
    return any(all(map(_operand_may_be, operands, found)) for operands in pattern.orders)


def _operand_may_be(operand: PatternInput, kind: Kind) -> bool:
    if isinstance(operand, P):
        return kind in operand.ops
    return not isinstance(operand, C) or kind is True or (kind is None and operand.optional)


def matches(pattern: P, root: Node) -> Iterator[Match]:
    """Every match of the pattern at this node. The engine checks the surroundings of a match."""
    if _may_fit(pattern, root):
        for bound, inner in _node(pattern, root, {}, ()):
            yield Match(root, bound, inner)


def _may_fit(pattern: P, node: Node) -> bool:
    """A fast check of the operators around a node. It rejects nearly all nodes that cannot match."""
    if node.op not in pattern.ops or node.domain != pattern.domain:
        return False
    if not may_fit(pattern, kinds(node, len(pattern.inputs))):
        return False
    return pattern.where is None or pattern.where(node)


def _node(pattern: P, node: Node, bound: Bound, inner: InnerNodes) -> Iterator[tuple[Bound, InnerNodes]]:
    """Every way in which a pattern matches at a node that may fit."""
    for operands in pattern.orders:
        if pattern.open_ended or all(v is None for v in node.inputs[len(operands) :]):
            own = {**bound, pattern.name: node} if pattern.name else dict(bound)
            yield from _inputs(operands, 0, node, own, inner)


def _inputs(
    operands: tuple[PatternInput, ...], start: int, node: Node, bound: Bound, inner: InnerNodes
) -> Iterator[tuple[Bound, InnerNodes]]:
    """Every way in which the operands from `start` on match. `bound` must not be used afterward."""
    for slot in range(start, len(operands)):
        operand, value = operands[slot], node.input(slot)
        if isinstance(operand, P):
            producer = _producer(value, node)
            if producer is not None and _may_fit(operand, producer):
                for b, i in _node(operand, producer, bound, (*inner, (producer, operand.shared))):
                    yield from _inputs(operands, slot + 1, node, b, i)
            return
        if not _bind(operand, value, bound):
            return
    yield bound, inner


def _producer(value: Value | None, reader: Node) -> Node | None:
    """The producer of a value if it is in the reader's graph and the value is its first output; else None."""
    return None if value is None or value.index or value.graph is not reader.graph else value.producer


def _bind(operand: PatternInput, value: Value | None, bound: Bound) -> bool:
    """Bind a value to an operand that is not a node. Return False if it does not match."""
    if isinstance(operand, C):
        if value is None:
            bound.setdefault(operand.name, None)
            return operand.optional
        const = value.constant
        if const is None or (operand.one and const.size != 1):
            return False
        if operand.where is not None and not operand.where(value):
            return False
        name = operand.name
    elif isinstance(operand, str):
        name = operand.rstrip("?")
        if value is None:
            bound.setdefault(name, None)
            return name != operand
    else:
        return value is None
    return bound.setdefault(name, value) is value
