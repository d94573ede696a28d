"""The layout level: layouts for which the CPU provider is fastest, and fusions that follow them."""

from __future__ import annotations

from ortconv.optimizer.extended import RESIZES
from ortconv.optimizer.layout import conv_add, nchwc
from ortconv.optimizer.passes import FunctionPass, LaterFunction, LaterPass, RulePass

PASSES: tuple[FunctionPass | RulePass, ...] = (
    FunctionPass("NhwcTransformer", LaterFunction(f"{__name__}.nhwc"), operators=(("", "QLinearConv"),)),
    LaterPass(f"{__name__}.resize", "LinearResizeOfBytes", "Resize"),
    RESIZES,  # again: LinearResizeOfBytes makes Resizes of floats
    LaterPass(f"{__name__}.prelu", "PReluFusion", "PRelu"),
    *conv_add.PASSES,
    *nchwc.PASSES,
)
