"""Arithmetic with broadcasting: ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, PRELU, SELECT."""

from __future__ import annotations

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import activate, requantize, scale_by
from ortconv.nnapi.operations.checks import rank_at_most
from ortconv.nnapi.operations.shapes import broadcast_ab
from ortconv.nnapi.operations.table import Call, operation

LEFT_SHIFT = 20  # bits of headroom that quantized sums are computed with


def quantized_sum(c: Call, sign: int) -> Array:
    """Both sides brought to twice the larger scale, added, and scaled to the output."""
    twice = 2 * max(c.a.scale, c.b.scale)
    a = scale_by(c.a.centred << LEFT_SHIFT, c.a.scale / twice)
    b = scale_by(c.b.centred << LEFT_SHIFT, c.b.scale / twice)
    return requantize(a + sign * b, twice / ((1 << LEFT_SHIFT) * c.out.scale), c.out, c.activation)


@operation(
    "ADD", "a:T b:T activation:i", types="F Q H@3 S@4 I@4", infer=broadcast_ab,
    checks=(rank_at_most(4, "a", "b"),), zero_sized=True,
)  # fmt: skip
def add(c: Call) -> Array:
    if c.out.is_quantized:
        return quantized_sum(c, 1)
    return activate(c.a.array + c.b.array, c.activation)
