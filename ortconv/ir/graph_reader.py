"""The values of a graph that is read from a file, by the names that they have in the file."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, MutableMapping, Sequence

from ortconv.errors import GraphError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.operators import finds_values_by_name
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import ValueType
from ortconv.ir.value import Value


class GraphReader:
    """The names of one graph while it is filled: `own` are its values, `outer` those of the enclosing scopes.

    A value that would hide an outer one gets a fresh name, unless its name is in `kept`. `copies` are the names of repeated
    outputs, with those of the values that the graph returns instead.
    """

    def __init__(self, graph: Graph, outer: MutableMapping[str, Value]) -> None:
        self.graph = graph
        self.outer = outer
        self.own: dict[str, Value] = {}
        self.kept: set[str] = set()
        self.copies: list[tuple[str, str]] = []

    def keep(self, owner: Node, *names: Iterable[str]) -> None:
        """Keep the names of inputs and outputs if the owner of this graph finds them by name."""
        if finds_values_by_name(owner):
            self.kept.update(*names)

    @property
    def visible(self) -> MutableMapping[str, Value]:
        """The values that subgraphs may read, by name."""
        return ChainMap(self.own, self.outer)

    def scoped(self, name: str) -> str:
        """The name that a value of this graph gets."""
        return self.graph.fresh(name) if name in self.outer and name not in self.kept else name

    def declare(self, value: Value, name: str) -> None:
        """Enter a value. Raises GraphError if the graph has another one of this name."""
        if name in self.own:
            maker = value.producer
            raise GraphError(f"'{name}' is defined twice", node=None if maker is None else maker.label)
        self.own[name] = value

    def add_node(
        self, op: str, domain: str, name: str, doc: str, outputs: Sequence[str], types: Sequence[ValueType | None]
    ) -> Node:
        """Add a node without its inputs, and enter its outputs; an empty name is an absent one."""
        made = [self.scoped(n) if n else None for n in outputs] if self.outer else [n or None for n in outputs]
        node = self.graph.add_node(op, (), made, domain=domain, name=name, types=types)
        node.doc = doc
        for output, value in zip(outputs, node.outputs, strict=True):
            if value is not None:
                self.declare(value, output)
        return node

    def add_constant(self, name: str, const: Tensor | SparseTensor) -> None:
        """Add a constant, or give an input of this name its default. A second constant of one name replaces the first."""
        known = self.own.get(name)
        if known is not None and not known.is_input:
            del self.graph.initializers[known.name]
            known = None
        own_name = known.name if known else self.scoped(name)
        self.own[name] = self.graph.add_initializer(own_name, const, known)

    def read(self, name: str, node: Node) -> Value | None:
        """The value that a node reads; None for an empty name. Raises GraphError if there is none."""
        if not name:
            return None
        value = self.own.get(name) or self.outer.get(name)
        if value is None:
            raise GraphError(f"input '{name}' is not defined anywhere", node=node.label)
        return value

    def set_outputs(self, names: Iterable[str]) -> None:
        """Set the values that the graph returns. Identities return outer values, and values that are returned already."""
        outputs: dict[Value, None] = {}
        for name in names:
            value = self.own.get(name) or self.outer.get(name)
            if value is None:
                raise GraphError(f"graph output '{name}' is not defined anywhere")
            if value in outputs:
                value = self.graph.add_node("Identity", [value], [self.graph.fresh(name)], types=[value.type]).out
                self.copies.append((name, value.name))
            elif value.graph is not self.graph:
                value = self.graph.add_node("Identity", [value], types=[value.type]).out
            outputs[value] = None
        self.graph.set_outputs(outputs)
