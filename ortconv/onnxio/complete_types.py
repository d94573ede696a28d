"""Models that state the types of all their values, as those exported from .ort files do.

Inference may know more of a shape than the file stated. Such a model keeps unknown what it leaves unknown, so that it converts to
the same file again. A mark among the graph's metadata says so.
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
    """State that the message has the types of all values."""
    proto.graph.metadata_props.add(key=MARK, value="complete")


def stated_types(proto: ModelProto) -> dict[str, ValueType]:
    """The types by name that a marked message states; none of another message. Names with two types are left out."""
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
    """Make unknown again what the stated types leave unknown.

    A symbol that only one dimension has is unknown, too, under a name of its own. Other symbols say that dimensions are equal, and
    inference decides on these.
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
