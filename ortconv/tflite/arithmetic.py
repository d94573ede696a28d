"""Elementwise operators, with one operand or with two and broadcasting."""

from __future__ import annotations

import numpy as np

from ortconv.nnapi import Operand
from ortconv.tflite.layout import ElementType
from ortconv.tflite.table import Use, translated
from ortconv.tflite.translation import TYPES, RefusedOperationError, Translation

INT32 = Operand.TENSOR_INT32


@translated("ADD", "SUB", types="F H I Q S", either_sign=True)
@translated("MUL", types="F H I Q S", either_sign=True)
def binary(t: Translation, u: Use) -> None:
    t.emit(u.code.name, [t.read(u.a), t.read(u.b)], [t.write(u.out)], fused_activation_function=u.activation)


@translated("DIV", types="F H I")
def divide(t: Translation, u: Use) -> None:
    """LiteRT's DIV of integers truncates, NNAPI's rounds down."""
    ends = [t.read(u.a), t.read(u.b)], [t.write(u.out)]
    if u.main is not INT32:
        t.emit("DIV", *ends, fused_activation_function=u.activation)
        return
    if not np.all(t.constant(u.b, "divisors of integers")):
        raise RefusedOperationError("integers divided by 0 are an error to it, and 0 to NNAPI")
    t.emit("FLOOR_DIV", *ends)


@translated("POW", types="F H")
@translated("PRELU", types="F H Q S", either_sign=True)
def of_two(t: Translation, u: Use) -> None:
    t.emit(u.code.name, [t.read(u.a), t.read(u.b)], [t.write(u.out)])


@translated("MAXIMUM", "MINIMUM", types="F H I Q S", either_sign=True)
def extreme(t: Translation, u: Use) -> None:
    same_quantization(t, u, u.a, u.b, u.out)
    of_two(t, u)


@translated("EQUAL", "NOT_EQUAL", types="F H I Q S B", either_sign=True)
@translated("GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", types="F H I Q S", either_sign=True)
def comparison(t: Translation, u: Use) -> None:
    same_quantization(t, u, u.a, u.b)
    of_two(t, u)


def same_quantization(t: Translation, u: Use, *operands: int) -> None:
    """LiteRT compares and moves quantized values without rescaling."""
    kinds = [t.kind(i) for i in operands]
    if kinds[0].is_quantized and any(not k.same_quantization(kinds[0]) for k in kinds):
        raise RefusedOperationError("it wants one quantization of all operands")


@translated("LOGICAL_AND", "LOGICAL_OR", types="B")
def logical(t: Translation, u: Use) -> None:
    of_two(t, u)


@translated("SELECT", types="F H I Q S", either_sign=True)
def select(t: Translation, u: Use) -> None:
    same_quantization(t, u, u.a, u.b, u.out)
    t.emit("SELECT", [t.read(u.mask), t.read(u.a), t.read(u.b)], [t.write(u.out)])


@translated("ABS", "NEG", types="F H I")
@translated("EXP", "FLOOR", "LOG", "RSQRT", "SIN", "SQRT", types="F H")
@translated("LOGICAL_NOT", types="B")
@translated("HARD_SWISH", "LOGISTIC", "TANH", types="F H Q S")
@translated("RELU", "RELU6", types="F H Q S", either_sign=True)
def of_one(t: Translation, u: Use) -> None:
    t.emit(u.code.name, [t.read(u.x)], [t.write(u.out)])


@translated("RELU1", types="F H Q S", either_sign=True)
def relu1(t: Translation, u: Use) -> None:
    t.emit("RELU_N1_TO_1", [t.read(u.x)], [t.write(u.out)])


@translated("ELU", types="F H")
def elu(t: Translation, u: Use) -> None:
    if u.alpha != 1.0:
        raise RefusedOperationError(f"its ELU has alpha 1, not {u.alpha:g}")
    of_one(t, u)


@translated("QUANTIZE", types="F H")
@translated("DEQUANTIZE", types="Q S")
def requantize(t: Translation, u: Use) -> None:
    of_one(t, u)


CASTS = (Operand.TENSOR_FLOAT32, INT32)
"""Types that can be cast into each other, and that quantized values can be cast to."""


@translated("CAST", types="F I Q")
def cast(t: Translation, u: Use) -> None:
    x, out = t.kind(u.x).type, t.kind(u.out).type
    if out not in CASTS:
        raise RefusedOperationError(f"{x.name} to {out.name} is computed in another way")
    element = {end: TYPES[end] for end in (x, out)}
    options: dict[str, ElementType] = {"in_data_type": element[x], "out_data_type": element[out]}
    t.emit("CAST", [t.read(u.x)], [t.write(u.out)], **options)
