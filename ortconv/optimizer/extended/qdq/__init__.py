"""The passes for quantized models, in order."""

from __future__ import annotations

from ortconv.optimizer.extended.qdq import drop, dynamic, elementwise, nbits, product, signed
from ortconv.optimizer.passes import RulePass

PASSES = (
    *drop.CLAMPS,
    signed.SIGNED,
    RulePass("QDQSelectorActionTransformer", drop.RULES, elementwise.RULES, product.RULES),
    RulePass("WhereDummyDq", elementwise.NUMBER_RULES),
    signed.PRODUCTS_OF_SIGNED,
    RulePass("QDQSelectorActionTransformer", product.FLOAT_RULES, nbits.RULES),
    *dynamic.PASSES,
    RulePass("MatMulNBitsFusion", nbits.BIAS_RULES),
    drop.CLEANUP,
)

OPT_IN = (signed.SHARED,)
"""Passes that run only on request."""
