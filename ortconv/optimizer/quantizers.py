"""The vocabulary of passes for quantized models: which nodes are quantizers, and their types and scales."""

from __future__ import annotations

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType

DOMAINS = ("", MICROSOFT)
"""Domains that have QuantizeLinear and DequantizeLinear."""

OPS = ("QuantizeLinear", "DequantizeLinear")
QUANTIZERS = tuple((domain, op) for domain in DOMAINS for op in OPS)

BYTES = frozenset({DType.UINT8, DType.INT8})
INTEGERS = BYTES | {DType.UINT16, DType.INT16}

SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
"""With a scale in this range nothing underflows or overflows: quantizing the dequantized x results in exactly x."""


def is_quantizer(node: Node | None, op: str) -> bool:
    return node is not None and node.op == op and node.domain in DOMAINS


def is_single(value: Value | None) -> bool:
    """True for an absent parameter, or one with a single element for the whole tensor."""
    return value is None or value.static_shape in ((), (1,))
