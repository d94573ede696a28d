"""The layout level: layouts for which the CPU provider is fastest, and fusions that follow them."""

from __future__ import annotations

from ortconv.optimizer.extended import RESIZES
from ortconv.optimizer.layout import conv_add, nchwc
from ortconv.optimizer.passes import FunctionPass, LaterPass, RulePass, later_function

PASSES: tuple[FunctionPass | RulePass, ...] = (
    later_function(f"{__name__}.nhwc", "NhwcTransformer", "QLinearConv"),
    LaterPass(f"{__name__}.resize", "LinearResizeOfBytes", "Resize"),
    RESIZES,  # again: LinearResizeOfBytes makes Resizes of floats
    LaterPass(f"{__name__}.prelu", "PReluFusion", "PRelu"),
    *conv_add.PASSES,
    *nchwc.PASSES,
)
