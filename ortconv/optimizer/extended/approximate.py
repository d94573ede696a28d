"""Replaces kernels by faster approximations, only on request."""

from __future__ import annotations

from ortconv.ir.operators import INT8, MICROSOFT
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.qdq.nbits import WEIGHTS, fused, has_plain_bias
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


@rule("MatMulNBitsAccuracyLevel4", *(P("MatMul", "a", w) for w in WEIGHTS))
def fuse_matmul_of_8_bits(m: Match) -> Replacement:
    """MatMul(a, DQ(w)) with 8-bit w  ->  MatMulNBits<accuracy_level = 4>(a, w)"""
    return fused(m, None, 8, INT8)


@rule("MatMulNBitsAccuracyLevel4", *(P("Gemm", "a", w, "c?") for w in WEIGHTS))
def fuse_gemm_of_8_bits(m: Match) -> Replacement:
    """Gemm(a, DQ(w), c) with 8-bit w  ->  MatMulNBits<accuracy_level = 4>(a, w, c)"""
    return fused(m, m.c, 8, INT8) if has_plain_bias(m) else None


LOWER_ACCURACY = lower_accuracy + fuse_matmul_of_8_bits + fuse_gemm_of_8_bits
