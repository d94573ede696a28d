"""Inserts nodes and constants into a graph, for rewrites that are not rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import Dim, DType, TensorType, ValueType
from ortconv.optimizer.engine import insert_node


def insert(
    op: str,
    inputs: Sequence[Value | None],
    type: ValueType | None,
    before: Node,
    attrs: Mapping[str, Attribute] | None = None,
    *,
    domain: str = "",
    name: str = "",
) -> Value:
    """The only output of a new node, which is inserted as by `insert_node`."""
    return insert_node(op, inputs, 1, [type], before, attrs, domain=domain, name=name).out


def integers(graph: Graph, numbers: Sequence[Dim], near: Value, role: str = "const") -> Value:
    """A constant vector with a name derived from a value and its role."""
    return graph.constant(Tensor.of(np.array(numbers, np.int64)), f"{near.name}_{role}")


LISTS_BY_INPUT = {"ReduceMax": 18, "ReduceMean": 18, "ReduceSum": 13, "Split": 13, "Squeeze": 13, "Unsqueeze": 13}
"""The opset from which on an operator has its list of axes, or of sizes, as input 1."""


def with_list(
    graph: Graph, op: str, x: Value, numbers: Sequence[int], role: str = "const", **attrs: Attribute
) -> tuple[list[Value], dict[str, Attribute]]:
    """The inputs and attributes of an operator of LISTS_BY_INPUT with this list and these further attributes."""
    if graph.opset() < LISTS_BY_INPUT[op]:
        return [x], {**attrs, "split" if op == "Split" else "axes": Ints(numbers)}
    return [x, integers(graph, numbers, x, role)], attrs


def reshaped(x: Value, spec: Sequence[Dim], before: Node, type: ValueType | None = None) -> Value:
    """A Reshape of x before a node. Without a type, the shape may have neither a 0 nor a -1, and the type is float32."""
    type = type or TensorType(DType.FLOAT, tuple(spec))
    return insert("Reshape", [x, integers(before.parent, spec, x, "shape")], type, before)
