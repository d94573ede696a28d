"""Fuses Gemm and an activation into com.microsoft:FusedGemm."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.fuse_conv import is_float
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.standard_forms import ACTIVATION_ATTRIBUTES


@rule("GemmActivationFusion", P(tuple(ACTIVATION_ATTRIBUTES), P("Gemm", ..., name="gemm")))
def fuse_gemm_activation(m: Match) -> Replacement:
    """act(Gemm(a, b, c))  ->  FusedGemm(a, b, c)

    Counterpart: GemmActivationFusion
    """
    gemm = m.node("gemm")
    if not is_float(gemm.input(0)):
        return None
    params = {f"activation_{name}": float(attribute(m.root, name)) for name in ACTIVATION_ATTRIBUTES[m.root.op]}
    attrs = {**gemm.attrs, "activation": m.root.op, **params}
    return New("FusedGemm", gemm.inputs, attrs, domain=MICROSOFT, like=gemm)
