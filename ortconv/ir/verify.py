"""Verifies the contract of the graph, node by node."""

from __future__ import annotations

from ortconv.errors import GraphError
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import finds_values_by_name


def verify(graph: Graph) -> None:
    """Raise GraphError, with the node at fault, unless the graph and its subgraphs keep the contract of `ir.graph`."""
    _verify_scope(_Scope(graph))


class _Scope:
    """The names and values that nodes of a graph can read. Outer values come from the enclosing scope."""

    def __init__(self, graph: Graph, outer: _Scope | None = None) -> None:
        self.graph = graph
        self.names: dict[str, Value] = {} if outer is None else dict(outer.names)
        self.outer: frozenset[Value] = frozenset() if outer is None else frozenset(outer.visible)
        self.visible: set[Value] = set(self.outer)
        self._is_named = graph.owner is not None and finds_values_by_name(graph.owner)

    def define(self, value: Value, where: str) -> None:
        """Make a value visible. Raises GraphError if it may not be defined here."""
        if value.graph is not self.graph:
            raise GraphError(f"value '{value.name}' belongs to another graph", node=where)
        if not value.name:
            raise GraphError("a value has no name", node=where)
        if any(isinstance(d, int) and d < 0 for d in value.shape or ()):
            raise GraphError(f"value '{value.name}' has a negative dimension: {value.type}", node=where)
        known = self.names.get(value.name, value)
        if known is not value:
            may_hide = self._is_named and known in self.outer and (value.is_input or value.is_output)
            if not may_hide:
                raise GraphError(f"name '{value.name}' is given twice", node=where)
            self.visible.discard(known)
        self.names[value.name] = value
        self.visible.add(value)


def _verify_scope(scope: _Scope) -> None:
    graph = scope.graph
    _verify_interface(graph)
    for value in graph.inputs:
        scope.define(value, "graph input")
    for value in graph.initializers.values():
        scope.define(value, "initializer")
    for node in graph:
        _verify_node(node, graph, scope.visible)
        for output in node.outputs:
            if output is not None:
                scope.define(output, node.label)
        for sub in node.subgraphs:
            if sub.owner is not node or sub.opsets is not graph.opsets:
                raise GraphError("a subgraph does not point back to its node", node=node.label)
            _verify_scope(_Scope(sub, scope))
    _verify_outputs(graph, scope.visible)
    _verify_uses(graph, scope.visible - scope.outer)


def _verify_interface(graph: Graph) -> None:
    """Check that inputs and initializers are marked as such, that no input or output is listed twice, and the number of nodes."""
    for value in graph.inputs:
        if not value.is_input or value.producer is not None:
            raise GraphError(f"graph input '{value.name}' is not marked as one, or has a producer")
    if any(len(set(values)) != len(values) for values in (graph.inputs, graph.outputs)):
        raise GraphError("a graph input or output is listed twice")
    linked = sum(1 for _ in graph)
    if linked != len(graph):
        raise GraphError(f"the graph counts {len(graph)} nodes but links {linked}")
    _verify_constants(graph)


def _verify_constants(graph: Graph) -> None:
    for name, value in graph.initializers.items():
        if value.const is None or value.producer is not None or value.name != name:
            raise GraphError(f"initializer '{name}' has no constant, a producer, or another name")


def _verify_outputs(graph: Graph, visible: set[Value]) -> None:
    for value in graph.outputs:
        if not value.is_output or value not in visible or value.graph is not graph:
            raise GraphError(f"graph output '{value.name}' is not a value of this graph")


def _verify_node(node: Node, graph: Graph, visible: set[Value]) -> None:
    if node.graph is not graph:
        raise GraphError("node is linked into a graph that it does not belong to", node=node.label)
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        if value not in visible:
            raise GraphError(f"input '{value.name}' is not defined before the node", node=node.label)
        if (node, slot) not in value.uses:
            raise GraphError(f"input '{value.name}' does not know this use", node=node.label)
    for slot, value in enumerate(node.outputs):
        made = value is None or (value.producer, value.index, value.is_input, value.const) == (node, slot, False, None)
        if value is not None and not made:
            raise GraphError(f"output '{value.name}' does not point back to its node", node=node.label)


def _verify_uses(graph: Graph, values: set[Value]) -> None:
    for value in values:
        for user, slot in value.uses:
            if user.graph is None or not graph.encloses(user.graph) or user.input(slot) is not value:
                fault = f"value '{value.name}' claims a use in slot {slot} that does not exist"
                raise GraphError(fault, node=user.label)
        if value.is_output and value not in graph.outputs:
            raise GraphError(f"value '{value.name}' is marked as output but not returned")
