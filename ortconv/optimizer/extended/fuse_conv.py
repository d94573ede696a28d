"""Conv followed by an activation becomes com.microsoft:FusedConv."""

from __future__ import annotations

import math

from ortconv.ir.graph import Attribute, Floats, Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import clip_bounds
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
        if bounds is None or any(b is not None and math.isnan(b) for b in bounds):
            return None
        low = -LARGEST_FLOAT if bounds[0] is None else bounds[0]
        high = LARGEST_FLOAT if bounds[1] is None else bounds[1]
        return {"activation": "Clip", "activation_params": Floats((low, high))}
    names = ACTIVATION_PARAMETERS.get(node.op)
    if names is None or len(node.inputs) != 1:
        return None
    attrs: dict[str, Attribute] = {"activation": node.op}
    if names:
        attrs["activation_params"] = Floats(float(attribute(node, name)) for name in names)
    return attrs


def is_float(value: Value | None) -> bool:
    return value is not None and value.dtype is DType.FLOAT


_CONV = P("Conv", ..., name="conv")


@rule(
    "ConvActivationFusion",
    P(tuple(ACTIVATION_PARAMETERS), _CONV),
    P("Clip", _CONV, C("low", optional=True), C("high", optional=True)),
)
def fuse_conv_activation(m: Match) -> Replacement:
    """act(Conv(x, w, b))  ->  FusedConv(x, w, b)

    Counterpart: ConvActivationFusion
    """
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
