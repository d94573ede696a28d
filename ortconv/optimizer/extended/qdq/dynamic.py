"""Fuses products of dynamically quantized tensors into com.microsoft:MatMulIntegerToFloat and DynamicQuantizeMatMul."""

from __future__ import annotations

from ortconv.ir.graph import Value
from ortconv.ir.operands import producer_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import without_absent
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.quantizers import constant_reals, is_single, microsoft

_PRODUCT = P("Cast", P("MatMulInteger", "a", "b", "a_zero?", "b_zero?", name="product"), name="cast")
_INPUTS = ("a", "b", "a_scale", "b_scale", "a_zero?", "b_zero?")
_SCALED = P("MatMulIntegerToFloat", *_INPUTS, name="product", domain=MICROSOFT)


def _is_single_or_columns(value: Value | None, b: Value) -> bool:
    """True for one element, or one for each column of the matrix b."""
    if is_single(value):
        return True
    assert value is not None
    columns = b.dim(-1)
    return b.rank == 2 and isinstance(columns, int) and value.static_shape == (columns,)


@rule("MatMulIntegerToFloatFusion", P("Mul", _PRODUCT, P("Mul", "s", "t", commutative=True), commutative=True))
def fuse_scales(m: Match) -> Replacement:
    """Cast(MatMulInteger(a, b)) * (s * t)  ->  MatMulIntegerToFloat(a, b, s, t)

    Counterpart: MatMulIntegerToFloatFusion
    """
    if m.s.dtype is not DType.FLOAT or (m.a.dtype is DType.INT8 and m.b.dtype is not DType.INT8):
        return None
    quantize = m.a.producer
    if quantize is not None and m.t in quantize.outputs:
        return None
    if not (is_single(m.s) and is_single(m.a_zero)):
        return None
    if not all(_is_single_or_columns(v, m.b) for v in (m.t, m.b_zero)):
        return None
    inputs = [m.a, m.b, m.s, m.t, m.a_zero, m.b_zero]
    return microsoft("MatMulIntegerToFloat", without_absent(inputs), m.node("product"))


@rule("MatMulIntegerToFloatFusion", P("Add", _SCALED, "bias", commutative=True))
def fuse_bias(m: Match) -> Replacement:
    "MatMulIntegerToFloat(a, b) + bias  ->  MatMulIntegerToFloat(a, b, bias), for a constant or a DQ of one"
    product = m.node("product")
    columns, shape = m.b.dim(-1), m.bias.static_shape or ()
    if m.bias.dtype is not DType.FLOAT or not isinstance(columns, int) or len(shape) > (product.out.rank or 0):
        return None
    if not shape or shape != (*(1,) * (len(shape) - 1), columns):
        return None
    reals = constant_reals(m.bias, m.root)
    if reals is None:
        return None
    bias = m.bias if m.bias.constant is not None and len(shape) == 1 else reals.reshape(columns)
    return microsoft("MatMulIntegerToFloat", [*map(product.input, range(6)), bias], product)


_QUANTIZED = P("DynamicQuantizeLinear", "x", name="quantize")
_OTHERS = ("b", "a_scale", "b_scale", "a_zero", "b_zero?", C("bias", optional=True))


@rule("DynamicQuantizeMatMulFusion", P("MatMulIntegerToFloat", _QUANTIZED, *_OTHERS, domain=MICROSOFT))
def fuse_quantization(m: Match) -> Replacement:
    """MatMulIntegerToFloat(DynamicQuantizeLinear(x), b)  ->  DynamicQuantizeMatMul(x, b), also for a dynamically quantized b

    Counterpart: DynamicQuantizeMatMulFusion
    """
    if (m.a_scale, m.a_zero) != tuple(m.node("quantize").outputs[1:3]):
        return None
    weights, maker = [m.b, m.b_scale, m.b_zero], producer_of(m.b, "DynamicQuantizeLinear")
    if any(v is not None and v.constant is None for v in weights) and (maker is None or [*maker.outputs] != weights):
        return None
    return microsoft("DynamicQuantizeMatMul", without_absent([m.x, *weights, m.bias]), m.root)


TO_FLOAT = fuse_scales + fuse_bias
