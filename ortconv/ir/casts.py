"""Which Casts are exact, Casts after a change of element types, and the attributes that state an element type."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.types import DType, TensorType
from ortconv.ir.value import Use

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that select the type of a result."""

HOLDERS: dict[DType, tuple[DType, ...]] = {
    getattr(DType, source): tuple(getattr(DType, name) for name in holders.split())
    for source, holders in {
        "BOOL": "UINT8 INT8 INT16 INT32 INT64 FLOAT16 FLOAT DOUBLE",
        "UINT8": "INT16 UINT16 INT32 UINT32 INT64 UINT64 FLOAT16 FLOAT DOUBLE",
        "INT8": "INT16 INT32 INT64 FLOAT16 FLOAT DOUBLE",
        "UINT16": "INT32 UINT32 INT64 UINT64 FLOAT DOUBLE",
        "INT16": "INT32 INT64 FLOAT DOUBLE",
        "INT32": "INT64 DOUBLE",
        "UINT32": "INT64 UINT64 DOUBLE",
        "FLOAT16": "FLOAT DOUBLE",
        "BFLOAT16": "FLOAT DOUBLE",
        "FLOAT": "DOUBLE",
    }.items()
}
"""The types that represent every value of a type exactly."""


def exact_source(value: Value) -> Value | None:
    """The value that a Cast turns into this one, if no element can change in that; else None."""
    cast = value.producer
    source = cast.inputs[0] if cast is not None and cast.is_op("Cast") else None
    return source if source is not None and value.dtype in HOLDERS.get(source.dtype or DType.UNDEFINED, ()) else None


def add_cast(graph: Graph, value: Value, dtype: DType, before: Node | None) -> Value:
    """Insert a Cast of `value` before the node `before`, or at the end of the graph if it is None. Return its output."""
    names, types = [graph.fresh(f"{value.name}_{dtype.name.lower()}")], [TensorType(dtype, value.shape)]
    name, attrs = graph.fresh(f"{value.name}/Cast"), {"to": int(dtype)}
    return graph.add_node("Cast", [value], names, attrs, name=name, types=types, before=before).out


def read_instead(uses: Iterable[Use], cast: Value) -> None:
    """Make these nodes read `cast` in these slots."""
    for user, slot in uses:
        user.parent.set_input(user, slot, cast)


def return_instead(graph: Graph, value: Value, cast: Value, hint: str) -> None:
    """Make the graph return `cast`, under the output's name, instead of `value`, which gets a fresh name from `hint`."""
    name = value.name
    graph.rename(value, graph.fresh(hint))
    graph.rename(cast, name)
    graph.set_outputs([cast if v is value else v for v in graph.outputs])
