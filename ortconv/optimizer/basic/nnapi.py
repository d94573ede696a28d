"""Equal forms of nodes on which ONNX Runtime's NNAPI provider ends the process, or fails to create a session."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.ir.operands import constant_of, is_only_quantized
from ortconv.ir.resize import OPTIONAL_SCALES, scales_between
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import array_of
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.quantizers import QUANTIZERS


@rule("EmptyScalesElimination", P("Resize", "x", ..., where=lambda node: node.opset >= 11))
def state_scales(m: Match) -> Replacement:
    """Resize(x, roi, {}, sizes)  ->  Resize(x, roi, , sizes), or with the scales of these sizes in operator sets 11 and 12

    Counterpart: none: the CPU provider accepts empty scales
    Opt-in: runs with --use-nnapi, since the NNAPI provider reads scales that are not there.
    """
    node = m.root
    scales = constant_of(node.input(2))
    if scales is None or scales.size or node.input(3) is None:
        return None
    if node.opset >= OPTIONAL_SCALES:
        return New("Resize", [m.x, node.input(1), None, node.input(3)], node.attrs, like=node)
    before, after = m.x.static_shape, node.out.static_shape
    stated = None if before is None or after is None else scales_between(before, after)
    return None if stated is None else New("Resize", [m.x, node.input(1), stated], node.attrs, like=node)


_ONE = partial(C, one=True)
_PARAMETERS = (_ONE("scale"), _ONE("zero", optional=True))


@rule("ScalarParameters", *(P(op, "x", *_PARAMETERS, domain=domain) for domain, op in QUANTIZERS))
def make_scalar(m: Match) -> Replacement:
    """QuantizeLinear(x, scale, zero point) with parameters of shape (1,)  ->  the same with scalars; also DequantizeLinear

    Counterpart: none
    Opt-in: runs with --use-nnapi, since the NNAPI provider takes a Relu or Clip into a quantized unit only if it knows by scalars
        that the integers imply it. PyTorch exports networks that were trained for quantization with shape (1,).
    """
    given = m.values("scale", "zero")
    if m.root.attr("block_size", 0) or all(v.rank == 0 for v in given) or any(v.rank not in (0, 1) for v in given):
        return None
    attrs = {name: value for name, value in m.root.attrs.items() if name != "axis"}
    scalars = [array_of(v).reshape(()) for v in given]
    return New(m.root.op, [m.x, *scalars], attrs, domain=m.root.domain, like=m.root, types=(m.root.out.type,))


_WEIGHTS = P("DequantizeLinear", C("w"), C("scale"), ..., name="dq")


@rule("SignedGemmRewrite", P("Gemm", P("DequantizeLinear", ...), _WEIGHTS, ...))
def rewrite_signed_gemm(m: Match) -> Replacement:
    """Gemm<transB=1>(a, DequantizeLinear(w))  ->  Gemm(a, DequantizeLinear(w transposed)), for int8 w and dequantized a

    If w is square with a scale for each channel, it becomes Gemm(a, Identity(DequantizeLinear(w))), no quantized group.

    Counterpart: none: the CPU provider accepts both
    Opt-in: runs with --use-nnapi, since the NNAPI provider cannot compile the first form.
    """
    gemm, dq, w = m.root, m.node("dq"), m.w.constant
    if w is None or w.dtype is not DType.INT8 or w.rank != 2 or dq.attr("block_size", 0):
        return None
    a, b, *c = gemm.inputs
    by_channel = m.scale.constant is None or m.scale.constant.size != 1
    if by_channel and w.shape[0] == w.shape[1]:
        return New("Gemm", [a, New("Identity", [b]), *c], gemm.attrs, like=gemm)
    if not gemm.attr("transB", 0):
        return None
    attrs = dq.attrs | {"axis": 1 - dq.attr("axis", 1) % 2} if by_channel else dq.attrs
    weights = New("DequantizeLinear", [np.ascontiguousarray(w.numpy().T), *dq.inputs[1:]], attrs)
    return New("Gemm", [a, weights, *c], gemm.attrs | {"transB": 0}, like=gemm)


@rule("PadSeparation", P("Pad", ...))
def separate_pad(m: Match) -> Replacement:
    """QuantizeLinear(Pad(x))  ->  QuantizeLinear(Identity(Pad(x))), also with a Clip or Relu before QuantizeLinear

    Counterpart: none: the CPU provider accepts both
    Opt-in: runs with --use-nnapi, since the NNAPI provider looks for a DequantizeLinear before such a Pad and checks no end.
    """
    node = m.root
    return New("Identity", [New("Pad", node.inputs, node.attrs, like=node)]) if is_only_quantized(node) else None
