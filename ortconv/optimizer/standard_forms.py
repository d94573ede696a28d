"""Standard operators in the form that a graph's operator set needs, and ONNX Runtime's fused operators expressed by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ortconv.ir.graph import Attribute, Floats, Graph, Ints, Node, Value
from ortconv.ir.tensor import Array
from ortconv.optimizer.conditions import without_absent
from ortconv.optimizer.engine import New, NewInput
from ortconv.optimizer.insertion import LISTS_BY_INPUT
from ortconv.optimizer.permutation import operand_perm

BOUNDS_ARE_INPUTS = 11
"""The operator set from which on Clip has its bounds as inputs."""

SUMMAND_IS_OPTIONAL = 11
"""The operator set from which on Gemm needs no third operand."""

HARD_SWISH = 14
"""The operator set from which on HardSwish exists."""

ACTIVATION_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softsign", "Softplus"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}
"""Activations that FusedGemm supports, with the attributes that it requires even if they have the default. FusedConv has some."""

SLOPE = math.sqrt(2 / math.pi)
"""The slope at 0 of the argument of Tanh in the approximation of Gelu."""


def number(like: Value | None, value: float) -> Array:
    """A constant with the element type of a value; float32 if that is not known."""
    dtype = np.dtype(np.float32) if like is None or like.dtype is None else like.dtype.numpy
    return np.asarray(value, dtype)


X = TypeVar("X", bound=NewInput)


def plus(x: X, bias: NewInput) -> X | New:
    """The sum, or x if there is no bias."""
    return x if bias is None else New("Add", [x, bias])


def with_axes(op: str, x: NewInput, axes: Sequence[int], graph: Graph, **attrs: Attribute) -> New:
    """An operator of LISTS_BY_INPUT along some axes."""
    if graph.opset() < LISTS_BY_INPUT[op]:
        return New(op, [x], {"axes": Ints(axes), **attrs})
    return New(op, [x, np.array(tuple(axes), np.int64)], attrs)


def mean(x: NewInput, axes: Sequence[int], graph: Graph, keepdims: int = 1) -> New:
    return with_axes("ReduceMean", x, axes, graph, keepdims=keepdims)


def is_by_tanh(gelu: Node) -> bool:
    """True for a Gelu that is approximated by tanh."""
    return gelu.op == "FastGelu" or gelu.attr("approximate", "none") == "tanh"


def gelu_by_erf(x: Value, bias: Value | None = None) -> New:
    """0.5 * y * (1 + Erf(y / sqrt(2))) of y = x + bias"""
    y = plus(x, bias)
    erf = New("Erf", [New("Mul", [y, number(x, math.sqrt(0.5))])])
    return New("Mul", [New("Mul", [y, number(x, 0.5)]), New("Add", [erf, number(x, 1)])])


def gelu_by_tanh(x: Value, bias: Value | None = None) -> New:
    """0.5 * y * (1 + Tanh(sqrt(2 / pi) * (y + 0.044715 * y^3))) of y = x + bias"""
    y = plus(x, bias)
    cubic = New("Mul", [New("Mul", [y, y]), number(x, 0.044715 * SLOPE)])
    inner = New("Mul", [y, New("Add", [cubic, number(x, SLOPE)])])
    return New("Mul", [New("Mul", [y, number(x, 0.5)]), New("Add", [New("Tanh", [inner]), number(x, 1)])])


def swish(x: Value, alpha: float) -> New:
    """x * Sigmoid(alpha * x)"""
    return New("Mul", [x, New("Sigmoid", [x if alpha == 1 else New("Mul", [x, number(x, alpha)])])])


def clipped(x: NewInput, low: float, high: float, graph: Graph, like: Value | None = None) -> New:
    """x between two bounds, by Clip in the form of the graph's operator set."""
    if graph.opset() < BOUNDS_ARE_INPUTS:
        return New("Clip", [x], {"min": float(low), "max": float(high)})
    return New("Clip", [x, number(like, low), number(like, high)])


def summand(c: NewInput, columns: int, graph: Graph, like: Value | None = None) -> list[NewInput]:
    """The third operand of a Gemm as a list: empty without c, or zeros if the operator set requires an operand."""
    if c is None and graph.opset() < SUMMAND_IS_OPTIONAL:
        return [np.full(columns, number(like, 0))]
    return [] if c is None else [c]


def _activated(x: NewInput, name: str, params: Sequence[float], like: Node) -> New | None:
    """The activation of a fused operator, applied to x; None if the activation or its number of parameters is unknown."""
    if name == "Clip" and len(params) == 2:
        return clipped(x, params[0], params[1], like.parent, like.input(0))
    if name == "HardSwish" and like.parent.opset() < HARD_SWISH:
        return New("Mul", [x, New("HardSigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})])
    names = () if name == "HardSwish" else ACTIVATION_ATTRIBUTES.get(name)
    return New(name, [x], dict(zip(names, params))) if names is not None and len(params) == len(names) else None


def fused_conv(node: Node) -> NewInput:
    """activation(Conv(x, w, b) + z); None for an unknown activation."""
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    total = plus(New("Conv", without_absent(node.inputs[:3]), attrs, like=node), node.input(3))
    name, params = node.attr("activation", ""), node.attr("activation_params", Floats())
    return _activated(total, name, params, node) if name else total


def fused_gemm(node: Node) -> New | None:
    """activation(Gemm(a, b, c)); None for an unknown activation."""
    name, columns, (a, b) = node.attr("activation", ""), node.out.dim(1), node.inputs[:2]
    c = summand(node.input(2), columns if isinstance(columns, int) else 1, node.parent, a)
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    stated = (f"activation_{parameter}" for parameter in ACTIVATION_ATTRIBUTES.get(name, ()))
    params = [node.attr(parameter, 0.0) for parameter in stated if parameter in node.attrs]
    gemm = New("Gemm", [a, b, *c], attrs, like=node)
    return _activated(gemm, name, params, node)


def fused_matmul(node: Node) -> New | None:
    """alpha * MatMul(Transpose(a), Transpose(b)); None if the rank of a transposed operand is unknown."""
    a, b = (_matmul_operand(node, value, side) for value, side in zip(node.present_inputs, "AB", strict=True))
    if a is None or b is None:
        return None
    product, alpha = New("MatMul", [a, b], {}, like=node), node.attr("alpha", 1.0)
    return product if alpha == 1 else New("Mul", [product, number(node.input(0), alpha)])


def _matmul_operand(node: Node, value: Value, side: str) -> NewInput:
    """An operand of a FusedMatMul, transposed as the attributes of this side require; None if its rank must be known for that."""
    transposed, batch = (int(node.attr(f"{flag}{side}", 0)) for flag in ("trans", "transBatch"))
    if not (transposed or batch):
        return value
    if value.rank is None or value.rank < 2:
        return value if value.rank is not None else None
    return New("Transpose", [value], {"perm": Ints(operand_perm(value.rank, transposed, batch))})
