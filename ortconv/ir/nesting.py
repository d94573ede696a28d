"""Nodes, their subgraphs, and the nodes whose subgraphs contain them."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.ir.graph import Graph, Graphs, Node, Value


def with_owners(node: Node) -> Iterator[Node]:
    """A node, and the nodes whose subgraphs contain it, from the inside out."""
    found: Node | None = node
    while found is not None:
        yield found
        found = None if found.graph is None else found.graph.owner


def enclosing(node: Node, graph: Graph) -> Node | None:
    """The node of `graph` that is `node` or that contains it in a subgraph; None if there is none."""
    return next((one for one in with_owners(node) if one.graph is graph), None)


def named_subgraphs(node: Node) -> list[tuple[str, Graph]]:
    """The subgraphs of a node with their attribute names; those of a list are numbered."""
    found: list[tuple[str, Graph]] = []
    for name, value in node.attrs.items():
        if isinstance(value, Graph):
            found.append((name, value))
        elif isinstance(value, Graphs):
            found += [(f"{name}[{i}]", graph) for i, graph in enumerate(value)]
    return found


def readers(value: Value, graph: Graph) -> list[tuple[Node, int]]:
    """The nodes of `graph` that read a value, each with the slot; -1 for a node whose subgraphs read it."""
    found: dict[tuple[Node, int], None] = {}
    for node, slot in value.uses:
        if node.graph is graph:
            found[node, slot] = None
        elif (outer := enclosing(node, graph)) is not None:
            found[outer, -1] = None
    return list(found)
