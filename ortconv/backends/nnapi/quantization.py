"""QuantizeLinear and DequantizeLinear outside of QDQ groups."""

from __future__ import annotations

from functools import partial

from ortconv.backends.nnapi.builder import Lowering
from ortconv.backends.nnapi.elementwise import unary
from ortconv.nnapi import Operation

LOWERINGS: dict[str, Lowering] = {
    "DequantizeLinear": partial(unary, code=Operation.DEQUANTIZE),
    "QuantizeLinear": partial(unary, code=Operation.QUANTIZE),
}
