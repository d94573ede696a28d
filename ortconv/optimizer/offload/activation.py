"""Expresses activations that NNAPI lacks by operations that it has."""

from __future__ import annotations

import math

from ortconv.ir.operands import clip_bounds
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import greatest
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import add, div, is_float, mul, op, sub, unary
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.standard_forms import BOUNDS_ARE_INPUTS, clipped, gelu_by_erf, gelu_by_tanh, is_by_tanh
from ortconv.optimizer.standard_forms import swish as swish_of

CLIP_RANGES = ((0.0, 6.0), (-1.0, 1.0))
"""The bounds of NNAPI's clipping operations."""

NEAR_ONE = 1e-6


@rule("HardSigmoidToClip", unary("HardSigmoid"))
def hard_sigmoid(m: Match) -> Replacement:
    """HardSigmoid<alpha, beta>(x)  ->  Clip(6 * alpha * x + 6 * beta, 0, 6) / 6, without the first product if alpha is 1/6"""
    alpha, beta = float(attribute(m.root, "alpha")), float(attribute(m.root, "beta"))
    if not all(abs(6 * number) <= greatest(DType.FLOAT) for number in (alpha, beta)):
        return None
    scaled: NewInput = m.x if abs(6 * alpha - 1) < NEAR_ONE else mul(m.x, 6 * alpha)
    return mul(clipped(add(scaled, 6 * beta), 0, 6, m.graph), 1 / 6)


@rule("HardSwishToClip", unary("HardSwish"))
def hard_swish(m: Match) -> Replacement:
    """HardSwish(x)  ->  x * (Clip(x + 3, 0, 6) / 6)"""
    return mul(m.x, mul(clipped(add(m.x, 3), 0, 6, m.graph), 1 / 6))


BROADCASTING_MIN = 8
"""The opset from which on Min and Max broadcast."""

OLDEST_WITH_ERF = 9


@rule("ClipToMinMax", P("Clip", "x", ...))
def clip(m: Match) -> Replacement:
    """Clip(x, low, high)  ->  Min(Max(x, low), high), with constant bounds; Relu for Max(x, 0)

    Up to rank 4, Relu stays for Max(x, 0), and Clip for bounds of 0 and 6 or -1 and 1.

    Opt-in: two nodes instead of one; useful only if an accelerator supports these bounds in no other way.
    """
    low, high = clip_bounds(m.root)
    if not low < math.inf or not high > -math.inf or not is_float(m.x):
        return None
    has_activations = (m.x.rank or 0) <= 4
    if has_activations and (low, high) in CLIP_RANGES:
        return None
    if m.graph.opset() < BROADCASTING_MIN and (low not in (0, -math.inf) or high < math.inf):
        return None
    y: NewInput = m.x
    if low > -math.inf:
        y = op("Relu", y) if low == 0 and has_activations else op("Max", y, low)
    return y if high == math.inf else op("Min", y, high)


@rule("ReluToMax", unary("Relu"))
def relu_of_high_rank(m: Match) -> Replacement:
    """Relu(x)  ->  Max(x, 0), for x of rank 5 or more

    Opt-in: useful only for an accelerator that supports Relu only up to rank 4.
    """
    return op("Max", m.x, 0.0) if (m.x.rank or 0) > 4 and m.graph.opset() >= BROADCASTING_MIN else None


@rule("SoftplusToLog", unary("Softplus"))
def softplus(m: Match) -> Replacement:
    """Softplus(x)  ->  Relu(x) + Log(1 + Exp(-Abs(x)))"""
    return _softplus(m.x)


def _softplus(x: NewInput) -> New:
    return add(op("Relu", x), op("Log", add(op("Exp", op("Neg", op("Abs", x))), 1)))


@rule("SoftsignToDiv", unary("Softsign"))
def softsign(m: Match) -> Replacement:
    """Softsign(x)  ->  x / (1 + Abs(x))"""
    return div(m.x, add(op("Abs", m.x), 1))


@rule("MishToTanh", unary("Mish"))
def mish(m: Match) -> Replacement:
    """Mish(x)  ->  x * Tanh(Relu(x) + Log(1 + Exp(-Abs(x))))

    Counterpart: none: ONNX Runtime runs Mish as a function
    """
    return mul(m.x, op("Tanh", _softplus(m.x)))


