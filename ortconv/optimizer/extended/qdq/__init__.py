"""The passes for quantized models, in order. Other models do not import them."""

from __future__ import annotations

from ortconv.optimizer.passes import FunctionPass, LaterPass, later_function
from ortconv.optimizer.quantizers import DOMAINS, OPS, QUANTIZERS
from ortconv.optimizer.tracking import Operator


def _rules(module: str, name: str, *operators: str, also: tuple[Operator, ...] = QUANTIZERS) -> LaterPass:
    return LaterPass(f"{__name__}.{module}", name, *operators, domains=DOMAINS, also=also)


def _signed(name: str) -> FunctionPass:
    return later_function(f"{__name__}.signed", name, *OPS, domains=DOMAINS)


PASSES = (
    _rules("drop", "ClipQuantRewrite", "QuantizeLinear"),
    _rules("drop", "ReluQuantRewrite", "QuantizeLinear"),
    _signed("QDQS8ToU8Transformer"),
    _rules("elementwise", "QDQSelectorActionTransformer", "QuantizeLinear", "Split", "ArgMax"),
    _rules("elementwise", "WhereDummyDq", "QuantizeLinear"),
    _signed("QDQSelectorActionTransformer"),
    _rules("nbits", "QDQSelectorActionTransformer", "Gemm", "MatMul"),
    _rules("dynamic", "MatMulIntegerToFloatFusion", "MatMulInteger", "MatMulIntegerToFloat", also=()),
    _rules("dynamic", "DynamicQuantizeMatMulFusion", "MatMulIntegerToFloat", also=()),
    _rules("nbits", "MatMulNBitsFusion", "MatMulNBits", also=()),
    _rules("drop", "QDQFinalCleanupTransformer", "QuantizeLinear"),
)

OPT_IN = (_signed("QDQS8ToU8Shared"),)
"""Passes that run only on request."""
