"""ONNX Runtime's operators on 8-bit integers as standard operators between quantizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import constant_of, quantized_slots
from ortconv.ir.tensor import Array
from ortconv.optimizer.engine import New, NewInput
from ortconv.optimizer.quantizers import is_single
from ortconv.optimizer.standard_forms import number

OLDEST = 10
"""The operator set from which on QuantizeLinear and DequantizeLinear exist."""

AXIS_OF_SCALES = 13
"""The operator set from which on DequantizeLinear has one scale for each index of an axis, and Softmax works on one axis."""


def one(value: Value | None) -> NewInput:
    """A constant of one element as a scalar, which every version of the operators accepts."""
    const = constant_of(value)
    return const.numpy().reshape(()) if const is not None and const.size == 1 and const.rank else value


def dequantize(x: NewInput, scale: Value | None, zero: Value | None) -> New:
    return New("DequantizeLinear", [x, one(scale), one(zero)][: 2 if zero is None else 3])


def quantize(x: NewInput, scale: Value | None, zero: Value | None) -> New:
    return New("QuantizeLinear", [x, one(scale), one(zero)][: 2 if zero is None else 3])


def _real(node: Node, slot: int) -> New | None:
    """DequantizeLinear of three consecutive inputs: integers, scale and zero point. None if they need a newer operator set."""
    x, scale, zero = (node.input(i) for i in (slot, slot + 1, slot + 2))
    if node.parent.opset() < (OLDEST if is_single(scale) else AXIS_OF_SCALES):
        return None
    return dequantize(x, scale, zero)


def _between(
    node: Node, op: str, attrs: Mapping[str, Attribute] | None = None, before: Sequence[NewInput] = ()
) -> New | None:
    """An operator on the dequantized operands of a node, and on those of `before`; its result is quantized."""
    slots = quantized_slots(node)
    assert slots is not None
    reals = [_real(node, slot) for slot in slots.operands]
    made = New(op, [*before, *reals], attrs)
    return None if None in reals else quantize(made, node.input(slots.result), node.input(slots.result + 1))


def _qlinear(node: Node) -> New | None:
    """QLinearOp(x, ...)  ->  QuantizeLinear(Op(DequantizeLinear(x), ...))"""
    same_softmax = (node.attr("opset", AXIS_OF_SCALES) < AXIS_OF_SCALES) == (node.parent.opset() < AXIS_OF_SCALES)
    if node.attr("channels_last", 0) or (node.op == "QLinearSoftmax" and not same_softmax):
        return None
    attrs = {k: v for k, v in node.attrs.items() if k not in ("channels_last", "opset")}
    return _between(node, node.op.removeprefix("QLinear"), attrs)


def _concat(node: Node) -> New | None:
    """QLinearConcat(x, y, ...)  ->  QuantizeLinear(Concat(DequantizeLinear(x), DequantizeLinear(y), ...))"""
    return _between(node, "Concat", {"axis": node.attr("axis", 0)})


def _where(node: Node) -> New | None:
    """QLinearWhere(condition, x, y)  ->  QuantizeLinear(Where(condition, DequantizeLinear(x), DequantizeLinear(y)))"""
    return _between(node, "Where", before=[node.input(0)])


def _gemm(node: Node) -> New | None:
    """QGemm(a, b, c)  ->  Gemm(DequantizeLinear(a), DequantizeLinear(b), DequantizeLinear(c)), quantized where wanted"""
    a, b, c = _real(node, 0), _real(node, 3), node.input(6)
    if a is None or b is None:
        return None
    if not is_single(node.input(4)):
        b.attrs["axis"] = 0 if node.attr("transB", 0) else 1
    bias = [] if c is None else [_bias(node, c)]
    attrs = {k: v for k, v in node.attrs.items() if k in ("alpha", "transA", "transB")}
    made = New("Gemm", [a, b, *bias], attrs, like=node)
    return made if node.input(7) is None else quantize(made, node.input(7), node.input(8))


def _bias(node: Node, c: Value) -> New:
    """The int32 bias of a QGemm, in units of the sum, as reals."""
    alpha = number(node.input(1), node.attr("alpha", 1.0))
    scales = [constant_of(node.input(slot)) for slot in (1, 4)]
    a, b = (None if s is None else s.numpy() for s in scales)
    if a is not None and b is not None and (b.size == 1 or node.parent.opset() >= AXIS_OF_SCALES):
        unit: Array = np.asarray(a.reshape(()) * b.reshape(() if b.size == 1 else -1) * alpha, np.float32)
        return New("DequantizeLinear", [c, unit], {"axis": 0} if unit.ndim else {})
    factor = New("Mul", [New("Mul", [one(node.input(1)), one(node.input(4))]), alpha])
    return New("Mul", [New("Cast", [c], {"to": 1}), factor])


def matmul_between_quantizers(node: Node) -> New | None:
    """QLinearMatMul(a, b)  ->  QuantizeLinear(MatMul(DequantizeLinear(a), DequantizeLinear(b))); None if rows of a have scales"""
    a, b, weights = _real(node, 0), _real(node, 3), node.input(3)
    if a is None or b is None or weights is None or not (is_single(node.input(1)) and is_single(node.input(6))):
        return None
    if not is_single(node.input(4)):
        if weights.rank != 2:
            return None
        b.attrs["axis"] = 1
    return quantize(New("MatMul", [a, b], like=node), node.input(6), node.input(7))


_ONE_TO_ONE = ("Add", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax")
QDQ_FORMS: Mapping[str, Callable[[Node], New | None]] = {
    **{f"QLinear{op}": _qlinear for op in _ONE_TO_ONE},
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
}
"""The form of each operator of ONNX Runtime's domain; None where the operator set has none."""