@rule("SwishToSigmoid", P("Swish", "x"), P("QuickGelu", "x", domain=MICROSOFT))
def swish(m: Match) -> Replacement:
    """Swish<alpha>(x) or QuickGelu<alpha>(x)  ->  x * Sigmoid(alpha * x)

    Counterpart: none: QuickGeluFusion is the reverse
    """
    if not is_float(m.x):
        return None
    alpha = m.root.attr("alpha", 1.0 if m.root.op == "Swish" else 1.702)
    return swish_of(m.x, alpha)


@rule("SeluToElu", unary("Selu"))
def selu(m: Match) -> Replacement:
    """Selu<alpha, gamma>(x)  ->  gamma * Elu<alpha>(x)"""
    alpha, gamma = float(attribute(m.root, "alpha")), float(attribute(m.root, "gamma"))
    return mul(op("Elu", m.x, alpha=alpha), gamma)


@rule("CeluToElu", unary("Celu"))
def celu(m: Match) -> Replacement:
    """Celu<alpha>(x)  ->  alpha * Elu(x / alpha)"""
    alpha = float(attribute(m.root, "alpha"))
    if not alpha > 0:
        return None
    if alpha == 1:
        return op("Elu", m.x)
    return mul(op("Elu", div(m.x, alpha)), alpha)


@rule("EluToExp", unary("Elu"))
def elu(m: Match) -> Replacement:
    """Elu<alpha>(x)  ->  Relu(x) + Min(alpha * (Exp(x) - 1), 0)

    Opt-in: more nodes; useful only if an accelerator supports them but not Elu: NNAPI at feature level 29.
    """
    alpha = float(attribute(m.root, "alpha"))
    if not alpha > 0 or m.graph.opset() < BROADCASTING_MIN:
        return None
    grown = sub(op("Exp", m.x), 1)
    return add(op("Relu", m.x), op("Min", grown if alpha == 1 else mul(grown, alpha), 0))


@rule("GeluToTanh", P("Gelu", "x"), P("FastGelu", "x", "bias?", domain=MICROSOFT))
def tanh_gelu(m: Match) -> Replacement:
    """Gelu<tanh>(x) or FastGelu(x, bias)  ->  0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))

    Counterpart: none: FastGeluFusion is the reverse
    """
    if not is_float(m.x, m.optional("bias")) or not is_by_tanh(m.root):
        return None
    return gelu_by_tanh(m.x, m.optional("bias"))


@rule("GeluToErf", P("Gelu", "x"), P("Gelu", "x", domain=MICROSOFT), P("BiasGelu", "x", "bias", domain=MICROSOFT))
def erf_gelu(m: Match) -> Replacement:
    """Gelu(x) or BiasGelu(x, bias)  ->  0.5 * x * (1 + Erf(x / sqrt(2)))

    Counterpart: none: GeluFusion is the reverse
    Opt-in: more nodes; useful if ErfToTanh then replaces Erf.
    """
    if not is_float(m.x, m.optional("bias")) or is_by_tanh(m.root) or m.graph.opset() < OLDEST_WITH_ERF:
        return None
    return gelu_by_erf(m.x, m.optional("bias"))


ERF_RANGE = 4.0
"""Beyond this number, Erf is 1 in float32."""

ERF_COEFFICIENTS = (10.66762357, -25.10578973, 23.51761075, -10.25178865, -0.18880895, 6.57699081, 4.51351882)
"""Polynomial in the square of t = x / 4, of the highest power first. Tanh of its product with t is Erf(x), off by 6e-8 at most."""


@rule("ErfToTanh", unary("Erf"))
def erf_by_tanh(m: Match) -> Replacement:
    """Erf(x)  ->  Tanh(t * polynomial(t * t)) of t = Clip(x / 4, -1, 1)

    Opt-in: more nodes; useful only if an accelerator has no Erf. The error is up to 3e-7, and to 6e-7 of results near 0.
    """
    if m.graph.opset() < BOUNDS_ARE_INPUTS:
        return None
    t = op("Clip", mul(m.x, 1 / ERF_RANGE), -1, 1)
    square = mul(t, t)
    polynomial: NewInput | float = ERF_COEFFICIENTS[0]
    for c in ERF_COEFFICIENTS[1:]:
        polynomial = add(mul(polynomial, square), c)
    return op("Tanh", mul(polynomial, t))
