"""Fuses convolutions and matrix products on 8-bit integers into QLinearConv, QLinearMatMul, QGemm and MatMulIntegerToFloat."""

from __future__ import annotations

from functools import partial

from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, NewInput, Replacement, Rule, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import (
    BYTES,
    Quantized,
    constant_reals,
    dequantized,
    is_in_unit,
    is_scaled_along,
    microsoft,
    quantize_patterns,
    quantizer,
    rounded_bias,
    scale_of_sum,
    zero_points,
)


def _fits(x: Quantized | None, w: Quantized | None, y: Quantized | None, signed: bool) -> bool:
    """True for types that the integer kernels support and are fast with: uint8 times either 8-bit type; if `signed`,
    also int8 times int8; and a result of the first one's type.
    """
    if x is None or w is None or w.dtype not in BYTES or not x.is_per_tensor:
        return False
    if x.dtype is not DType.UINT8 and not (signed and x.dtype is w.dtype is DType.INT8):
        return False
    return y is None or (y.dtype is x.dtype and y.is_per_tensor)


def _filters_fit(w: Quantized) -> bool:
    """True for one scale, or one per filter, with a single zero point: QLinearConv takes no others."""
    zero = zero_points(w)
    return is_scaled_along(w, 0) and (w.is_per_tensor or (zero is not None and bool((zero == zero[0]).all())))


def _bias(value: Value | None, reader: Node, unit: Array | None, y: Quantized | None) -> list[NewInput] | None:
    """A bias along the last axis as int32 with the scale `unit`, in a list; [] if it is absent. None if integers cannot express it.

    A constant is rounded, if that is far below y's scale.
    """
    if value is None or unit is None:
        return [] if value is None else None
    q = dequantized(value, reader)
    if q is not None and is_in_unit(q, unit):
        return [q.value]
    reals = constant_reals(value, reader)
    integers = None if reals is None else rounded_bias(reals, unit, y)
    return None if integers is None else [integers]


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Conv", ..., name="target")))
def fuse_conv(m: Match, signed: bool = False) -> Replacement:
    "Q(Conv(DQ(x), DQ(w), DQ(b)))  ->  QLinearConv(x, w, b)"
    target = m.node("target")
    x, w, y = _operands(target, m.root)
    if x is None or w is None or y is None or not _fits(x, w, y, signed) or not _filters_fit(w):
        return None
    bias = _bias(target.input(2), m.root, scale_of_sum(x, w), y)
    return None if bias is None else New("QLinearConv", [*x.operand, *w.operand, *y.parameters, *bias], like=target)


def _operands(target: Node, reader: Node) -> tuple[Quantized | None, Quantized | None, Quantized | None]:
    """The quantized inputs 0 and 1 of a target and, if the reader quantizes, the result."""
    y = quantizer(reader) if reader is not target else None
    return dequantized(target.input(0), reader), dequantized(target.input(1), reader), y


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("MatMul", "a", "b", name="target")))
def fuse_matmul(m: Match, signed: bool = False) -> Replacement:
    "Q(MatMul(DQ(a), DQ(b)))  ->  QLinearMatMul(a, b)"
    target = m.node("target")
    a, b, y = _operands(target, m.root)
    if a is None or b is None or y is None or not _fits(a, b, y, signed) or not _columns_fit(b, -1):
        return None
    return New("QLinearMatMul", [*a.operand, *b.operand, *y.parameters], like=target)


def _columns_fit(b: Quantized, axis: int) -> bool:
    """True for one scale per tensor, or for a matrix with one scale per column, along `axis`."""
    return b.is_per_tensor or (b.value.rank == 2 and is_scaled_along(b, axis))


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Gemm", ..., name="target")))
def fuse_gemm(m: Match, signed: bool = False) -> Replacement:
    "Q(Gemm(DQ(a), DQ(b), DQ(c)))  ->  QGemm(a, b, c)"
    return _gemm(m.node("target"), m.root, signed)


def _gemm(target: Node, reader: Node, signed: bool) -> Replacement:
    a, b, y = _operands(target, reader)
    trans_a, trans_b, alpha = target.attr("transA", 0), target.attr("transB", 0), target.attr("alpha", 1.0)
    if a is None or b is None or (y is None) != (reader is target) or not _fits(a, b, y, signed):
        return None
    if not _columns_fit(b, 0 if trans_b else -1):
        return None
    if target.input(2) is not None and (alpha != 1 or target.attr("beta", 1.0) != 1):
        return None
    bias = _bias(target.input(2), reader, scale_of_sum(a, b), y)
    if bias is None:
        return None
    behind = bias if y is None else [*(bias or [None]), *y.parameters]
    attrs = {"alpha": float(alpha), "transA": trans_a, "transB": trans_b}
    return microsoft("QGemm", [*a.operand, *b.operand, *behind], target, attrs)


@rule("QDQSelectorActionTransformer", P("Gemm", ...))
def fuse_gemm_to_float(m: Match, signed: bool = False) -> Replacement:
    "Gemm(DQ(a), DQ(b), DQ(c))  ->  QGemm(a, b, c) in float32"
    return _gemm(m.root, m.root, signed)


@rule("QDQSelectorActionTransformer", P("MatMul", "a", "b"))
def fuse_matmul_to_float(m: Match, signed: bool = False) -> Replacement:
    "MatMul(DQ(a), DQ(b))  ->  MatMulIntegerToFloat(a, b)"
    a, b, _ = _operands(m.root, m.root)
    if a is None or b is None or not _fits(a, b, None, signed) or not _columns_fit(b, -1):
        return None
    return microsoft("MatMulIntegerToFloat", [a.value, b.value, a.scale, b.scale, a.zero, b.zero], m.root)


RULES = fuse_conv + fuse_matmul + fuse_gemm
FLOAT_RULES = fuse_gemm_to_float + fuse_matmul_to_float
"""Rules for results that are not quantized; they come after the others."""

GEMM_RULES = fuse_gemm + fuse_gemm_to_float


def with_signed(r: Rule) -> Rule:
    """The variant of a rule of this module for ARM, where int8 times int8 is as fast."""
    return r._replace(build=partial(r.build, signed=True))  # type: ignore[call-arg]
