"""Quantizes weights and biases of operators whose data is already quantized."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import constant_of, quantizer_of_result
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.qdq import PER_AXIS, reversible
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import as_int32, dequantizer_like, is_quantizer

LARGEST_CODE = 127


@rule("WeightBiasQuantization", P(("Conv", "ConvTranspose", "Gemm"), "x", "w", "b?"))
def quantize_weights(m: Match) -> Replacement:
    """Q(Conv(DQ(x), w, b))  ->  Q(Conv(DQ(x), DQ(w'), DQ(b'))) with w' int8 and b' int32; also ConvTranspose, Gemm

    Counterpart: WeightBiasQuantization (on by default there, as part of basic)
    Differs: int8 is symmetric, with a scale for each output channel of a Conv from opset 13 on, while ONNX Runtime has
        one scale and a zero point for the whole weight; refused if a bias would not fit int32.
    Opt-in: rounds weights to 8 bits, which changes results by more than rounding.
    """
    root, source, alpha = m.root, m.x.producer, m.root.attr("alpha", 1.0)
    scale = _scale(source)
    if source is None or scale is None or scale.size != 1 or quantizer_of_result(root) is None or alpha <= 0:
        return None
    weight = _existing(m.w, root) or _quantized(m.w, root, source.domain)
    if weight is None:
        return None
    w, scales = weight
    bias: list[NewInput] = [] if m.b is None else [m.b]
    if constant_of(m.b) is not None:
        unit = np.asarray(scale.reshape(()) * scales * alpha, np.float32)
        bias = [_quantized_bias(m.b, unit, root, source.domain)]
    if None in bias or [w, *bias] in ([m.w], [m.w, m.b]):
        return None
    return New(root.op, [m.x, w, *bias], like=root)


def _scale(source: Node | None) -> Array | None:
    """The constant scales of a DequantizeLinear that quantization reverses exactly; None for any other node."""
    found = reversible(source) if source is not None and is_quantizer(source, "DequantizeLinear") else None
    const = None if found is None else found.scale.constant
    return None if const is None else const.numpy()


def _existing(w: Value, node: Node) -> tuple[NewInput, Array] | None:
    """A weight that is already quantized, and its scales: one, or one for each output channel of a Conv."""
    source, scale = w.producer, _scale(w.producer)
    if source is None or scale is None:
        return None
    if scale.size > 1 and (node.op != "Conv" or source.attr("axis", 1) != 0):
        return None
    return w, scale.reshape(-1 if scale.size > 1 else ())


def _quantized(w: Value, node: Node, domain: str) -> tuple[NewInput, Array] | None:
    """A constant weight, quantized and with a DequantizeLinear of its own, and its scales."""
    if w.constant is None or w.dtype is not DType.FLOAT:
        return None
    weights = w.constant.numpy()
    if not weights.size or not np.all(np.isfinite(weights)):
        return None
    by_channel = node.op == "Conv" and domain == "" and node.opset >= PER_AXIS
    axes = tuple(range(1 if by_channel else 0, weights.ndim))
    largest = np.max(np.abs(weights), axis=axes, keepdims=True)
    divisor = np.asarray(np.where(largest > 0, largest, 1) / np.float32(LARGEST_CODE), np.float32)
    if np.any(divisor < np.finfo(np.float32).tiny):
        return None
    scales = divisor.reshape(-1 if by_channel else ())
    codes = np.clip(np.rint(weights / divisor), -LARGEST_CODE, LARGEST_CODE).astype(np.int8)
    return dequantizer_like(w, [codes, scales, np.zeros(scales.shape, np.int8)], domain), scales


def _quantized_bias(b: Value, unit: Array, node: Node, domain: str) -> NewInput:
    """A constant bias, quantized and with a DequantizeLinear of its own; None if it cannot be quantized."""
    const = b.constant
    if const is None or const.dtype is not DType.FLOAT or node.attr("beta", 1.0) != 1 or not np.all(unit > 0):
        return None
    codes = as_int32(const.numpy(), unit)
    return None if codes is None else dequantizer_like(b, [codes, unit], domain)
