"""Models that state the types of all their values, such as those exported from .ort files.

Inference may find more about a shape than the file states. Dimensions that such a model leaves unknown stay unknown, so that it
converts to the same file again. An entry in the graph's metadata marks these models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ortconv.ir.graph import Graph
from ortconv.ir.types import Dim, TensorType, ValueType
from ortconv.onnxio.build import TypeReader
from ortconv.onnxlib import GraphProto, ModelProto

MARK = "ortconv.types"


def mark(proto: ModelProto) -> None:
    """Mark the message as one that states the types of all values."""
    proto.graph.metadata_props.add(key=MARK, value="complete")


def stated_types(proto: ModelProto) -> dict[str, ValueType]:
    """The types that a marked message states, by name; empty for other messages. Names with two types are omitted."""
    if not any(entry.key == MARK for entry in proto.graph.metadata_props):
        return {}
    found: dict[str, set[ValueType | None]] = {}
    read = TypeReader()
    for graph in _graphs(proto.graph):
        for value in (*graph.value_info, *graph.output):
            found.setdefault(value.name, set()).add(read(value.type))
    return {name: type for name, types in found.items() if len(types) == 1 for type in types if type is not None}


def _graphs(proto: GraphProto) -> list[GraphProto]:
    below = (a.g for node in proto.node for a in node.attribute if a.HasField("g"))
    return [proto, *(inner for sub in below for inner in _graphs(sub))]


def forget(graph: Graph, stated: Mapping[str, ValueType]) -> None:
    """Reset inferred dimensions to unknown if the stated types leave them unknown.

    A symbol that occurs only once counts as unknown and stays. Other symbols mean that dimensions are equal; for these, the result
    of inference is used.
    """
    types = [*stated.values(), *(value.type for value in graph.inputs)]
    count = Counter(dim for t in types if isinstance(t, TensorType) for dim in t.shape or () if isinstance(dim, str))
    alone = {symbol for symbol, number in count.items() if number == 1}
    for node in graph.walk() if stated else ():
        for value in node.outputs:
            type = None if value is None else stated.get(value.name)
            if value is not None and isinstance(type, TensorType) and isinstance(value.type, TensorType):
                value.type = _weaker(value.type, type, alone)


def _weaker(type: TensorType, stated: TensorType, alone: Collection[Dim]) -> TensorType:
    if type.shape is None or stated.shape is None:
        return TensorType(type.dtype)
    if len(type.shape) != len(stated.shape):
        return type
    dims = (
        known if known is None or known in alone else dim for dim, known in zip(type.shape, stated.shape, strict=True)
    )
    return TensorType(type.dtype, tuple(dims))
