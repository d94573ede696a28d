"""Makes value names unique across subgraphs while onnx infers types.

onnx stores the elements of computed shapes by name, in one table for all graphs of a model. If both branches of an If have values
of the same name, as in merged decoders, the second branch would get the elements of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ortconv.onnxio.messages import subgraphs
from ortconv.onnxproto import GraphProto

INFERRED_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators for whose subgraphs onnx infers types."""


def rename_clashes(graph: GraphProto) -> dict[str, str]:
    """Rename values of subgraphs whose names also occur in another graph. Return a dict from new names to former ones."""
    former: dict[str, str] = {}
    _rename_below(graph, set(_defined(graph)), former)
    return former


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values in a graph and all its subgraphs."""
    for stated in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        if stated.name in names:
            stated.name = names[stated.name]
    for node in graph.node:
        for values in (node.input, node.output):
            for i, name in enumerate(values):
                if name in names:
                    values[i] = names[name]
        for sub in subgraphs(node):
            rename(sub, names)


def _rename_below(graph: GraphProto, used: set[str], former: dict[str, str]) -> None:
    """Rename, in the subgraphs of a graph, the values whose names are in `used`, and add all names of the subgraphs to `used`."""
    for node in graph.node:
        for sub in subgraphs(node):
            own = set(_defined(sub))
            names = {name: f"{name}\1{len(former) + i}" for i, name in enumerate(sorted(own & used))}
            if names:
                rename(sub, names)
                former.update({new: name for name, new in names.items()})
            used |= own
            _rename_below(sub, used, former)


def _defined(graph: GraphProto) -> Iterator[str]:
    """Names of values that a graph defines itself. Absent outputs are skipped."""
    for stated in (*graph.input, *graph.initializer):
        yield stated.name
    for node in graph.node:
        yield from filter(None, node.output)
