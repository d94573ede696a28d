"""Elementwise operators, with one operand or with two and broadcasting."""

from __future__ import annotations

import numpy as np

from ortconv.nnapi import Operand
from ortconv.nnapi.operations.table import OperationCall
from ortconv.tflite.table import emits, translated
from ortconv.tflite.translation import TYPES, RefusedOperationError, Translation

INT32 = Operand.TENSOR_INT32


emits("ADD", "SUB", "MUL", inputs="a b", types="F H I Q S", either_sign=True, fused_activation_function="activation")
emits("POW", inputs="a b", types="F H")
emits("PRELU", inputs="a b", types="F H Q S", either_sign=True)
emits("MAXIMUM", "MINIMUM", inputs="a b", types="F H I Q S", either_sign=True, same="a b out")
emits("EQUAL", "NOT_EQUAL", inputs="a b", types="F H I Q S B", either_sign=True, same="a b")
emits("GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", inputs="a b", types="F H I Q S", either_sign=True, same="a b")
emits("LOGICAL_AND", "LOGICAL_OR", inputs="a b", types="B")
emits("SELECT", inputs="mask a b", types="F H I Q S", either_sign=True, same="a b out")
emits("ABS", "NEG", inputs="x", types="F H I")
emits("EXP", "FLOOR", "LOG", "RSQRT", "SIN", "SQRT", inputs="x", types="F H")
emits("LOGICAL_NOT", inputs="x", types="B")
emits("HARD_SWISH", "LOGISTIC", "TANH", inputs="x", types="F H Q S")
emits("RELU", "RELU6", inputs="x", types="F H Q S", either_sign=True)
emits("RELU1", inputs="x", types="F H Q S", code="RELU_N1_TO_1", either_sign=True)
emits("QUANTIZE", inputs="x", types="F H")
emits("DEQUANTIZE", inputs="x", types="Q S")


@translated("DIV", types="F H I")
def divide(t: Translation, u: OperationCall) -> None:
    """LiteRT's DIV of integers truncates, NNAPI's rounds down."""
    ends = [t.read(u.a), t.read(u.b)], [t.write(u.out)]
    if u.main is not INT32:
        t.emit("DIV", *ends, fused_activation_function=u.activation)
        return
    if not np.all(t.constant(u.b, "divisors of integers")):
        raise RefusedOperationError("integers divided by 0 are an error to it, and 0 to NNAPI")
    t.emit("FLOOR_DIV", *ends)


@translated("ELU", types="F H")
def elu(t: Translation, u: OperationCall) -> None:
    if u.alpha != 1.0:
        raise RefusedOperationError(f"its ELU has alpha 1, not {u.alpha:g}")
    t.emit("ELU", [t.read(u.x)], [t.write(u.out)])


CASTS = (Operand.TENSOR_FLOAT32, INT32)
"""Types that can be cast into each other, and that quantized values can be cast to."""


@translated("CAST", types="F I Q")
def cast(t: Translation, u: OperationCall) -> None:
    x, out = t.kind(u.x).type, t.kind(u.out).type
    if out not in CASTS:
        raise RefusedOperationError(f"{x.name} to {out.name} is computed in another way")
    t.emit("CAST", [t.read(u.x)], [t.write(u.out)], in_data_type=TYPES[x], out_data_type=TYPES[out])
