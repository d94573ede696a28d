"""The passes for quantized models, in order. Other models do not import them."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.quantizers import QUANTIZE, QUANTIZERS

_SELECTOR = "QDQSelectorActionTransformer"
_TO_FLOAT = (MICROSOFT, "MatMulIntegerToFloat")

PASSES = (
    Pass("ClipQuantRewrite", "extended.qdq.drop:drop_clip", *QUANTIZE),
    Pass("ReluQuantRewrite", "extended.qdq.drop:drop_relu", *QUANTIZE),
    Pass("QDQS8ToU8Transformer", "extended.qdq.signed:shift_activations", *QUANTIZERS),
    Pass("QDQPropagation", "extended.qdq.propagation:propagate_further", *QUANTIZERS),
    Pass(_SELECTOR, "extended.qdq.elementwise:BETWEEN_QUANTIZERS", *QUANTIZE, "Split", "ArgMax", also=QUANTIZERS),
    Pass("WhereDummyDq", "extended.qdq.elementwise:fuse_where_number", *QUANTIZE),
    Pass(_SELECTOR, "extended.qdq.signed:fuse_products", *QUANTIZERS),
    Pass(_SELECTOR, "extended.qdq.nbits:BEHIND_DEQUANTIZE", "Gemm", "MatMul", also=QUANTIZERS),
    Pass("MatMulIntegerToFloatFusion", "extended.qdq.dynamic:TO_FLOAT", "MatMulInteger", _TO_FLOAT),
    Pass("DynamicQuantizeMatMulFusion", "extended.qdq.dynamic:fuse_quantization", _TO_FLOAT),
    Pass("MatMulNBitsFusion", "extended.qdq.nbits:fuse_bias", (MICROSOFT, "MatMulNBits")),
    Pass("QDQFinalCleanupTransformer", "extended.qdq.drop:cancel_pair", *QUANTIZE),
)

UNSIGNED_WEIGHTS = Pass("Avx2WeightS8ToU8Transformer", "extended.qdq.unsigned_weights:make_unsigned")

SHARED = Pass("QDQS8ToU8Shared", "extended.qdq.signed:shift_shared_activations", *QUANTIZERS, inexact=True)
OPT_IN = (SHARED, UNSIGNED_WEIGHTS)
"""Passes that run only on request."""
