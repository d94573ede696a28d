"""ONNX Runtime's own operators rewritten into standard ones that compute the same: their function bodies.

Each rule is for one operator. An operator without a rule, such as attention, stays. Rounding may differ in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.optimizer.engine import New, NewInput, Out, Replacement, Rule, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.qdq_forms import AXIS_OF_SCALES, OLDEST, QDQ_FORMS, one
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


def _rule_of(name: str, form: Callable[[Node], Replacement], op: str = "") -> Rule:
    """The rule for an operator, by default the one of the name."""
    return Rule(f"Standard{name}", _call(op or name), lambda m: form(m.root))


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


def _scaled_product(a: NewInput, b: Value | None, zeros: Sequence[NewInput], scale: New, bias: Value | None) -> New:
    """The product of integers as reals, with a bias if there is one."""
    product = New("Cast", [New("MatMulInteger", [a, b, *zeros])], {"to": 1})
    return plus(New("Mul", [product, scale]), bias)


@rule("StandardMatMulIntegerToFloat", _call("MatMulIntegerToFloat"))
def matmul_integer_to_float(m: Match) -> Replacement:
    "MatMulIntegerToFloat(a, b, s, t, bias)  ->  Cast(MatMulInteger(a, b)) * (s * t) + bias"
    node = m.root
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (node.input(i) for i in range(7))
    zeros: list[NewInput] = [one(a_zero), one(b_zero)]
    return _scaled_product(a, b, zeros, New("Mul", [one(a_scale), one(b_scale)]), bias)


@rule("StandardDynamicQuantizeMatMul", _call("DynamicQuantizeMatMul"))
def dynamic_quantize_matmul(m: Match) -> Replacement:
    "DynamicQuantizeMatMul(x, b)  ->  DynamicQuantizeLinear(x), then MatMulIntegerToFloat in standard operators"
    node = m.root
    x, b, b_scale, b_zero, bias = (node.input(i) for i in range(5))
    quantized = New("DynamicQuantizeLinear", [x], outputs=3)
    zeros: list[NewInput] = [Out(quantized, 2), one(b_zero)]
    return _scaled_product(quantized, b, zeros, New("Mul", [Out(quantized, 1), one(b_scale)]), bias)


@rule("StandardQuantizeLinear", *(_call(op) for op in ("QuantizeLinear", "DequantizeLinear")))
def quantize_linear(m: Match) -> Replacement:
    "com.microsoft:QuantizeLinear  ->  QuantizeLinear, where the operator set knows its types; DequantizeLinear likewise"
    node = m.root
    integers = node.out if node.op == "QuantizeLinear" else node.input(0)
    opset, scale = m.graph.opset(), node.input(1)
    dtype = None if integers is None else integers.dtype
    if scale is None or dtype is None:
        return None
    needed = OLDEST if dtype.bits in (8, 32) else WIDE_INTEGERS
    if opset < (needed if is_single(scale) else max(needed, AXIS_OF_SCALES)):
        return None
    attrs = {"axis": node.attr("axis", 1)} if opset >= AXIS_OF_SCALES else {}
    return New(node.op, [node.input(0), *map(one, node.inputs[1:])], attrs)


STANDARD = Pass(
    "standard operators",
    (
        *starmap(_rule_of, _FUSED.items()),
        *layer_normalization,
        *simplified_layer_normalization,
        *skip_layer_normalization,
        *skip_simplified_layer_normalization,
        *(_rule_of("QGemm" if op == "QGemm" else "QLinear", form, op) for op, form in QDQ_FORMS.items()),
        *matmul_integer_to_float,
        *dynamic_quantize_matmul,
        *quantize_linear,
    ),
)
