"""Conv followed by an activation becomes com.microsoft:FusedConv."""

from __future__ import annotations

import math

from ortconv.ir.graph import Attribute, Floats, Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.pattern import C, Match, P

LARGEST_FLOAT = 3.4028234663852886e38

ACTIVATION_PARAMETERS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
"""Activations that FusedConv can apply, beside Clip, with the attributes that become `activation_params`."""


def activation_attributes(node: Node) -> dict[str, Attribute] | None:
    """The attributes by which FusedConv applies what this node does to its first input; None if it cannot."""
    if node.op == "Clip":
        bounds = clip_bounds(node)
        return None if bounds is None else {"activation": "Clip", "activation_params": Floats(bounds)}
    names = ACTIVATION_PARAMETERS.get(node.op)
    if names is None or len(node.inputs) != 1:
        return None
    attrs: dict[str, Attribute] = {"activation": node.op}
    if names:
        attrs["activation_params"] = Floats(float(attribute(node, name)) for name in names)
    return attrs


def clip_bounds(node: Node) -> tuple[float, float] | None:
    """The bounds of a float Clip, from attributes or inputs; None unless they are constant numbers."""
    assert node.graph is not None
    if node.graph.opset() < 11:
        low, high = float(node.attr("min", -LARGEST_FLOAT)), float(node.attr("max", LARGEST_FLOAT))
    else:
        found = [_bound(node.input(1), -LARGEST_FLOAT), _bound(node.input(2), LARGEST_FLOAT)]
        if found[0] is None or found[1] is None:
            return None
        low, high = found[0], found[1]
    return None if math.isnan(low) or math.isnan(high) else (low, high)


def _bound(value: Value | None, default: float) -> float | None:
    if value is None:
        return default
    constant = value.constant
    return float(constant.item()) if constant is not None and constant.size == 1 else None


def is_float(value: Value | None) -> bool:
    return value is not None and value.dtype is DType.FLOAT


_CONV = P("Conv", ..., name="conv")


@rule(
    "ConvActivationFusion",
    P(tuple(ACTIVATION_PARAMETERS), _CONV),
    P("Clip", _CONV, C("low", optional=True), C("high", optional=True)),
)
def fuse_conv_activation(m: Match) -> Replacement:
    "act(Conv(x, w, b))  ->  FusedConv(x, w, b)"
    attrs = activation_attributes(m.root)
    if attrs is None or not is_float(m.conv.input(0)):
        return None
    m.graph.opsets.setdefault("com.microsoft", 1)
    return New(
        "FusedConv",
        m.conv.inputs,
        {**m.conv.attrs, **attrs},
        domain="com.microsoft",
        types=[m.root.out.type],
        like=m.conv,
    )


PASSES = (RulePass("ConvActivationFusion", fuse_conv_activation),)
