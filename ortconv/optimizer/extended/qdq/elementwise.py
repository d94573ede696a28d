"""Fuses activations, pools, sums, products, Concat and Where into com.microsoft:QLinear* operators on 8-bit integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import scalar
from ortconv.ir.schema import attribute, since_version
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import numbers
from ortconv.optimizer.engine import NewInput, Replacement, constant, rule
from ortconv.optimizer.extended.qdq import drop, product
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import (
    BYTES,
    LIMITS,
    SMALLEST_SCALE,
    Quantized,
    as_unsigned,
    dequantized,
    elements,
    microsoft,
    quantize_patterns,
    quantizer,
    zero_points,
)


def _operands(m: Match, slots: range, *, retype: bool = False) -> tuple[list[Quantized], Quantized] | None:
    """The quantized inputs at these slots, and the quantized result: per tensor, all of one 8-bit type; else None.

    With `retype`, int8 constants next to uint8 become uint8: for operators whose integer kernel is exact.
    """
    y = _byte_result(m.root)
    inputs = [x for slot in slots if (x := dequantized(m.node("target").input(slot), m.root)) is not None]
    if y is None or len(inputs) != len(slots) or not all(_has_type(x, y, retype) for x in inputs):
        return None
    return [x if x.dtype is y.dtype else as_unsigned(x, m.root) for x in inputs], y


def _byte_result(root: Node) -> Quantized | None:
    """The result that a QuantizeLinear returns, if it has 8 bits and is quantized per tensor; else None."""
    y = quantizer(root)
    return y if y is not None and y.dtype in BYTES and y.is_per_tensor else None


def _has_type(x: Quantized, y: Quantized, retype: bool) -> bool:
    """True for an input per tensor with the type of the result, or with `retype` one that can be given this type: a constant."""
    if x.dtype is y.dtype or not x.is_per_tensor:
        return x.is_per_tensor
    return retype and (x.dtype, y.dtype) == (DType.INT8, DType.UINT8) and x.is_constant and x.value.constant is not None


HEADROOM = 128
"""Number of largest exponentials that the kernel of QLinearSoftmax can add in float32 without overflow, per summed element."""


WHOLE = 1e-3
"""Maximum difference of 1 / scale from a whole number: scales are rounded to float32."""


def _pool_fits(node: Node, y: Quantized) -> bool:
    """True without dilations and windows beyond counted padding, for which the kernel divides by another number."""
    rank = node.inputs[0].rank if node.inputs[0] is not None else None
    dilations: tuple[int, ...] = node.attr("dilations", ())
    if rank not in (3, 4, 5) or any(d != 1 for d in dilations):
        return False
    return not (node.attr("ceil_mode", 0) and node.attr("count_include_pad", 0))


LARGEST_RATIO = 256
"""At this ratio of the scales of x and result, QLinearGlobalAveragePool fails; for large tensors also at its inverse."""


def _mean_fits(node: Node, y: Quantized) -> bool:
    """True if the kernel can compute the mean with these scales."""
    x = dequantized(node.input(0), node)
    scale, step = elements(None if x is None else x.scale), elements(y.scale)
    ratio = 1 if scale is None or step is None else scale[0] / step[0]
    return _pool_fits(node, y) and 1 / LARGEST_RATIO <= ratio < LARGEST_RATIO


def _softmax_fits(node: Node, y: Quantized) -> bool:
    """True if the sums are long enough for the scale of the result: the kernel overflows if a sum is short and the scale small.

    1 / scale must be a whole number, because the kernel has only whole numbers of steps. The kernel also returns nothing if
    there are no elements; and before ONNX Runtime 1.32, int8 results above 127 wrap around.
    """
    step, zero = elements(y.scale), zero_points(y)
    if step is None or zero is None:
        return False
    levels = 1 / step[0]
    if y.dtype is DType.INT8 and not levels + zero[0] <= LIMITS[DType.INT8][1] + 1:
        return False
    return bool(abs(levels - round(levels)) <= WHOLE and levels <= HEADROOM * _summed(node))


def _summed(softmax: Node) -> int:
    """Number of elements in each sum of a Softmax; 0 if it is unknown, or if there are no elements at all."""
    shape, axis = softmax.out.shape or (), attribute(softmax, "axis")
    if 0 in shape or not -len(shape) <= axis < len(shape):
        return 0
    axis %= len(shape)
    lengths = numbers(*(shape[axis:] if since_version(softmax) < 13 else shape[axis : axis + 1]))
    return prod(lengths) if lengths else 0


def _softmax_parameters(y: Quantized) -> list[NewInput]:
    """The parameters of a result, with the next lower scale if needed: the kernel truncates 1 / scale, computed in float32."""
    step = elements(y.scale)
    assert step is not None
    levels, scale = round(1 / step[0]), np.float32(step[0])
    while np.float32(1) / scale < levels:
        scale = np.nextafter(scale, np.float32(0))
    return [y.parameters[0] if scale == step[0] else np.array(scale), y.parameters[1]]


class QLinear(NamedTuple):
    """The counterpart of an operator: its attributes, the condition for the same result, and the parameters of that result."""

    attrs: Callable[[Node], dict[str, Attribute]] = lambda node: {}
    fits: Callable[[Node, Quantized], bool] = lambda node, y: True
    parameters: Callable[[Quantized], list[NewInput]] = lambda y: y.parameters


COUNTERPARTS = {
    "Add": QLinear(),
    "AveragePool": QLinear(lambda node: {k: v for k, v in node.attrs.items() if k != "dilations"}, _pool_fits),
    "GlobalAveragePool": QLinear(lambda node: {"channels_last": 0}, _mean_fits),
    "LeakyRelu": QLinear(lambda node: {"alpha": attribute(node, "alpha")}),
    "Mul": QLinear(),
    "Sigmoid": QLinear(),
    "Softmax": QLinear(
        lambda node: {"axis": attribute(node, "axis"), "opset": since_version(node)}, _softmax_fits, _softmax_parameters
    ),
}


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(tuple(COUNTERPARTS), ..., name="target")))
def fuse_counterpart(m: Match) -> Replacement:
    "Q(op(DQ(x), ...))  ->  QLinear<op>(x, ...)"
    target = m.node("target")
    found, counterpart = _operands(m, range(len(target.inputs))), COUNTERPARTS[target.op]
    if found is None or not counterpart.fits(target, found[1]):
        return None
    inputs, y = found
    parts = [part for x in inputs for part in x.operand]
    return microsoft(f"QLinear{target.op}", [*parts, *counterpart.parameters(y)], target, counterpart.attrs(target))


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Concat", ..., name="target")))
def fuse_concat(m: Match) -> Replacement:
    "Q(Concat(DQ(a), ...))  ->  QLinearConcat(a, ...)"
    target = m.node("target")
    found = _operands(m, range(len(target.inputs)), retype=True)
    if found is None:
        return None
    inputs, y = found
    parts: list[NewInput] = [part for x in inputs for part in x.operand]
    return microsoft("QLinearConcat", [*y.parameters, *parts], target, {"axis": attribute(target, "axis")})


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
    return microsoft("QLinearWhere", [m.condition, *a.operand, *b.operand, *y.parameters], m.node("target"))


@rule("WhereDummyDq", *quantize_patterns(P("Where", "condition", "a", "b", name="target")))
def fuse_where_number(m: Match) -> Replacement:
    """Q(Where(c, DQ(a), number))  ->  QLinearWhere(c, a, number as an integer that represents it exactly)

    Counterpart: WhereDummyDq
    Differs: directly to QLinearWhere, and the integer represents the number exactly.
    """
    y = _byte_result(m.root)
    if y is None or not y.is_constant or all(v.constant is not None for v in (m.a, m.b)):
        return None
    a, b = (_branch(v, y, m.root) for v in (m.a, m.b))
    if a is None or b is None:
        return None
    return microsoft("QLinearWhere", [m.condition, *a.operand, *b.operand, *y.parameters], m.node("target"))


def _branch(value: Value, y: Quantized, root: Node) -> Quantized | None:
    """A branch of Where as integers of the type of y with constant parameters per tensor; None if it has none."""
    x = dequantized(value, root) or _exactly(value, y, root)
    return x if x is not None and x.dtype is y.dtype and x.is_per_tensor and x.is_constant else None


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


RULES = fuse_counterpart + fuse_concat + fuse_where
KERNELS = RULES + product.RULES
BETWEEN_QUANTIZERS = (*drop.RULES, *KERNELS, *map(drop.with_integer_clip, KERNELS), *drop.clip_integers)
