"""Quantizes the float biases of quantized units, which NNAPI accepts only in integers."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node
from ortconv.ir.operands import quantizer_of_result
from ortconv.ir.tensor import Array
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import (
    BYTES,
    Quantized,
    constant_reals,
    dequantized,
    dequantizer_like,
    is_in_unit,
    is_scaled_along,
    quantizer,
    rounded_bias,
    scale_of_sum,
)


@rule("BiasQuantization", P(("Conv", "Gemm"), "x", "w", "b"))
def quantize_bias(m: Match) -> Replacement:
    """Q(Conv(DQ(x), DQ(w), b))  ->  Q(Conv(DQ(x), DQ(w), DQ(b'))) with b' int32 in steps of the product of both scales; also Gemm

    Counterpart: WeightBiasQuantization (on by default there, as part of basic)
    Differs: only if a step of the bias is at most an eighth of one of the result.
    Opt-in: runs with --use-nnapi, since the NNAPI provider takes such a unit only with a bias in int32. Exporters of models that
        were trained for quantization, as those of PyTorch, leave biases in float.
    """
    root, result = m.root, quantizer_of_result(m.root)
    y = None if result is None else quantizer(result)
    unit, stored = None if y is None else _unit(root, y), dequantized(m.b, root)
    if unit is None or (stored is not None and is_in_unit(stored, unit)):
        return None
    reals = constant_reals(m.b, root)
    codes = None if reals is None else rounded_bias(reals, unit, y)
    if codes is None or root.attr("alpha", 1.0) != 1 or root.attr("beta", 1.0) != 1:
        return None
    scale = unit.astype(np.float32).reshape(() if unit.size == 1 else -1)
    domain = "" if m.x.producer is None else m.x.producer.domain
    return New(root.op, [m.x, m.w, dequantizer_like(m.b, [codes, scale], domain)], like=root)


def _unit(node: Node, y: Quantized) -> Array | None:
    """The scale of the sums of 8-bit products that a result y is made of; None if NNAPI knows no such unit."""
    x, w = dequantized(node.input(0), node), dequantized(node.input(1), node)
    if x is None or w is None or not {x.dtype, w.dtype, y.dtype} <= BYTES:
        return None
    columns = 0 if node.op == "Conv" or node.attr("transB", 0) else 1
    fits = x.is_per_tensor and y.is_per_tensor and is_scaled_along(w, columns)
    return scale_of_sum(x, w) if fits else None
