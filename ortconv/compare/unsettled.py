"""Removes undefined results: the integer to which NaN or a float out of range is converted, the largest of numbers and NaN in a
window, and effects of the sign of a zero.
"""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType

OTHER = 3
"""The number that replaces a float without a defined integer, and NaN in a window."""

LARGEST_OF_WINDOWS = ("MaxPool", "GlobalMaxPool")
KNOWS_NAN = 9
"""The opset that introduced IsNaN."""


def settle(graph: Graph) -> int:
    """Put OTHER in place of floats without a defined result, and negate zeros in divisors. Return the number of changes."""
    count = 0
    for part in graph.graphs():
        for node in list(part):
            value, divisor = node.input(0), node.input(1)
            if node.is_op("Cast") and value is not None and _is_float(value) and _is_integer(node):
                part.set_input(node, 0, _in_range(part, node, value, DType(node.attr("to", 1))))
            elif node.is_op("Div") and divisor is not None and _is_float(divisor):
                part.set_input(node, 1, _other_zeros(part, node, divisor))
            elif node.is_op("Reciprocal") and value is not None and _is_float(value):
                part.set_input(node, 0, _other_zeros(part, node, value))
            elif _finds_largest(node) and value is not None and _is_float(value) and part.opset() >= KNOWS_NAN:
                part.set_input(node, 0, _without_nan(part, node, value))
            else:
                continue
            count += 1
    return count


def _finds_largest(node: Node) -> bool:
    return node.op in LARGEST_OF_WINDOWS and not node.domain


def _is_float(value: Value) -> bool:
    return value.dtype in (DType.FLOAT, DType.FLOAT16, DType.DOUBLE)


def _is_integer(cast: Node) -> bool:
    return DType(cast.attr("to", 1)).numpy.kind in "iu"


def _in_range(graph: Graph, node: Node, value: Value, to: DType) -> Value:
    """The value if its whole part is within the integer type's range, else OTHER."""
    signed = to.numpy.kind == "i"
    least, bound = (-(2.0 ** (to.bits - 1)), 2.0 ** (to.bits - 1)) if signed else (0.0, 2.0**to.bits)
    with np.errstate(over="ignore"):
        above = _make(graph, node, "Greater", [value, _number(graph, value, least - 1)], DType.BOOL)
        below = _make(graph, node, "Less", [value, _number(graph, value, bound)], DType.BOOL)
    inside = _make(graph, node, "And", [above, below], DType.BOOL)
    return _make(graph, node, "Where", [inside, value, _number(graph, value, OTHER)], value.dtype)


def _without_nan(graph: Graph, node: Node, value: Value) -> Value:
    nan = _make(graph, node, "IsNaN", [value], DType.BOOL)
    return _make(graph, node, "Where", [nan, _number(graph, value, OTHER), value], value.dtype)


def _other_zeros(graph: Graph, node: Node, value: Value) -> Value:
    zero = _make(graph, node, "Equal", [value, _number(graph, value, 0.0)], DType.BOOL)
    return _make(graph, node, "Where", [zero, _make(graph, node, "Neg", [value], value.dtype), value], value.dtype)


def _number(graph: Graph, like: Value, number: float) -> Value:
    assert like.dtype is not None
    return graph.constant(Tensor.of(np.array(number, like.dtype.numpy)), "settled")


def _make(graph: Graph, before: Node, op: str, inputs: list[Value], dtype: DType | None) -> Value:
    assert dtype is not None
    return graph.add_node(op, inputs, types=[TensorType(dtype, None)], before=before).out
