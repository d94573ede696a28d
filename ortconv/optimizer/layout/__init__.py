"""The layout level: fusions that pay on the CPU provider whatever the machine."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.layout import conv_add

PASSES: tuple[FunctionPass | RulePass, ...] = conv_add.PASSES
