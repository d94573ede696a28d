"""The passes over quantized models, in order."""

from __future__ import annotations

from ortconv.optimizer.engine import RulePass
from ortconv.optimizer.extended import qdq_drop, qdq_dynamic, qdq_elementwise, qdq_nbits, qdq_product, qdq_signed

PASSES = (
    *qdq_drop.CLAMPS,
    qdq_signed.SIGNED,
    RulePass("QDQSelectorActionTransformer", qdq_drop.RULES, qdq_elementwise.RULES, qdq_product.RULES),
    RulePass("WhereDummyDq", qdq_elementwise.NUMBER_RULES),
    qdq_signed.PRODUCTS_OF_SIGNED,
    RulePass("QDQSelectorActionTransformer", qdq_product.FLOAT_RULES, qdq_nbits.RULES),
    *qdq_dynamic.PASSES,
    RulePass("MatMulNBitsFusion", qdq_nbits.BIAS_RULES),
    qdq_drop.CLEANUP,
)
