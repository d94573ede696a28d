"""Colors: small numbers that are equal exactly for nodes that look the same, in both graphs of a comparison.

Three of them describe a node, each a step further than its name:

* local: operator, attributes, constant operands by content, and how many operands and results there are;
* forward: local, and the forward colors of everything that it reads, up to the inputs;
* backward: local, and the backward colors of everything that reads it, down to the outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from ortconv.ir.attributes import Attribute, content
from ortconv.ir.graph import Graph, Graphs, Node, Value, captures
from ortconv.ir.nesting import named_subgraphs, readers
from ortconv.ir.schema import schema_of

Known = Mapping[Value, Hashable]
"""The color of values that a graph does not compute: its inputs, and the outer values that it reads."""


class Palette:
    """One color for each key. Both graphs of a comparison share a palette."""

    def __init__(self) -> None:
        self._colors: dict[Hashable, int] = {}
        self._contents: dict[int, tuple[object, int]] = {}

    def color(self, key: Hashable) -> int:
        return self._colors.setdefault(key, len(self._colors))

    def content(self, value: Attribute) -> int:
        """The color of a constant or attribute, by content. Each object is hashed once."""
        known = self._contents.get(id(value))
        if known is None:
            kind = "Ints" if type(value) is tuple else type(value).__name__
            known = self._contents[id(value)] = value, self.color((kind, content(value)))
        return known[1]


class Colors:
    """The colors of one graph's nodes. `known` holds the colors of its inputs and of outer values."""

    def __init__(self, graph: Graph, palette: Palette, known: Known) -> None:
        self.palette = palette
        self._known = known
        self.local: dict[Node, int] = {}
        self.forward: dict[Node, int] = {}
        self.backward: dict[Node, int] = {}
        for node in graph:
            self.local[node] = self._local(node)
            inside = tuple(self._of_graph(name, sub) for name, sub in named_subgraphs(node))
            reads = tuple(map(self.value, node.inputs))
            self.forward[node] = palette.color(("forward", self.local[node], reads, inside))
        places = {value: i for i, value in enumerate(graph.outputs)}
        for node in reversed(list(graph)):
            made = tuple(None if v is None else (self._readers(graph, v), places.get(v)) for v in node.outputs)
            self.backward[node] = palette.color(("backward", self.local[node], made))

    def value(self, value: Value | None) -> Hashable:
        """The color of a value: its content if it is constant, else the way it is computed."""
        if value is None:
            return None
        if value in self._known:
            return self._known[value]
        if value.const is not None:
            return "constant", self.palette.content(value.const)
        assert value.producer is not None
        return self.forward[value.producer], value.index

    def _local(self, node: Node) -> int:
        constants = tuple(
            None if v is None or v.const is None or v.is_input else self.palette.content(v.const) for v in node.inputs
        )
        attributes = tuple((name, self.palette.content(value)) for name, value in sorted(own_attributes(node).items()))
        key = (node.domain, node.op, attributes, constants, tuple(v is None for v in node.outputs))
        return self.palette.color(("local", key))

    def _of_graph(self, name: str, graph: Graph) -> int:
        """The color of a subgraph, which reads values that have colors already."""
        known = dict(self._known) | {v: ("formal", i) for i, v in enumerate(graph.inputs)}
        for value in outer_values(graph):
            if value.constant is None:
                known[value] = "outer", self.value(value)
        inner = Colors(graph, self.palette, known)
        returned = tuple(inner.value(v) for v in graph.outputs)
        return self.palette.color(("graph", name, returned, tuple(sorted(inner.forward.values()))))

    def _readers(self, graph: Graph, value: Value) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((self.backward[reader], slot) for reader, slot in readers(value, graph)))


def own_attributes(node: Node) -> dict[str, Attribute]:
    """The attributes that differ from the operator's defaults, without subgraphs."""
    if not node.attrs:
        return {}
    schema = schema_of(node)
    defaults = {} if schema is None else schema.defaults
    return {
        name: value
        for name, value in node.attrs.items()
        if not isinstance(value, (Graph, Graphs))
        and (name not in defaults or content(defaults[name]) != content(value))
    }


def outer_values(graph: Graph) -> list[Value]:
    """The outer values that a subgraph reads."""
    assert graph.owner is not None
    return [value for value in captures(graph.owner) if not graph.encloses(value.graph)]
