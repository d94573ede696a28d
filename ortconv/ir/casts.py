"""Inserts Casts after a change of element types, and names the attributes that state an element type."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.types import DType, TensorType
from ortconv.ir.value import Use

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that select the type of a result."""


def add_cast(graph: Graph, value: Value, dtype: DType, before: Node | None) -> Value:
    """Insert a Cast of `value` before the node `before`, or at the end of the graph if it is None. Return its output."""
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
