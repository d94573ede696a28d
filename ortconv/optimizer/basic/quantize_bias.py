"""Quantizes the float biases of quantized units, which NNAPI accepts only in integers."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node
from ortconv.ir.operands import only_reader
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import (
    BYTES,
    Quantized,
    constant_reals,
    dequantized,
    dequantizer_like,
    is_in_unit,
    is_quantizer,
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
    root, source = m.root, m.x.producer
    x, w, y = dequantized(m.x, root), dequantized(m.w, root), _result(root)
    if source is None or x is None or w is None or y is None or not {x.dtype, w.dtype, y.dtype} <= BYTES:
        return None
    columns = 0 if root.op == "Conv" or root.attr("transB", 0) else 1
    if not x.is_per_tensor or not is_scaled_along(w, columns) or not y.is_per_tensor:
        return None
    unit = scale_of_sum(x, w)
    if unit is None or root.attr("alpha", 1.0) != 1 or root.attr("beta", 1.0) != 1:
        return None
    stored, reals = dequantized(m.b, root), constant_reals(m.b, root)
    if reals is None or (stored is not None and is_in_unit(stored, unit)):
        return None
    codes = rounded_bias(reals, unit, y)
    if codes is None:
        return None
    scale = unit.astype(np.float32).reshape(() if unit.size == 1 else -1)
    bias = dequantizer_like(m.b, [codes, scale], source.domain)
    return New(root.op, [m.x, m.w, bias], like=root)


def _result(node: Node) -> Quantized | None:
    """The integers that a QuantizeLinear makes of a result that nothing else reads, perhaps behind a Clip or Relu; else None."""
    reader = only_reader(node.out)
    if reader is not None and (reader.is_op("Relu") or reader.is_op("Clip")):
        reader = only_reader(reader.out)
    return quantizer(reader) if reader is not None and is_quantizer(reader, "QuantizeLinear") else None
