"""ONNX Runtime's own operators rewritten into standard ones that compute the same: their function bodies.

Each rule is for one operator. An operator without a rule, such as attention, stays. Rounding may differ in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import constant_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.optimizer.engine import New, NewInput, Out, Replacement, Rule, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import is_single
from ortconv.optimizer.standard_forms import (
    fused_conv,
    fused_gemm,
    fused_matmul,
    gelu_by_erf,
    gelu_by_tanh,
    mean,
    number,
    plus,
    swish,
)

LAYER_NORMALIZATION = 17
AXIS_OF_SCALES = 13
"""The operator set from which on DequantizeLinear has one scale for each index of an axis, and Softmax works on one axis."""
WIDE_INTEGERS = 21
"""The operator set from which on QuantizeLinear and DequantizeLinear have integers of 16 and 4 bits."""


def _call(op: str, domain: str = MICROSOFT) -> P:
    return P(op, ..., domain=domain)


_FUSED: dict[str, Callable[[Node], Replacement]] = {
    "Gelu": lambda node: gelu_by_erf(*node.present_inputs),
    "BiasGelu": lambda node: gelu_by_erf(*node.present_inputs),
    "FastGelu": lambda node: gelu_by_tanh(*node.present_inputs),
    "QuickGelu": lambda node: swish(node.present_inputs[0], node.attr("alpha", 1.702)),
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
}
"""The standard form of each fused operator."""


def _rule_of(op: str, form: Callable[[Node], Replacement]) -> Rule:
    return Rule(f"Standard{op}", _call(op), lambda m: form(m.root))


# ---------------------------------------------------------------------- normalization


def _inverse_deviation(variance: New, node: Node) -> New:
    epsilon = number(node.input(0), attribute(node, "epsilon") or 0.0)
    return New("Reciprocal", [New("Sqrt", [New("Add", [variance, epsilon])])])


def _axes(node: Node) -> list[int] | None:
    """The normalized axes, counted from the last one; None if the rank is needed and not known."""
    axis = int(node.attr("axis", -1))
    if axis >= 0:
        value = node.input(0)
        if value is None or value.rank is None:
            return None
        axis -= value.rank
    return list(range(axis, 0))


def _layer_norm(node: Node, x: NewInput, scale: NewInput, bias: NewInput) -> tuple[New, NewInput, NewInput]:
    """The result, the mean and the inverse standard deviation."""
    axes = _axes(node) or [-1]
    if node.parent.opset() >= LAYER_NORMALIZATION:
        attrs: dict[str, Attribute] = {"axis": axes[0], "epsilon": attribute(node, "epsilon")}
        made = New("LayerNormalization", [x, scale, *([] if bias is None else [bias])], attrs, outputs=3)
        return made, Out(made, 1), Out(made, 2)
    average = mean(x, axes, node.parent)
    centered = New("Sub", [x, average])
    inverse = _inverse_deviation(mean(New("Mul", [centered, centered]), axes, node.parent), node)
    normalized = New("Mul", [centered, inverse])
    return plus(New("Mul", [normalized, scale]), bias), average, inverse


def _rms_norm(node: Node, x: NewInput, scale: NewInput) -> tuple[New, NewInput]:
    inverse = _inverse_deviation(mean(New("Mul", [x, x]), _axes(node) or [-1], node.parent), node)
    return New("Mul", [New("Mul", [x, inverse]), scale]), inverse


@rule("StandardLayerNormalization", _call("LayerNormalization", domain=""))
def layer_normalization(m: Match) -> Replacement:
    "LayerNormalization(x, scale, bias) of operator sets before 17  ->  its formula"
    node = m.root
    if m.graph.opset() >= LAYER_NORMALIZATION or _axes(node) is None:
        return None
    y, mean, inverse = _layer_norm(node, node.input(0), node.input(1), node.input(2))
    return (y, mean, inverse)[: len(node.outputs)]


@rule(
    "StandardSimplifiedLayerNormalization", *(_call("SimplifiedLayerNormalization", domain=d) for d in ("", MICROSOFT))
)
def simplified_layer_normalization(m: Match) -> Replacement:
    "SimplifiedLayerNormalization(x, scale)  ->  x / Sqrt(ReduceMean(x * x) + epsilon) * scale"
    node = m.root
    if _axes(node) is None:
        return None
    y, inverse = _rms_norm(node, node.input(0), node.input(1))
    return (y, inverse)[: len(node.outputs)]


def _skipped(node: Node, bias: Value | None) -> New:
    return plus(New("Add", [node.input(0), node.input(1)]), bias)


@rule("StandardSkipLayerNormalization", _call("SkipLayerNormalization"))
def skip_layer_normalization(m: Match) -> Replacement:
    "SkipLayerNormalization(x, skip, gamma, beta, bias)  ->  LayerNormalization(x + skip + bias, gamma, beta)"
    node = m.root
    total = _skipped(node, node.input(4))
    y, mean, inverse = _layer_norm(node, total, node.input(2), node.input(3))
    return (y, mean, inverse, total)[: len(node.outputs)]


@rule("StandardSkipSimplifiedLayerNormalization", _call("SkipSimplifiedLayerNormalization"))
def skip_simplified_layer_normalization(m: Match) -> Replacement:
    "SkipSimplifiedLayerNormalization(x, skip, gamma, bias)  ->  the same of x + skip + bias in standard operators"
    node = m.root
    if node.output(1) is not None:
        return None
    total = _skipped(node, node.input(3))
    y, inverse = _rms_norm(node, total, node.input(2))
    return (y, None, inverse, total)[: len(node.outputs)]


# ---------------------------------------------------------------------- integers


def _one(value: Value | None) -> NewInput:
    """A constant of one element as a scalar, which every version of the operators accepts."""
    const = constant_of(value)
    return const.numpy().reshape(()) if const is not None and const.size == 1 else value


def _real(node: Node, slot: int) -> New | None:
    """DequantizeLinear of three consecutive inputs: integers, scale and zero point. None if they need a newer operator set."""
    x, scale, zero = (node.input(i) for i in (slot, slot + 1, slot + 2))
    if not is_single(scale) and node.parent.opset() < AXIS_OF_SCALES:
        return None
    return New("DequantizeLinear", [x, _one(scale), _one(zero)][: 2 if zero is None else 3])


def _quantized(result: NewInput, node: Node, slot: int) -> New:
    """QuantizeLinear by two consecutive inputs: scale and zero point."""
    scale, zero = node.input(slot), node.input(slot + 1)
    return New("QuantizeLinear", [result, _one(scale), _one(zero)][: 2 if zero is None else 3])


def _quantized_result(
    node: Node,
    op: str,
    slots: Iterable[int],
    result: int,
    attrs: Mapping[str, Attribute] | None = None,
    before: Sequence[NewInput] = (),
) -> New | None:
    """An operator on the dequantized operands at these slots. Its result is quantized by the inputs from `result` on."""
    reals = [_real(node, slot) for slot in slots]
    return None if None in reals else _quantized(New(op, [*before, *reals], attrs), node, result)


_WITH_QLINEAR = ("Add", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax")


@rule("StandardQLinear", *(_call(f"QLinear{op}") for op in _WITH_QLINEAR))
def qlinear(m: Match) -> Replacement:
    "QLinearOp(x, ...)  ->  QuantizeLinear(Op(DequantizeLinear(x), ...))"
    node = m.root
    result = len(node.inputs) // 3 * 3  # behind the operands, of which each has a scale and a zero point
    same_softmax = (node.attr("opset", AXIS_OF_SCALES) < AXIS_OF_SCALES) == (m.graph.opset() < AXIS_OF_SCALES)
    if node.attr("channels_last", 0) or (node.op == "QLinearSoftmax" and not same_softmax):
        return None
    attrs = {k: v for k, v in node.attrs.items() if k not in ("channels_last", "opset")}
    return _quantized_result(node, node.op.removeprefix("QLinear"), range(0, result, 3), result, attrs)


@rule("StandardQLinear", _call("QLinearConcat"))
def qlinear_concat(m: Match) -> Replacement:
    "QLinearConcat(x, y, ...)  ->  QuantizeLinear(Concat(DequantizeLinear(x), DequantizeLinear(y), ...))"
    node = m.root
    return _quantized_result(node, "Concat", range(2, len(node.inputs), 3), 0, {"axis": node.attr("axis", 0)})


@rule("StandardQLinear", _call("QLinearWhere"))
def qlinear_where(m: Match) -> Replacement:
    "QLinearWhere(condition, x, y)  ->  QuantizeLinear(Where(condition, DequantizeLinear(x), DequantizeLinear(y)))"
    node = m.root
    return _quantized_result(node, "Where", (1, 4), 7, before=[node.input(0)])


@rule("StandardQGemm", _call("QGemm"))
def qgemm(m: Match) -> Replacement:
    "QGemm(a, b, c)  ->  Gemm(DequantizeLinear(a), DequantizeLinear(b), c in units of the sum), quantized where wanted"
    node = m.root
    a, b, c = _real(node, 0), _real(node, 3), node.input(6)
    if a is None or b is None:
        return None
    if not is_single(node.input(4)):
        b.attrs["axis"] = 0 if node.attr("transB", 0) else 1
    alpha = number(node.input(1), node.attr("alpha", 1.0))
    unit = New("Mul", [New("Mul", [_one(node.input(1)), _one(node.input(4))]), alpha])
    bias = [] if c is None else [New("Mul", [New("Cast", [c], {"to": 1}), unit])]
    attrs = {k: v for k, v in node.attrs.items() if k in ("alpha", "transA", "transB")}
    made = New("Gemm", [a, b, *bias], attrs, like=node)
    return made if node.input(7) is None else _quantized(made, node, 7)


def _scaled_product(a: NewInput, b: Value | None, zeros: Sequence[NewInput], scale: New, bias: Value | None) -> New:
    """The product of integers as reals, with a bias if there is one."""
    product = New("Cast", [New("MatMulInteger", [a, b, *zeros])], {"to": 1})
    return plus(New("Mul", [product, scale]), bias)


@rule("StandardMatMulIntegerToFloat", _call("MatMulIntegerToFloat"))
def matmul_integer_to_float(m: Match) -> Replacement:
    "MatMulIntegerToFloat(a, b, s, t, bias)  ->  Cast(MatMulInteger(a, b)) * (s * t) + bias"
    node = m.root
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (node.input(i) for i in range(7))
    zeros: list[NewInput] = [_one(a_zero), _one(b_zero)]
    return _scaled_product(a, b, zeros, New("Mul", [_one(a_scale), _one(b_scale)]), bias)


@rule("StandardDynamicQuantizeMatMul", _call("DynamicQuantizeMatMul"))
def dynamic_quantize_matmul(m: Match) -> Replacement:
    "DynamicQuantizeMatMul(x, b)  ->  DynamicQuantizeLinear(x), then MatMulIntegerToFloat in standard operators"
    node = m.root
    x, b, b_scale, b_zero, bias = (node.input(i) for i in range(5))
    quantized = New("DynamicQuantizeLinear", [x], outputs=3)
    zeros: list[NewInput] = [Out(quantized, 2), _one(b_zero)]
    return _scaled_product(quantized, b, zeros, New("Mul", [Out(quantized, 1), _one(b_scale)]), bias)


@rule("StandardQuantizeLinear", *(_call(op) for op in ("QuantizeLinear", "DequantizeLinear")))
def quantize_linear(m: Match) -> Replacement:
    "com.microsoft:QuantizeLinear  ->  QuantizeLinear, where the operator set knows its types; DequantizeLinear likewise"
    node = m.root
    integers = node.out if node.op == "QuantizeLinear" else node.input(0)
    opset, scale = m.graph.opset(), node.input(1)
    dtype = None if integers is None else integers.dtype
    if scale is None or dtype is None:
        return None
    needed = 10 if dtype.bits in (8, 32) else WIDE_INTEGERS
    if opset < (needed if is_single(scale) else max(needed, AXIS_OF_SCALES)):
        return None
    attrs = {"axis": node.attr("axis", 1)} if opset >= AXIS_OF_SCALES else {}
    return New(node.op, [node.input(0), *map(_one, node.inputs[1:])], attrs)


STANDARD = Pass(
    "standard operators",
    (
        *starmap(_rule_of, _FUSED.items()),
        *layer_normalization,
        *simplified_layer_normalization,
        *skip_layer_normalization,
        *skip_simplified_layer_normalization,
        *qlinear,
        *qlinear_concat,
        *qlinear_where,
        *qgemm,
        *matmul_integer_to_float,
        *dynamic_quantize_matmul,
        *quantize_linear,
    ),
)
