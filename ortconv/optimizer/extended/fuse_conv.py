"""Fuses Conv and an activation into com.microsoft:FusedConv, and rewrites hard-swish so that it can be fused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ortconv.ir.graph import Attribute, Floats, Node, Value
from ortconv.ir.operands import clip_bounds, producer_of, scalar
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.basic.fold_conv import branches
from ortconv.optimizer.conditions import broadcasts_into, exactly, greatest
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.standard_forms import ACTIVATION_ATTRIBUTES

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")
ACTIVATION_PARAMETERS = {op: ACTIVATION_ATTRIBUTES[op] for op in _ACTIVATIONS}
"""Activations that FusedConv supports besides Clip, with the attributes that become `activation_params`."""


def activation_attributes(node: Node) -> dict[str, Attribute] | None:
    """The attributes with which FusedConv applies this activation; None if it does not support it."""
    if node.op == "Clip":
        bounds = clip_bounds(node, greatest(DType.FLOAT))
        return None if any(map(math.isnan, bounds)) else {"activation": "Clip", "activation_params": Floats(bounds)}
    names = ACTIVATION_PARAMETERS.get(node.op)
    if names is None or len(node.inputs) != 1:
        return None
    attrs: dict[str, Attribute] = {"activation": node.op}
    if names:
        attrs["activation_params"] = Floats(float(attribute(node, name)) for name in names)
    return attrs


def is_float(value: Value | None) -> bool:
    return value is not None and value.dtype is DType.FLOAT


def activations(conv: P) -> tuple[P, P]:
    """Patterns for an activation of a convolution."""
    return P(tuple(ACTIVATION_PARAMETERS), conv), P("Clip", conv, C("low", optional=True), C("high", optional=True))


_CONV = P("Conv", ..., name="conv")


@rule("ConvActivationFusion", *activations(_CONV))
def fuse_conv_activation(m: Match) -> Replacement:
    """act(Conv(x, w, b))  ->  FusedConv(x, w, b)

    Counterpart: ConvActivationFusion
    """
    conv = m.node("conv")
    attrs = activation_attributes(m.root)
    if attrs is None or not is_float(conv.input(0)):
        return None
    return with_activation(conv, attrs)


@rule("ConvActivationFusion", *activations(P("Concat", ..., name="concat")))
def fuse_branches_activation(m: Match) -> Replacement:
    """act(Concat(Conv, Conv))  ->  Concat(act(Conv), act(Conv)), which are fused

    Differs: ONNX Runtime keeps one behind joined convolutions.
    """
    operands = branches(m.node("concat"))
    if not operands or not all(is_float(v) and producer_of(v, "Conv") for v in operands):
        return None
    if activation_attributes(m.root) is None:
        return None
    activated = [New(m.root.op, [v, *m.root.inputs[1:]], like=m.root, types=[v.type]) for v in operands]
    return New("Concat", activated, like=m.node("concat"))


def with_activation(conv: Node, attrs: Mapping[str, Attribute]) -> New:
    """FusedConv for a Conv or FusedConv and the activation after it."""
    return New("FusedConv", conv.inputs, {**conv.attrs, **attrs}, domain=MICROSOFT, like=conv)


def is_hard_swish_gate(node: Node) -> bool:
    """True for the HardSigmoid by which hard-swish multiplies its input."""
    alpha, beta = (np.float32(attribute(node, name)) for name in ("alpha", "beta"))
    return bool(alpha == np.float32(1 / 6)) and beta == 0.5


def gated(conv: str, domain: str = "", where: Callable[[Node], bool] | None = None) -> P:
    """Pattern for x * HardSigmoid(x), with x the output of a convolution, bound as `conv` and `again`."""
    x, again = (P(conv, ..., name=name, domain=domain, where=where) for name in ("conv", "again"))
    return P("Mul", x, P("HardSigmoid", again, where=is_hard_swish_gate), commutative=True)


@rule("ConvActivationFusion", gated("Conv"), P("HardSwish", _CONV))
def fuse_conv_hard_swish(m: Match) -> Replacement:
    """x * HardSigmoid<1/6, 0.5>(x) with x = Conv(...)  ->  FusedConv<HardSwish>"""
    conv = m.node("conv")
    if m.optional_node("again") not in (None, conv) or not is_float(conv.input(0)):
        return None
    return with_activation(conv, {"activation": "HardSwish"})


_SIXTH = C("k", one=True, where=lambda value: bool(np.float32(scalar(value) or 0) == np.float32(1 / 6)))
_SIX = C("k", one=True, where=exactly(6))
_SHIFTED = P("Add", "x", C("three", one=True, where=exactly(3)), commutative=True)
_CLIPPED = P("Clip", _SHIFTED, ..., name="clip", where=lambda node: clip_bounds(node) == (0, 6))


_NUMERATORS = (_CLIPPED, P("Mul", "y", _CLIPPED, commutative=True))


@rule("HardSwishFusion", *(p for x in _NUMERATORS for p in (P("Div", x, _SIX), P("Mul", x, _SIXTH, commutative=True))))
def fuse_hard_sigmoid(m: Match) -> Replacement:
    """Clip(x + 3, 0, 6) / 6  ->  HardSigmoid<1/6, 0.5>(x); x * Clip(x + 3, 0, 6) / 6  ->  x * HardSigmoid<1/6, 0.5>(x)"""
    if not is_float(m.x) or not all(broadcasts_into(m.tensor(name).shape, m.x.shape) for name in ("three", "k")):
        return None
    gate = New("HardSigmoid", [m.x], {"alpha": 1 / 6, "beta": 0.5}, like=m.node("clip"), types=[m.x.type])
    if "y" not in m.bound:
        return gate
    return New("Mul", [m.x, gate], {}, like=m.root) if m.x is m.y else None


@rule("PReluFusion", P("PRelu", "x", C("slope")))
def replace_prelu(m: Match) -> Replacement:
    """PRelu(x, one slope)  ->  LeakyRelu(x)"""
    slopes = m.tensor("slope").numpy()
    if not is_float(m.x) or not slopes.size or not broadcasts_into(slopes.shape, m.x.shape):
        return None
    if not np.isfinite(slopes).all() or np.any(slopes != slopes.flat[0]):
        return None
    return New("LeakyRelu", [m.x], {"alpha": float(slopes.flat[0])}, like=m.root)


ACTIVATIONS = fuse_conv_activation + fuse_conv_hard_swish + fuse_branches_activation
