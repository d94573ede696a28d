"""The passes for quantized models, in order. Other models do not import them."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.passes import FunctionPass, LaterFunction, LaterPass
from ortconv.optimizer.tracking import Operator

_DOMAINS = ("", MICROSOFT)
_QUANTIZERS = tuple((domain, op) for domain in _DOMAINS for op in ("QuantizeLinear", "DequantizeLinear"))


def _rules(module: str, name: str, *operators: str, also: tuple[Operator, ...] = _QUANTIZERS) -> LaterPass:
    return LaterPass(f"{__name__}.{module}", name, *operators, domains=_DOMAINS, also=also)


def _signed(name: str) -> FunctionPass:
    return FunctionPass(name, LaterFunction(f"{__name__}.signed", name), operators=_QUANTIZERS)


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
