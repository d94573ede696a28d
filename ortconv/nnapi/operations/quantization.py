"""QUANTIZE, DEQUANTIZE, CAST."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.operations.arithmetic import quantize
from ortconv.nnapi.operations.checks import SMALL
from ortconv.nnapi.operations.shapes import like_x
from ortconv.nnapi.operations.table import KINDS, Findings, OperationCall, operation


@operation("QUANTIZE", "x:T", outputs="out:Q|S@4", level=3, types="F H", infer=like_x, zero_sized=True, recorded=("x",))
def quantize_(c: OperationCall) -> Array:
    return c.work.call(partial(quantize, out=c.out), c.x.array)


@operation(
    "DEQUANTIZE", "x:Q|S@4|S8@3|P@3", outputs="out:F|H@3", infer=like_x, checks=(SMALL,),
    zero_sized=True, recorded=("x",),
)  # fmt: skip
def dequantize(c: OperationCall) -> Array:
    if c.x.channel_quant is None:
        return c.anew(lambda c: c.x.real)
    shape = [1] * c.x.rank
    shape[c.x.channel_quant.dim] = -1
    scales = np.array(c.x.channel_quant.scales, np.float32).reshape(shape)
    return c.work.call(np.multiply, c.x.array, scales)


CAST_TYPES, COPIED_TYPES = ([KINDS[kind] for kind in kinds.split()] for kinds in ("F H I Q", "B S S8 Q16 S16"))


def castable(c: OperationCall) -> Findings:
    """Four types can be cast to each other; other types only to themselves, since level 4. Dimensions of the result that are stated
    must be those of the operand, where an unknown one is a difference.
    """
    kinds = c.x.type, c.out.type
    if kinds[0] in COPIED_TYPES and kinds[0] is kinds[1]:
        yield FeatureLevel.LEVEL_4
    elif not set(kinds) <= set(CAST_TYPES):
        yield f"{kinds[0].name} cannot be cast to {kinds[1].name}"
    if c.x.dims and c.out.is_known and c.x.dims != c.out.dims:
        yield f"dimensions differ: {list(c.x.dims)} and {list(c.out.dims)}"


@operation("CAST", "x:any", outputs="out:any", level=3, infer=like_x, checks=(castable,))
def cast(c: OperationCall) -> Array:
    """The stored numbers, rounded toward zero for an integer type, and clamped to the range of the type."""
    if c.x.type is c.out.type or c.out.type in (Operand.TENSOR_FLOAT32, Operand.TENSOR_FLOAT16):
        return c.x.array.astype(c.out.type.dtype)
    whole = np.nan_to_num(np.trunc(c.x.array.astype(np.float64)))
    return np.clip(whole, *c.out.limits).astype(c.out.type.dtype)
