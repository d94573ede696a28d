"""Walks over the nodes and subgraphs of ONNX's protobuf messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ortconv.ir.names import Names
from ortconv.ir.schema import plain_domain

if TYPE_CHECKING:
    from ortconv.onnxproto import GraphProto, NodeProto

_WITH_GRAPHS = (5, 10, 0)
"""Types of the attributes that may hold graphs: GRAPH, GRAPHS, and UNDEFINED of old files."""


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs in the attributes of a node."""
    holders = [attribute for attribute in node.attribute if attribute.type in _WITH_GRAPHS]
    return [sub for a in holders for sub in (*([a.g] if a.HasField("g") else []), *a.graphs)] if holders else []


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all its subgraphs, outer graphs first."""
    yield graph
    for node in graph.node:
        for sub in subgraphs(node):
            yield from graphs(sub)


def walk(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and all nodes in their subgraphs."""
    for node in nodes:
        yield node
        for sub in subgraphs(node):
            yield from walk(sub.node)


class Contents(NamedTuple):
    """What a graph and its subgraphs consist of, found in one walk."""

    graphs: Sequence[GraphProto]
    """The graph and all its subgraphs, outer graphs first."""
    nodes: Mapping[str, Sequence[NodeProto]]
    """The nodes of each operator name, whatever their domains."""


def contents(graph: GraphProto) -> Contents:
    """The subgraphs and the nodes of a graph."""
    found, nodes = list(graphs(graph)), defaultdict(list)
    for part in found:
        for node in part.node:
            nodes[str(node.op_type)].append(node)  # bytes in a damaged message
    return Contents(found, dict(nodes))


def value_names(graph: GraphProto) -> Names:
    """Names of all values in a graph and its subgraphs."""
    names = Names()
    for part in graphs(graph):
        names.update(value.name for value in (*part.input, *part.output, *part.initializer))
        names.update(sparse.values.name for sparse in part.sparse_initializer)
        names.update(name for node in part.node for name in node.output)
    return names


NAMELESS = ("", "?", "None")
"""Names that say nothing. Exporters of Paddle and CoreML write them for all unknown dimensions."""


def input_symbols(graph: GraphProto) -> list[str]:
    """The names of the inputs' dimensions, each once."""
    dims = (d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim)
    return [name for name in dict.fromkeys(dims) if name not in NAMELESS]


def domain_of(message: NodeProto) -> str:
    return plain_domain(message.domain)


def label(node: NodeProto) -> str:
    """The node as messages call it: operator and name, or its first output if it has no name."""
    return f"{node.op_type} '{node.name or next(iter(node.output), '?')}'"
