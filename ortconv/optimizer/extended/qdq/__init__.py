"""The passes for quantized models, in order. Other models do not import them."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.passes import FunctionPass, LaterPass, later_function
from ortconv.optimizer.tracking import Operator

_DOMAINS = ("", MICROSOFT)
_QDQ = ("QuantizeLinear", "DequantizeLinear")
_QUANTIZERS = tuple((domain, op) for domain in _DOMAINS for op in _QDQ)


def _rules(module: str, name: str, *operators: str, also: tuple[Operator, ...] = _QUANTIZERS) -> LaterPass:
    return LaterPass(f"{__name__}.{module}", name, *operators, domains=_DOMAINS, also=also)


def _signed(name: str) -> FunctionPass:
    return later_function(f"{__name__}.signed", name, *_QDQ, domains=_DOMAINS)


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
