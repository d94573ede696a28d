"""Replaces kernels by faster approximations, only on request."""

from __future__ import annotations

from ortconv.ir.operators import INT8, MICROSOFT
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.qdq.nbits import PRODUCTS, fused
from ortconv.optimizer.pattern import Match, P


@rule(
    "GeluApproximation",
    P("Gelu", "x", where=lambda node: node.attr("approximate", "none") == "none"),
    P("Gelu", "x", domain=MICROSOFT),
    P("BiasGelu", "x", "bias", domain=MICROSOFT),
)
def approximate_gelu(m: Match) -> Replacement:
    """Gelu(x)  ->  FastGelu(x), BiasGelu(x, bias)  ->  FastGelu(x, bias), an approximation by tanh

    Counterpart: GeluApproximation (optimization.enable_gelu_approximation)
    Differs: also ONNX's Gelu of opset 20; float32 only.
    Opt-in: differs from the exact function by up to 0.0005.
    """
    if m.x.dtype is not DType.FLOAT:
        return None
    return New("FastGelu", [m.x, *m.values("bias")], domain=MICROSOFT)


@rule(
    "MatMulNBitsAccuracyLevel4",
    P("MatMulNBits", ..., domain=MICROSOFT, where=lambda node: node.attr("accuracy_level", 0) != INT8),
)
def lower_accuracy(m: Match) -> Replacement:
    """MatMulNBits<accuracy_level = any>(a, w)  ->  MatMulNBits<accuracy_level = 4>(a, w), which rounds a to 8 bits

    Counterpart: QDQSelectorActionTransformer (session.qdq_matmulnbits_accuracy_level, 4 by default there)
    Differs: here level 1, which computes in float32, is the default; this pass also changes nodes of the source.
    Opt-in: rounds activations to 8 bits, which changes results by more than rounding.
    """
    return New("MatMulNBits", m.root.inputs, {**m.root.attrs, "accuracy_level": INT8}, domain=MICROSOFT, like=m.root)


@rule("MatMulNBitsAccuracyLevel4", *PRODUCTS)
def fuse_product_of_8_bits(m: Match) -> Replacement:
    """MatMul(a, DQ(w)) with 8-bit w  ->  MatMulNBits<accuracy_level = 4>(a, w); Gemm(a, DQ(w), c)  ->  MatMulNBits(a, w, c)"""
    return fused(m, 8, INT8)


LOWER_ACCURACY = lower_accuracy + fuse_product_of_8_bits
