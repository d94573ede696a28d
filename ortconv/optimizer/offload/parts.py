"""Nodes for the results of rewrites, in the form that the graph's operator set needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ortconv.ir.graph import Attribute, Ints, Node, Value
from ortconv.ir.operands import producer_of
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import FLOATS
from ortconv.optimizer.engine import New, NewInput
from ortconv.optimizer.pattern import P


def is_float(*values: Value | None) -> bool:
    """True if the values that are present are float32, the only float type in which NNAPI computes."""
    return all(v is None or v.dtype is DType.FLOAT for v in values)


def shape_of(value: Value | None) -> tuple[int, ...] | None:
    """The shape of a float32 value with elements; None for other values, or if a dimension is unknown."""
    shape = None if value is None or not is_float(value) else value.static_shape
    return None if shape is None or 0 in shape else shape


def only_first(node: Node) -> bool:
    """True if at most the first of a node's outputs is used."""
    return not any(v.is_used for v in node.present_outputs[1:])


LARGEST_CONSTANT = 1 << 20
"""Maximum number of elements of a constant that a rewrite adds."""

MOST_SEARCHED = 100
"""Sources of infinity are sought among this number of values."""

_REACH_ZERO = ("Sigmoid", "HardSigmoid", "Softmax", "Exp", "Relu", "Abs")


def may_be_infinite(x: Value) -> bool:
    """True if one of the nearest values from which x is computed is a constant with an infinite element, or the logarithm of a
    result that reaches 0 without overflow elsewhere, such as a sigmoid.
    """
    found = [x]
    for value in found:
        if _brings_infinity(value):
            return True
        if value.producer is not None and len(found) < MOST_SEARCHED:
            found += [v for v in value.producer.present_inputs if v not in found]
    return False


def _brings_infinity(value: Value) -> bool:
    if value.constant is not None and value.dtype in FLOATS and np.isinf(value.constant.numpy()).any():
        return True
    log = producer_of(value, "Log")
    return log is not None and producer_of(log.inputs[0], *_REACH_ZERO) is not None


def integers(values: Iterable[int]) -> Array:
    return np.array(tuple(values), np.int64)


def op(name: str, *inputs: NewInput | float, **attrs: Attribute) -> New:
    """A new node. A number as input is a float32 constant."""
    return New(name, [np.array(x, np.float32) if isinstance(x, (int, float)) else x for x in inputs], attrs)


add, sub, mul, div = (partial(op, name) for name in ("Add", "Sub", "Mul", "Div"))


def unary(name: str) -> P:
    """Pattern of an operator of one operand x, which is float32."""
    return P(name, "x", where=lambda node: is_float(node.inputs[0]))


def reshape(x: NewInput, shape: Iterable[int]) -> New:
    return op("Reshape", x, integers(shape))


def reshaped(value: Value, shape: tuple[int, ...]) -> NewInput:
    """A value in another shape; if it is constant, so is the result."""
    return reshape(value, shape) if value.constant is None else value.constant.numpy().reshape(shape)


def transpose(x: NewInput, perm: Sequence[int]) -> New:
    return op("Transpose", x, perm=Ints(perm))


def sliced(
    x: NewInput, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()
) -> New:
    """Slice, as from opset 10."""
    more = [integers(steps)] if steps else []
    return op("Slice", x, integers(starts), integers(ends), integers(axes), *more)


def trailing(value: Value | None, rank: int) -> NewInput:
    """A vector of channels as [C, 1, ...], which broadcasts along axis 1 of a tensor of this rank; None if it is no vector."""
    if value is None or value.rank != 1:
        return None
    ones = (1,) * (rank - 2)
    if value.constant is not None:
        return value.constant.numpy().reshape(-1, *ones)
    size = value.dim(0)
    return reshape(value, (size if isinstance(size, int) else -1, *ones))
