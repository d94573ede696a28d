"""Casts that a change of element types adds, and the attributes that it changes."""

from __future__ import annotations

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.types import DType, TensorType

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that select the type of a result."""


def add_cast(graph: Graph, value: Value, dtype: DType, before: Node | None) -> Value:
    """A Cast of a value, in front of a node, or at the end of the graph for None."""
    node = graph.add_node(
        "Cast",
        [value],
        [graph.fresh(f"{value.name}_{dtype.name.lower()}")],
        {"to": int(dtype)},
        name=graph.fresh(f"{value.name}/Cast"),
        types=[TensorType(dtype, value.shape)],
        before=before,
    )
    return node.out


def return_instead(graph: Graph, value: Value, cast: Value, hint: str) -> None:
    """Let the graph return a Cast of an output under the output's name; the value gets a name like the hint."""
    name = value.name
    graph.rename(value, graph.fresh(hint))
    graph.rename(cast, name)
    graph.set_outputs([cast if v is value else v for v in graph.outputs])
