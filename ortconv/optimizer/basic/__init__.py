"""The basic level: rewrites into standard ONNX operators, right for any execution provider."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass

PASSES: tuple[FunctionPass | RulePass, ...] = ()
