"""Verifies the contract of the graph, node by node."""

from __future__ import annotations

from ortconv.errors import GraphError
from ortconv.ir.graph import Graph, Node, Value, finds_values_by_name


def verify(graph: Graph) -> None:
    """Raise GraphError, with the node at fault, unless the graph and its subgraphs keep the contract of `ir.graph`."""
    _verify_scope(graph, {}, set())


def _verify_scope(graph: Graph, outer: dict[str, Value], outer_values: set[Value]) -> None:
    names = dict(outer)
    visible = set(outer_values)
    named = graph.owner is not None and finds_values_by_name(graph.owner)

    def define(value: Value, where: str) -> None:
        if value.graph is not graph:
            raise GraphError(f"value '{value.name}' belongs to another graph", node=where)
        if not value.name:
            raise GraphError("a value has no name", node=where)
        known = names.get(value.name, value)
        if known is not value:
            if not (named and known in outer_values and (value.is_input or value.is_output)):
                raise GraphError(f"name '{value.name}' is given twice", node=where)
            visible.discard(known)
        names[value.name] = value
        visible.add(value)

    _verify_interface(graph)
    for value in graph.inputs:
        define(value, "graph input")
    for value in graph.initializers.values():
        define(value, "initializer")
    count = 0
    for node in graph:
        count += 1
        _verify_node(node, graph, visible)
        for output in node.outputs:
            if output is not None:
                define(output, node.label)
        for sub in node.subgraphs:
            if sub.owner is not node or sub.opsets is not graph.opsets:
                raise GraphError("a subgraph does not point back to its node", node=node.label)
            _verify_scope(sub, names, visible)
    if count != len(graph):
        raise GraphError(f"the graph counts {len(graph)} nodes but links {count}")
    for value in graph.outputs:
        if not value.is_output or value not in visible or value.graph is not graph:
            raise GraphError(f"graph output '{value.name}' is not a value of this graph")
    _verify_uses(graph, visible - outer_values)


def _verify_interface(graph: Graph) -> None:
    """Check that inputs and initializers are marked as such, and that no input or output is listed twice."""
    for value in graph.inputs:
        if not value.is_input or value.producer is not None:
            raise GraphError(f"graph input '{value.name}' is not marked as one, or has a producer")
    if len(set(graph.inputs)) != len(graph.inputs) or len(set(graph.outputs)) != len(graph.outputs):
        raise GraphError("a graph input or output is listed twice")
    for name, value in graph.initializers.items():
        if value.const is None or value.producer is not None or value.name != name:
            raise GraphError(f"initializer '{name}' has no constant, a producer, or another name")


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
        if value is not None and not _is_made_by(value, node, slot):
            raise GraphError(f"output '{value.name}' does not point back to its node", node=node.label)


def _is_made_by(value: Value, node: Node, slot: int) -> bool:
    if value.is_input or value.const is not None:
        return False
    return value.producer is node and value.index == slot


def _verify_uses(graph: Graph, values: set[Value]) -> None:
    for value in values:
        for user, slot in value.uses:
            if user.graph is None or not graph.encloses(user.graph) or user.input(slot) is not value:
                raise GraphError(
                    f"value '{value.name}' claims a use in slot {slot} that does not exist", node=user.label
                )
        if value.is_output and value not in graph.outputs:
            raise GraphError(f"value '{value.name}' is marked as output but not returned")
