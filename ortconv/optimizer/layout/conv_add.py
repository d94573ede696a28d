"""Fuses Conv and the addition of a tensor of the same shape into com.microsoft:FusedConv with a fourth input."""

from __future__ import annotations

from ortconv.ir.graph import Node
from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.conditions import equal_shapes
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.fuse_conv import activation_attributes, activations, gated, is_float, with_activation
from ortconv.optimizer.pattern import Match, P


@rule("ConvAddActivationFusion", P("Add", P("Conv", ..., name="conv"), "z", commutative=True))
def fuse_conv_add(m: Match) -> Replacement:
    """Conv(x, w, b) + z  ->  FusedConv(x, w, b, z)

    Counterpart: ConvAddActivationFusion
    Differs: also a Conv without bias.
    """
    conv = m.node("conv")
    x, w, b = (conv.input(slot) for slot in range(3))
    if m.z is conv.out or not is_float(x) or m.z.rank != 4 or not equal_shapes(conv.out.shape, m.z.shape):
        return None
    return New("FusedConv", [x, w, b, m.z], domain=MICROSOFT, like=conv)


def _is_plain(conv: Node) -> bool:
    return "activation" not in conv.attrs


_FUSED = P("FusedConv", ..., name="conv", domain=MICROSOFT, where=_is_plain)


@rule("ConvAddActivationFusion", *activations(_FUSED))
def fuse_activation(m: Match) -> Replacement:
    "act(FusedConv(x, w, b, z))  ->  FusedConv<act>(x, w, b, z)"
    attrs = activation_attributes(m.root)
    return None if attrs is None else with_activation(m.node("conv"), attrs)


@rule("ConvAddActivationFusion", gated("FusedConv", MICROSOFT, _is_plain))
def fuse_hard_swish(m: Match) -> Replacement:
    """x * HardSigmoid<1/6, 0.5>(x) with x = FusedConv(...)  ->  FusedConv<HardSwish>"""
    conv = m.node("conv")
    return with_activation(conv, {"activation": "HardSwish"}) if m.node("again") is conv else None
