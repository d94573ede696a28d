"""Fuses Gelu and its approximations, with and without a bias, into operators of ONNX Runtime's CPU provider."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import producer_of, scalar
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.optimizer.basic import layer_norm as basic
from ortconv.optimizer.conditions import exactly, keeps_rank
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.standard_forms import SLOPE, is_by_tanh

CUBIC = (0.0, SLOPE, 0.0, SLOPE * 0.044715)
"""The coefficients of the polynomial in the approximation of Gelu by Tanh."""

DEEPEST = 8

Polynomial = list[float]
"""The coefficients of the powers 0 to 3."""


@rule("GeluFusion", *(r.pattern for r in basic.fuse_gelu))
def fuse_gelu(m: Match) -> Replacement:
    """0.5 * x * (1 + Erf(x / sqrt(2)))  ->  com.microsoft:Gelu(x)

    Counterpart: GeluFusionL2
    Differs: as for GeluFusion of the basic level; float32 only.
    """
    if m.x.dtype is not DType.FLOAT or not keeps_rank(m.x, m.half, m.one, m.root_constant):
        return None
    return New("Gelu", [m.x], domain=MICROSOFT)


_FACTOR = P("Add", P("Tanh", "inner"), C("one", one=True, where=exactly(1.0)), commutative=True)


@rule("FastGeluFusion", *basic.half_of_product(_FACTOR))
def fuse_fast_gelu(m: Match) -> Replacement:
    """0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ^ 3)))  ->  FastGelu(x), for any form of the cubic

    Counterpart: FastGeluFusion
    Differs: the cubic in any form, also x * x * x; the result may be a graph output.
    """
    nodes: set[Node] = set()
    constants: list[Value] = [m.half, m.one]
    cubic = _polynomial(m.inner, m.x, nodes, constants, DEEPEST) if m.x.dtype is DType.FLOAT else None
    if cubic is None or not all(abs(c - known) <= basic.TOLERANCE * known for c, known in zip(cubic, CUBIC)):
        return None
    if not keeps_rank(m.x, *constants):
        return None
    is_private = _is_private(nodes, m.inner.consumers[0], m.root)
    return New("FastGelu", [m.x], domain=MICROSOFT) if is_private else None


def _is_private(nodes: set[Node], reader: Node, root: Node) -> bool:
    """True if only these nodes and the reader use the values of these nodes, all of the root's provider."""
    shared = any(v.is_read_outside({*nodes, reader}) for node in nodes for v in node.present_outputs)
    return not shared and all(node.ep == root.ep for node in nodes)


def _polynomial(value: Value, x: Value, nodes: set[Node], constants: list[Value], depth: int) -> Polynomial | None:
    """A value as a polynomial of x. Its nodes and constants are added to those given."""
    if value is x:
        return [0.0, 1.0, 0.0, 0.0]
    number = scalar(value)
    if number is not None:
        constants.append(value)
        return [float(number), 0.0, 0.0, 0.0]
    node = producer_of(value, "Add", "Mul", "Div", "Pow")
    if node is None or not depth:
        return None
    left, right = [_polynomial(v, x, nodes, constants, depth - 1) for v in node.present_inputs]
    nodes.add(node)
    return None if left is None or right is None else _combined(node.op, left, right)


def _combined(op: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The result of an operator on polynomials; None if it is none up to degree 3."""
    number = 0.0 if any(b[1:]) else b[0]
    match op:
        case "Add":
            return [c + d for c, d in zip(a, b)]
        case "Mul":
            return _product(a, b)
        case "Div" if number:
            return [c / number for c in a]
        case "Pow" if number in (2, 3):
            square = _product(a, a)
            return square if square is None or number == 2 else _product(square, a)
    return None


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    total: Polynomial = np.convolve(a, b).tolist()
    return None if any(total[4:]) else total[:4]


_SCALED = P("Mul", "x", C("alpha", one=True), commutative=True)


@rule("QuickGeluFusion", *(P("Mul", "x", P("Sigmoid", x), commutative=True) for x in ("x", _SCALED)))
def fuse_quick_gelu(m: Match) -> Replacement:
    """x * Sigmoid(alpha * x)  ->  QuickGelu<alpha>(x)

    Counterpart: QuickGeluFusion
    """
    factor = m.optional("alpha")
    alpha = 1.0 if factor is None else scalar(factor)
    if m.x.dtype is not DType.FLOAT or alpha is None or not math.isfinite(alpha):
        return None
    if not keeps_rank(m.x, *m.values("alpha")):
        return None
    return New("QuickGelu", [m.x], {"alpha": float(alpha)}, domain=MICROSOFT)


_SUM = P("Add", "x", "bias", commutative=True)


@rule("BiasGeluFusion", P("Gelu", _SUM), P("Gelu", _SUM, domain=MICROSOFT), P("FastGelu", _SUM, domain=MICROSOFT))
def fuse_bias_gelu(m: Match) -> Replacement:
    """Gelu(x + bias)  ->  BiasGelu(x, bias), or FastGelu if it is approximated by tanh

    Counterpart: BiasGeluFusion
    Differs: the bias has elements; with an empty one, releases before 1.30 divide by zero.
    """
    x, bias = m.x, m.bias
    width = bias.dim(0)
    if x.dtype is not DType.FLOAT or bias.rank != 1 or not isinstance(width, int) or not width or x.dim(-1) != width:
        return None
    return New("FastGelu" if is_by_tanh(m.root) else "BiasGelu", [x, bias], domain=MICROSOFT)
