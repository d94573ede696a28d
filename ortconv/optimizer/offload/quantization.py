"""Quantized operators in forms that NNAPI supports: as another quantized operator, or in float between quantizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operands import axes_of, producer_of, quantized_slots, quantizer_of_result
from ortconv.ir.operators import MICROSOFT, Trait, named
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.channel_scales import common_scale, scales_of_channels, single_parameters
from ortconv.optimizer.basic.nnapi import rewrite_signed_gemm
from ortconv.optimizer.conditions import are_numbers, is_plain_gemm
from ortconv.optimizer.engine import New, NewInput, Out, Replacement, in_place_of, rule
from ortconv.optimizer.offload.convolution import attributes_of_one_row
from ortconv.optimizer.offload.parts import is_float, op, reshape, shape_of
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.qdq_forms import OLDEST, QDQ_FORMS, dequantize, matmul_between_quantizers, quantize
from ortconv.optimizer.quantizers import BYTES, is_implied, is_scaled_along, quantized, quantizer, same_parameters

FLOAT_OPS = named(
    Trait.QDQ, Trait.DQ,
    but=("Conv",  # too slow in float
         "Split",  # has its own rule
         "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",  # return no quantized values
         # accelerators do not support these in float either
         "Asin", "Atan", "CumSum", "GatherElements", "GridSample", "LpNormalization", "ReduceProd", "RMSNormalization",
         "Round", "ScatterElements", "Sign", "TopK", "Where"),
)  # fmt: skip
"""Operators between quantizers that accelerators may support in float."""


_MOVERS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "MaxPool", "Slice", "Split", "Resize")
"""Operators whose results consist of elements of input 0."""

_LOOKUPS = ("Gather", "GatherElements", "GatherND")

_DQ = P("DequantizeLinear", "q", "scale", "zero", name="dq")
_WEIGHTS = P("DequantizeLinear", "w", ..., name="weights")


@rule("QDQReshapes", P("QuantizeLinear", P(("Flatten", "Squeeze", "Unsqueeze"), _DQ, ..., name="move"), "s", "z"))
def quantized_reshape(m: Match) -> Replacement:
    """QuantizeLinear(Flatten(DequantizeLinear(q)))  ->  the same around a Reshape; also Squeeze and Unsqueeze

    Counterpart: none: ONNX Runtime drops the quantizers
    Opt-in: useful only for an accelerator that supports only Reshape of these in 8 bits.
    """
    move = m.node("move")
    shape = move.out.static_shape
    if shape is None or 0 in shape or move.domain:
        return None
    return New("QuantizeLinear", [reshape(m.node("dq").out, shape), m.s, m.z], like=m.root)


def _requantized(x: NewInput, scale: Value, zero: Value) -> New:
    return op("DequantizeLinear", op("QuantizeLinear", x, scale, zero), scale, zero)


def _between_reshapes(m: Match, node: Callable[[New], New], before: Sequence[int], after: Sequence[int]) -> New:
    """A quantized unit of another operator, which `node` makes of its input, for another shape of input and result."""
    source = _requantized(reshape(m.node("dq").out, before), m.scale, m.zero)
    result = _requantized(node(source), m.s, m.z)
    return New("QuantizeLinear", [reshape(result, after), m.s, m.z], like=m.root)


@rule("QDQMatMulToRows", P("QuantizeLinear", P("MatMul", _DQ, _WEIGHTS, name="product"), "s", "z"))
def quantized_rows(m: Match) -> Replacement:
    """MatMul(a, b) between quantizers  ->  MatMul of matrices between Reshapes, all of them between quantizers, for constant b

    Opt-in: more nodes; useful only if an accelerator supports only matrices.
    """
    weights, left = m.node("weights"), shape_of(m.node("dq").out)
    right = shape_of(weights.out)
    if left is None or right is None or len(left) < 3 or len(right) != 2:
        return None
    if m.w.constant is None or not are_numbers((m.scale, m.zero, m.s, m.z), 1):
        return None

    def product(rows: New) -> New:
        return New("MatMul", [rows, weights.out], like=m.node("product"))

    return _between_reshapes(m, product, (math.prod(left[:-1]), left[-1]), (*left[:-1], right[1]))


def _between_quantizers(*ops: str) -> Iterator[P]:
    """Patterns of a product before a QuantizeLinear, perhaps with a Relu or Clip in between; the bias may be quantized."""
    for bias in (P("DequantizeLinear", ..., shared=True), "b?"):
        product = P(ops, _DQ, _WEIGHTS, bias, name="product")
        limited = P(("Relu", "Clip"), product, ..., name="clamp")
        yield from (P("QuantizeLinear", x, "s", "z") for x in (product, limited))


def _limited(m: Match, result: New) -> New:
    """The result behind the Relu or Clip of the matched unit, if it has one."""
    clamp = m.optional_node("clamp")
    return result if clamp is None else New(clamp.op, [result, *clamp.inputs[1:]], like=clamp)


@rule("QDQProductToConv", *_between_quantizers("MatMul", "Gemm"))
def quantized_product(m: Match) -> Replacement:
    """MatMul(a, b) between quantizers, with a scale for each column of b  ->  Conv on images of one pixel, also Gemm

    Opt-in: more nodes; useful only if an accelerator supports scales for each channel only in convolutions.
    """
    product, left, filters = m.node("product"), shape_of(m.node("dq").out), _filters(m)
    if filters is None or left is None or len(left) < 2:
        return None
    if product.op == "Gemm" and (not is_plain_gemm(product) or any(v.rank != 1 for v in product.present_inputs[2:])):
        return None
    weights = op("DequantizeLinear", filters, *m.node("weights").inputs[1:], axis=0)
    bias: list[NewInput] = [_of_channels(v) for v in product.present_inputs[2:]]

    def conv(pixels: New) -> New:
        return _limited(m, New("Conv", [pixels, weights, *bias], {}, like=product))

    return _between_reshapes(m, conv, (math.prod(left[:-1]), left[-1], 1, 1), (*left[:-1], len(filters)))


def _of_channels(bias: Value) -> NewInput:
    """The bias of a product as that of a convolution. Some tools state axis 1 for its scales, which only a Gemm ignores."""
    dq = producer_of(bias, "DequantizeLinear")
    return bias if dq is None else New("DequantizeLinear", dq.inputs, {"axis": 0}, like=dq)


def _filters(m: Match) -> Array | None:
    """Constant weights of a product as filters of one pixel; None unless they have a scale for each column, and the data one."""
    b, columns_first = quantized(m.node("weights")), bool(m.node("product").attr("transB", 0))
    if b is None or b.is_per_tensor or not is_scaled_along(b, 0 if columns_first else 1):
        return None
    if m.w.constant is None or m.w.rank != 2 or not are_numbers((m.scale, m.zero, m.s, m.z), 1):
        return None
    matrix = m.w.constant.numpy()
    return np.ascontiguousarray((matrix if columns_first else matrix.T)[..., None, None])


@rule("QDQConv1DToConv2D", *_between_quantizers("Conv"))
def quantized_row(m: Match) -> Replacement:
    """Conv along one axis between quantizers  ->  Conv of images of one row between Reshapes, all of them between quantizers

    Opt-in: more nodes; useful only if an accelerator supports only images.
    """
    node = m.node("product")
    before, after = shape_of(m.node("dq").out), shape_of(node.out)
    if before is None or after is None or len(before) != 3 or m.w.constant is None:
        return None
    if not are_numbers((m.scale, m.zero, m.s, m.z), 1):
        return None
    filters, dq = np.expand_dims(m.w.constant.numpy(), 2), m.node("weights")
    weights = New("DequantizeLinear", [filters, *dq.inputs[1:]], like=dq)

    def conv(rows: New) -> New:
        return _limited(m, New("Conv", [rows, weights, *node.inputs[2:]], attributes_of_one_row(node), like=node))

    return _between_reshapes(m, conv, (*before[:2], 1, before[2]), after)


_STORED = P("DequantizeLinear", ..., shared=True)
_PRODUCTS = [P(("Conv", "Gemm"), _STORED, _STORED, bias, name="product") for bias in (_STORED, "b?")]


@rule("QDQClamps", *(P("QuantizeLinear", P(("Relu", "Clip"), p, ..., name="clamp"), "s", "z") for p in _PRODUCTS))
def quantized_clamp(m: Match) -> Replacement:
    """QuantizeLinear(Relu(Conv))  ->  QuantizeLinear(Relu(DequantizeLinear(QuantizeLinear(Conv)))), also Clip and Gemm

    Opt-in: more nodes; useful only if an accelerator supports no Relu or Clip between a product and its QuantizeLinear.
    """
    y, clamp, product = quantizer(m.root), m.node("clamp"), m.node("product").out
    if y is None or y.dtype not in BYTES or not y.is_per_tensor or is_implied(m.root, clamp):
        return None
    again = New("DequantizeLinear", [op("QuantizeLinear", product, m.s, m.z), m.s, m.z], types=(product.type,))
    limited = New(clamp.op, [again, *clamp.inputs[1:]], like=clamp, types=(product.type,))
    return New("QuantizeLinear", [limited, m.s, m.z], like=m.root)


@rule("QDQScalesOfChannels", P("QuantizeLinear", "x", ...))
def scale_before(m: Match) -> Replacement:
    """QuantizeLinear(x, scales of channels)  ->  QuantizeLinear(x * factors, one scale)

    Opt-in: one more node; useful only if an accelerator quantizes with one scale.
    """
    y, rank = quantizer(m.root), m.x.rank
    scales = None if y is None else scales_of_channels(y)
    if y is None or scales is None or rank is None:
        return None
    scale = common_scale(scales)
    factors = (scale / scales).astype(np.float32).reshape(-1, *(1,) * (rank - 2))
    scaled = New("Mul", [m.x, factors], types=(m.x.type,))
    return New("QuantizeLinear", [scaled, *single_parameters(y, scale)], {}, like=m.root)


WEIGHTS_TO_FLOAT = "QDQWeightsToFloat"


@rule(WEIGHTS_TO_FLOAT, P("DequantizeLinear", C("w"), C("scale"), C("zero", optional=True)))
def float_weights(m: Match) -> Replacement:
    """DequantizeLinear(w) of constants, read by operators that compute in float  ->  w in float

    Opt-in: larger weights; useful only if an accelerator supports no float operators with weights in 8 bits.
    """
    from ortconv.executor.kernels.evaluate import evaluate

    readers = m.root.out.consumers
    if not readers or m.root.out.is_output or not all(map(_is_in_float, readers)):
        return None
    return evaluate(m.root)[0] if is_float(m.root.out) else None


def _is_in_float(node: Node) -> bool:
    """True for an operator of known size, other than a lookup in a table, that belongs to no group between 8-bit quantizers."""
    if node.op in _LOOKUPS or not node.outputs or node.out.static_shape is None:
        return False
    return quantizer_of_result(node) is None or not all(map(_is_from_bytes, node.present_inputs))


def _is_from_bytes(value: Value) -> bool:
    dq = producer_of(value, "DequantizeLinear")
    return value.constant is not None or (dq is not None and dq.dtype(0) in (*BYTES, DType.INT32))


@rule("QDQMeanToPool", P("QuantizeLinear", P(("GlobalAveragePool", "ReduceMean"), _DQ, ..., name="mean"), "s", "z"))
def quantized_mean(m: Match) -> Replacement:
    """Mean of images between quantizers of the same scale  ->  AveragePool of the whole image, perhaps a Reshape, between them

    Counterpart: none: the CPU provider has a kernel for both
    Opt-in: useful only if an accelerator supports only AveragePool of these in 8 bits.
    """
    mean, dq = m.node("mean"), m.node("dq")
    x, y, shape = quantized(dq), quantizer(m.root), shape_of(dq.out)
    if x is None or y is None or shape is None or len(shape) != 4 or not same_parameters(x, y):
        return None
    if mean.op == "ReduceMean" and not _is_of_images(mean):
        return None
    pool = New("AveragePool", [dq.out], {"kernel_shape": Ints(shape[2:])}, like=mean)
    if mean.out.rank != 4:
        pool = reshape(_requantized(pool, m.s, m.z), shape[:2])
    return New("QuantizeLinear", [pool, m.s, m.z], like=m.root)


def _is_of_images(mean: Node) -> bool:
    """True for a ReduceMean of the last two of four axes."""
    return {axis % 4 for axis in axes_of(mean) or ()} == {2, 3}


@rule("QLinearToQDQ", P(tuple(QDQ_FORMS), ..., domain=MICROSOFT), P("QLinearMatMul", ...))
def between_quantizers(m: Match) -> Replacement:
    """QLinearOp(x)  ->  QuantizeLinear(Op(DequantizeLinear(x))), also QLinearMatMul and QGemm

    Counterpart: none: the CPU provider has kernels for the first form
    Opt-in: more nodes; useful only if an accelerator supports an operator between quantizers, or in float.
    """
    return QDQ_FORMS.get(m.root.op, matmul_between_quantizers)(m.root)


@rule("QLinearToQDQ", P(_MOVERS, "x", ..., where=lambda node: node.out.dtype in BYTES))
def mover_between_quantizers(m: Match) -> Replacement:
    """Reshape(x) of integers  ->  QuantizeLinear(Reshape(DequantizeLinear(x))) with the scale that x was made with"""
    node, found = m.root, _scale_behind(m.x)
    if found is None or m.graph.opset() < OLDEST or not all(node.outputs) or (node.op == "MaxPool" and node.output(1)):
        return None
    inputs = [dequantize(m.x, *found), *node.inputs[1:]]
    moved = New(node.op, inputs, node.attrs, like=node, outputs=len(node.outputs))
    parts = tuple(quantize(Out(moved, i) if i else moved, *found) for i in range(len(node.outputs)))
    return parts if len(parts) > 1 else parts[0]


def _scale_behind(x: Value) -> tuple[Value, Value | None] | None:
    """The scale and zero point of integers, from the operator that computed them; None if they are not constant numbers."""
    while (mover := producer_of(x, *_MOVERS)) is not None:
        x = mover.present_inputs[0]
    node = x.producer
    if node is None:
        return None
    slots = quantized_slots(node)
    if slots is None and node.op != "QuantizeLinear":
        return None
    slot = 1 if slots is None else slots.result
    scale, zero = node.inputs[slot], node.input(slot + 1)
    known = [v for v in (scale, zero) if v is not None]
    return (scale, zero) if scale is not None and are_numbers(known, 1) else None


def _apart(node: Node, dq: Node) -> list[NewInput]:
    """The inputs of an operator, with the first one passed through an Identity."""
    return [op("Identity", dq.out), *node.inputs[1:]]


@rule("QDQToFloat", P("QuantizeLinear", P(FLOAT_OPS, P("DequantizeLinear", ..., name="dq"), ..., name="float"), ...))
def in_float(m: Match) -> Replacement:
    """Operator between quantizers  ->  the same after an Identity, which separates it from them, so that it computes in float

    Counterpart: none: CPU kernels compute in 8 bits
    Opt-in: float instead of 8 bits; useful only if an accelerator supports the operator in float only.
    """
    node, dq = m.node("float"), m.node("dq")
    if node.domain or len(node.outputs) != 1 or dq.present_inputs[0].dtype not in (DType.UINT8, DType.INT8):
        return None
    y = New(node.op, _apart(node, dq), like=node, types=[node.out.type])
    return New("QuantizeLinear", [y, *m.root.inputs[1:]], like=m.root)


@rule("QDQToFloat", P("Split", P("DequantizeLinear", ..., name="dq"), ...))
def parts_in_float(m: Match) -> Replacement:
    """Split between quantizers  ->  the same after an Identity"""
    parts, count = m.root.present_outputs, len(m.root.outputs)
    if len(parts) < count or any(user.op != "QuantizeLinear" for v in parts for user, _ in v.uses):
        return None
    y = New("Split", _apart(m.root, m.node("dq")), outputs=count, like=m.root, types=[v.type for v in parts])
    return in_place_of(m.root, y)


RULES = (
    *between_quantizers, *mover_between_quantizers, *quantized_reshape, *quantized_product, *quantized_rows, *quantized_row,
    *quantized_mean, *quantized_clamp, *scale_before, *float_weights, *rewrite_signed_gemm, *in_float, *parts_in_float,
)  # fmt: skip
