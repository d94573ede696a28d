"""The layout level: fusions that pay on the CPU provider whatever the machine."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass

PASSES: tuple[FunctionPass | RulePass, ...] = ()
