"""The layout level: fusions that pay on the CPU provider whatever the machine."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.layout import conv_add, nhwc

PASSES: tuple[FunctionPass | RulePass, ...] = (*nhwc.PASSES, *conv_add.PASSES)
