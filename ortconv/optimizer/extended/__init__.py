"""The extended level: fusions into operators that ONNX Runtime's CPU provider has."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass

PASSES: tuple[FunctionPass | RulePass, ...] = ()
