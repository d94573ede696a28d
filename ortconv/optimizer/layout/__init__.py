"""The layout level: layouts that the CPU provider is fastest with, and fusions that come after them."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.layout import conv_add, nchwc, nhwc, prelu

PASSES: tuple[FunctionPass | RulePass, ...] = (*nhwc.PASSES, *prelu.PASSES, *conv_add.PASSES, *nchwc.PASSES)
