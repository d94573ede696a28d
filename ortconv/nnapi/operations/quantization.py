"""QUANTIZE, DEQUANTIZE and CAST."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import quantize as quantized
from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.operations.checks import rank_at_most
from ortconv.nnapi.operations.shapes import like_x
from ortconv.nnapi.operations.table import Call, operation


@operation("QUANTIZE", "x:T", outputs="out:Q|S@4", level=3, types="F H", infer=like_x, zero_sized=True)
def quantize(c: Call) -> Array:
    return quantized(c.x.array, c.out)


@operation(
    "DEQUANTIZE", "x:Q|S8@3|P@3|S@4", outputs="out:F|H@3", infer=like_x, checks=(rank_at_most(4, "x"),), zero_sized=True
)
def dequantize(c: Call) -> Array:
    quant = c.x.channel_quant
    if quant is None:
        return c.x.real
    scales = np.array(quant.scales, np.float32).reshape([-1 if axis == quant.dim else 1 for axis in range(c.x.rank)])
    return c.x.array * scales


ANY = "F|H|I|Q|B@4|Q16@4|S16@4|S8@4|S@4"
CONVERTIBLE = (Operand.TENSOR_FLOAT32, Operand.TENSOR_FLOAT16, Operand.TENSOR_INT32, Operand.TENSOR_QUANT8_ASYMM)


def convertible(c: Call) -> Iterator[str | FeatureLevel]:
    """Some types are only copied."""
    if c.x.type is c.out.type:
        if c.x.type not in CONVERTIBLE:
            yield FeatureLevel.LEVEL_4
    elif c.x.type not in CONVERTIBLE or c.out.type not in CONVERTIBLE:
        yield f"{c.x.type.name} cannot be cast to {c.out.type.name}"


@operation("CAST", f"x:{ANY}", outputs=f"out:{ANY}", level=3, infer=like_x, checks=(convertible,))
def cast(c: Call) -> Array:
    """Quantized elements are mere integers from 0 to 255 here. Reals are cut off towards 0."""
    if c.out.type is Operand.TENSOR_QUANT8_ASYMM and c.x.type is not c.out.type:
        return np.clip(np.trunc(c.x.array), 0, 255)
    return c.x.array
