"""The layout level: layouts for which the CPU provider is fastest, and fusions that follow them."""

from __future__ import annotations

from ortconv.optimizer.layout import conv_add, nchwc
from ortconv.optimizer.passes import FunctionPass, LaterFunction, LaterPass, RulePass

PASSES: tuple[FunctionPass | RulePass, ...] = (
    FunctionPass("NhwcTransformer", LaterFunction(f"{__name__}.nhwc"), operators=(("", "QLinearConv"),)),
    LaterPass(f"{__name__}.resize", "LinearResizeOfBytes", "Resize"),
    FunctionPass(
        "CubicOperatorSet", LaterFunction(f"{__name__}.resize", "CubicOperatorSet"), operators=(("", "Resize"),)
    ),
    LaterPass(f"{__name__}.resize", "CubicUpsampling", "Resize"),
    FunctionPass(
        "ChannelsLastResize",
        LaterFunction(f"{__name__}.channels_last_resize"),
        once=True,
        operators=(("", "Resize"), ("", "Upsample")),
        also=(("", "Transpose"),),
    ),
    LaterPass(f"{__name__}.prelu", "PReluFusion", "PRelu"),
    *conv_add.PASSES,
    *nchwc.PASSES,
)
