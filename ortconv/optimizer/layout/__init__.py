"""The layout level: layouts for which the CPU provider is fastest, and fusions that follow them."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.extended import RESIZES, SCALARS
from ortconv.optimizer.passes import Pass

CONVS = ("Conv", (MICROSOFT, "FusedConv"))

PASSES = (
    Pass("NhwcTransformer", "layout.nhwc:convert_regions", "QLinearConv"),
    Pass("LinearResizeOfBytes", "layout.resize:resize_as_float", "Resize"),
    RESIZES,  # again: LinearResizeOfBytes makes Resizes of floats
    Pass("PReluFusion", "layout.prelu", "PRelu"),
    Pass("ConvAddActivationFusion", "layout.conv_add", *CONVS),
    Pass("NchwcTransformer", "layout.nchwc:block_channels", *CONVS),
    SCALARS,  # again: a single channel may be the last axis now
)
