"""The layout level: layouts for which the CPU provider is fastest, and fusions that follow them."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.layout import conv_add, nchwc, nhwc, prelu

PASSES: tuple[FunctionPass | RulePass, ...] = (*nhwc.PASSES, *prelu.PASSES, *conv_add.PASSES, *nchwc.PASSES)
