"""Removes undefined results: the integer to which NaN or a float out of range is converted, the largest of numbers and NaN in a
window, and effects of the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType

STAND_IN = 3
"""The number that replaces a float without a defined integer, and NaN in a window."""

ISNAN_OPSET = 9
"""The opset that introduced IsNaN."""

FLOATS = (DType.FLOAT, DType.FLOAT16, DType.DOUBLE)

Replacement = Callable[[Graph, Node, Value], Value | None]
"""Returns the value to read instead of an input of a node; None for no change."""


def replace_undefined(graph: Graph) -> int:
    """Put STAND_IN in place of floats without a defined result. Return the number of changes."""
    return _replace(graph, {"Cast": (0, _in_range), "MaxPool": (0, _without_nan), "GlobalMaxPool": (0, _without_nan)})


def flip_zeros(graph: Graph) -> int:
    """Negate zeros in divisors, except in inputs and constants, whose zeros have a sign. Return the number of changes."""
    return _replace(graph, {"Div": (1, _negated_zeros), "Reciprocal": (0, _negated_zeros)})


def _replace(graph: Graph, rules: Mapping[str, tuple[int, Replacement]]) -> int:
    """Replace the float inputs for which there is a rule: a slot and a function by operator. Return the number of changes."""
    count = 0
    for part in graph.graphs():
        for node in [node for node in part if node.op in rules and not node.domain]:
            slot, make = rules[node.op]
            value = node.input(slot)
            other = None if value is None or value.dtype not in FLOATS else make(part, node, value)
            if other is not None:
                part.set_input(node, slot, other)
                count += 1
    return count


def _in_range(graph: Graph, cast: Node, value: Value) -> Value | None:
    """The value if its whole part is within the integer type's range, else STAND_IN. None if the Cast is to another type."""
    to = DType(cast.attr("to", 1))
    if to.numpy.kind not in "iu":
        return None
    least, bound = (-(2.0 ** (to.bits - 1)), 2.0 ** (to.bits - 1)) if to.numpy.kind == "i" else (0.0, 2.0**to.bits)
    with np.errstate(over="ignore"):
        above = _make(graph, cast, "Greater", [value, _number(graph, value, least - 1)], DType.BOOL)
        below = _make(graph, cast, "Less", [value, _number(graph, value, bound)], DType.BOOL)
    inside = _make(graph, cast, "And", [above, below], DType.BOOL)
    return _make(graph, cast, "Where", [inside, value, _number(graph, value, STAND_IN)], value.dtype)


def _without_nan(graph: Graph, node: Node, value: Value) -> Value | None:
    if graph.opset() < ISNAN_OPSET:
        return None
    nan = _make(graph, node, "IsNaN", [value], DType.BOOL)
    return _make(graph, node, "Where", [nan, _number(graph, value, STAND_IN), value], value.dtype)


def _negated_zeros(graph: Graph, node: Node, value: Value) -> Value | None:
    if value.producer is None:
        return None
    zero = _make(graph, node, "Equal", [value, _number(graph, value, 0.0)], DType.BOOL)
    return _make(graph, node, "Where", [zero, _make(graph, node, "Neg", [value], value.dtype), value], value.dtype)


def _number(graph: Graph, like: Value, number: float) -> Value:
    assert like.dtype is not None
    return graph.constant(Tensor.of(np.array(number, like.dtype.numpy)), "settled")


def _make(graph: Graph, before: Node, op: str, inputs: list[Value], dtype: DType | None) -> Value:
    assert dtype is not None
    return graph.add_node(op, inputs, types=[TensorType(dtype, None)], before=before).out
