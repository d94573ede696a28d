"""Models that state the types of all their values, such as those exported from .ort files.

Inference may find more about a shape than the file states. Dimensions that such a model leaves unknown stay unknown, so that it
converts to the same file again. An entry in the graph's metadata marks these models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ortconv.ir.graph import Graph
from ortconv.ir.symbols import is_stated
from ortconv.ir.types import Dim, TensorType, ValueType
from ortconv.onnxio.build import TypeReader
from ortconv.onnxio.messages import graphs
from ortconv.onnxproto import ModelProto

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
    for graph in graphs(proto.graph):
        for value in (*graph.value_info, *graph.output):
            found.setdefault(value.name, set()).add(read(value.type))
    return {name: type for name, types in found.items() if len(types) == 1 for type in types if type is not None}


def keep_unknown(graph: Graph, stated: Mapping[str, ValueType]) -> None:
    """Reset inferred dimensions to unknown if the stated types leave them unknown.

    A symbol that occurs only once counts as unknown and stays. Other symbols mean that dimensions are equal; for these, the result
    of inference is used. An unknown dimension may get an invented symbol, which is not written.
    """
    if not stated:
        return
    alone = _single_symbols([*stated.values(), *(value.type for value in graph.inputs)])
    for value in (v for node in graph.walk() for v in node.present_outputs):
        type = stated.get(value.name)
        if isinstance(type, TensorType) and isinstance(value.type, TensorType):
            value.type = _weaker(value.type, type, alone)


def _single_symbols(types: Iterable[ValueType | None]) -> set[str]:
    """The symbols that occur only once in these types."""
    shapes = (t.shape or () for t in types if isinstance(t, TensorType))
    count = Counter(dim for shape in shapes for dim in shape if isinstance(dim, str))
    return {symbol for symbol, number in count.items() if number == 1}


def _weaker(type: TensorType, stated: TensorType, alone: Collection[str]) -> TensorType:
    if type.shape is None or stated.shape is None:
        return TensorType(type.dtype)
    if len(type.shape) != len(stated.shape):
        return type
    return TensorType(
        type.dtype, tuple(_weaker_dim(*dims, alone) for dims in zip(type.shape, stated.shape, strict=True))
    )


def _weaker_dim(dim: Dim, stated: Dim, alone: Collection[str]) -> Dim:
    if stated is None:
        return None if is_stated(dim) else dim
    return stated if stated in alone else dim
