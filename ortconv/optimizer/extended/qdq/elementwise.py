"""Fuses activations, pools, sums, products, Concat and Where into com.microsoft:QLinear* operators on 8-bit integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import attribute, since_version
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import scalar
from ortconv.optimizer.engine import NewInput, Replacement, constant, rule
from ortconv.optimizer.extended.qdq.tensors import (
    BYTES,
    LIMITS,
    SMALLEST_SCALE,
    Quantized,
    as_unsigned,
    dequantized,
    elements,
    is_signed_constant,
    microsoft,
    quantize_patterns,
    quantizer,
    zero_points,
)
from ortconv.optimizer.pattern import Match, P


def _operands(m: Match, slots: range, *, retype: bool = False) -> tuple[list[Quantized], Quantized] | None:
    """The quantized inputs at these slots, and the quantized result: per tensor, all of one 8-bit type; else None.

    With `retype`, int8 constants next to uint8 become uint8: for operators whose integer kernel is exact.
    """
    y = quantizer(m.root)
    found = [dequantized(m.target.input(slot), m.root) for slot in slots]
    inputs = [x for x in found if x is not None]
    if y is None or y.dtype not in BYTES or len(inputs) != len(found):
        return None
    if not all(q.is_per_tensor for q in (*inputs, y)):
        return None
    if all(x.dtype is y.dtype for x in inputs):
        return inputs, y
    if retype and y.dtype is DType.UINT8 and all(x.dtype is DType.UINT8 or is_signed_constant(x) for x in inputs):
        return [x if x.dtype is DType.UINT8 else as_unsigned(x, m.root) for x in inputs], y
    return None


HEADROOM = 128
"""Number of largest exponentials that the kernel of QLinearSoftmax can add in float32 without overflow, per summed element."""


WHOLE = 1e-3
"""Maximum difference of 1 / scale from a whole number: scales are rounded to float32."""


def _pool_fits(node: Node, y: Quantized) -> bool:
    """True without dilations, and without windows beyond the padding if padding counts: the kernel divides by another
    number there.
    """
    rank = node.inputs[0].rank if node.inputs[0] is not None else None
    dilations: tuple[int, ...] = node.attr("dilations", ())
    if rank not in (3, 4, 5) or any(d != 1 for d in dilations):
        return False
    return not (node.attr("ceil_mode", 0) and node.attr("count_include_pad", 0))


def _softmax_fits(node: Node, y: Quantized) -> bool:
    """True if the sums are long enough for the scale of the result: the kernel overflows if a sum is short and the
    scale small.

    1 / scale must be a whole number, because the kernel truncates it. The kernel also returns nothing if there are no
    elements; and before ONNX Runtime 1.32, int8 results above 127 wrap around.
    """
    shape, step, zero = node.out.shape, elements(y.scale), zero_points(y)
    axis = attribute(node, "axis")
    if shape is None or 0 in shape or step is None or zero is None or not -len(shape) <= axis < len(shape):
        return False
    if y.dtype is DType.INT8 and not 1 / step[0] + zero[0] <= LIMITS[DType.INT8][1] + 1:
        return False
    if abs(1 / step[0] - round(1 / step[0])) > WHOLE:
        return False
    axis %= len(shape)
    summed = shape[axis:] if since_version(node) < 13 else shape[axis : axis + 1]
    lengths = [d for d in summed if isinstance(d, int)]
    return len(lengths) == len(summed) and step[0] > 0 and 1 / step[0] <= HEADROOM * prod(lengths)


def _any(node: Node, y: Quantized) -> bool:
    return True


def _softmax(node: Node) -> dict[str, object]:
    return {"axis": attribute(node, "axis"), "opset": since_version(node)}


class Unary(NamedTuple):
    """An operator with one input: the attributes of its counterpart, and the condition under which both have the same result."""

    attrs: Callable[[Node], dict[str, object]]
    fits: Callable[[Node, Quantized], bool] = _any


UNARY = {
    "AveragePool": Unary(lambda node: {k: v for k, v in node.attrs.items() if k != "dilations"}, _pool_fits),
    "GlobalAveragePool": Unary(lambda node: {"channels_last": 0}, _pool_fits),
    "LeakyRelu": Unary(lambda node: {"alpha": attribute(node, "alpha")}),
    "Sigmoid": Unary(lambda node: {}),
    "Softmax": Unary(_softmax, _softmax_fits),
}


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(tuple(UNARY), "x", name="target")))
def fuse_unary(m: Match) -> Replacement:
    "Q(op(DQ(x)))  ->  QLinear<op>(x)"
    found, unary = _operands(m, range(1)), UNARY[m.target.op]
    if found is None or not unary.fits(m.target, found[1]):
        return None
    (x,), y = found
    return microsoft(f"QLinear{m.target.op}", [*x.operand, *y.parameters], m.target, unary.attrs(m.target))


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(("Add", "Mul"), "a", "b", name="target")))
def fuse_binary(m: Match) -> Replacement:
    "Q(op(DQ(a), DQ(b)))  ->  QLinear<op>(a, b)"
    found = _operands(m, range(2)) if m.graph.opset() >= 7 else None
    if found is None:
        return None
    (a, b), y = found
    return microsoft(f"QLinear{m.target.op}", [*a.operand, *b.operand, *y.parameters], m.target)


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Concat", ..., name="target")))
def fuse_concat(m: Match) -> Replacement:
    "Q(Concat(DQ(a), ...))  ->  QLinearConcat(a, ...)"
    found = _operands(m, range(len(m.target.inputs)), retype=True)
    if found is None:
        return None
    inputs, y = found
    parts: list[NewInput] = [part for x in inputs for part in x.operand]
    return microsoft("QLinearConcat", [*y.parameters, *parts], m.target, {"axis": attribute(m.target, "axis")})


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Where", "condition", "a", "b", name="target")))
def fuse_where(m: Match) -> Replacement:
    """Q(Where(c, DQ(a), DQ(b)))  ->  QLinearWhere(c, a, b)

    Its kernel requires constant scales and zero points when it is created, and ends the process otherwise.
    """
    found = _operands(m, range(1, 3), retype=True)
    if found is None:
        return None
    (a, b), y = found
    if not (a.is_constant and b.is_constant and y.is_constant):
        return None
    return microsoft("QLinearWhere", [m.condition, *a.operand, *b.operand, *y.parameters], m.target)


@rule("WhereDummyDq", *quantize_patterns(P("Where", "condition", "a", "b", name="target")))
def fuse_where_number(m: Match) -> Replacement:
    """Q(Where(c, DQ(a), number))  ->  QLinearWhere(c, a, number as an integer that represents it exactly)

    Counterpart: WhereDummyDq
    Differs: directly to QLinearWhere, and the integer represents the number exactly.
    """
    y = quantizer(m.root)
    if y is None or y.dtype not in BYTES or not (y.is_per_tensor and y.is_constant):
        return None
    branches = [dequantized(v, m.root) or _exactly(v, y, m.root) for v in (m.a, m.b)]
    if any(x is None or x.dtype is not y.dtype or not (x.is_per_tensor and x.is_constant) for x in branches):
        return None
    if all(v.constant is not None for v in (m.a, m.b)):
        return None
    operands: list[NewInput] = [part for x in branches if x is not None for part in x.operand]
    return microsoft("QLinearWhere", [m.condition, *operands, *y.parameters], m.target)


def _exactly(value: Value, like: Quantized, near: Node) -> Quantized | None:
    """A constant with a single value as an 8-bit integer, without rounding. None if the values differ or are not finite."""
    number, const = scalar(value), value.constant
    if number is None or const is None or const.dtype is not DType.FLOAT or like.dtype is None:
        return None
    low, high = LIMITS[like.dtype]
    code, zero = (high, low + 127) if number > 0 else (low, low + 128)
    scale = abs(number) / 128 or 1.0
    if not SMALLEST_SCALE < scale < math.inf:
        return None
    kind = like.dtype.numpy
    codes = constant(near, np.full(const.shape, code if number else zero, kind))
    return Quantized(codes, constant(near, np.array(scale, np.float32)), constant(near, np.array(zero, kind)), 1)


RULES = fuse_unary + fuse_binary + fuse_concat + fuse_where
NUMBER_RULES = fuse_where_number
