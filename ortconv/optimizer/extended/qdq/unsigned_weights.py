"""Changes int8 weights beside uint8 activations to uint8, for processors whose kernels overflow in their products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, NewInput, Out, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.tracking import Operator

STEP = 128
"""The difference between an integer as uint8 and as int8, when the zero point moves with it."""


class Slots(NamedTuple):
    """The inputs of an operator: its activations, and the weights and zero points of each of its products."""

    activations: int
    weights: tuple[tuple[int, int], ...]


SLOTS: dict[Operator, Slots] = {
    ("", "MatMulInteger"): Slots(0, ((1, 3),)),
    ("", "QLinearConv"): Slots(0, ((3, 5),)),
    ("", "QLinearMatMul"): Slots(0, ((3, 5),)),
    (MICROSOFT, "DynamicQuantizeLSTM"): Slots(0, ((1, 9), (2, 11))),
    (MICROSOFT, "DynamicQuantizeMatMul"): Slots(0, ((1, 3),)),
    (MICROSOFT, "MatMulIntegerToFloat"): Slots(0, ((1, 5),)),
    (MICROSOFT, "QAttention"): Slots(0, ((1, 7),)),
    (MICROSOFT, "QGemm"): Slots(0, ((3, 5),)),
    (MICROSOFT, "QLinearConv"): Slots(0, ((3, 5),)),
}  # fmt: skip


@rule("Avx2WeightS8ToU8Transformer", *(P(op, ..., domain=domain) for domain, op in SLOTS))
def make_unsigned(m: Match) -> Replacement:
    """Products of uint8 and int8 weights  ->  products of uint8 and uint8, with a zero point 128 higher

    Counterpart: Avx2WeightS8ToU8Transformer (session.x64quantprecision)
    Differs: also QLinearConv of NHWC; the file has the weights, since onnxruntime optimizes no file in ORT format.
    Opt-in: useful only for x86-64 processors without VNNI: their kernels add two products of uint8 and int8 in 16 bits,
        which overflows for weights beyond 64.
    """
    slots = SLOTS[m.root.domain, m.root.op]
    inputs: list[NewInput] = [*m.root.inputs]
    activations = m.root.input(slots.activations)
    if activations is None or activations.dtype is DType.INT8:
        return None
    changes = False
    for weight, zero in slots.weights:
        value, offset = m.root.input(weight), m.root.input(zero)
        if value is not None and _is_int8_constant(value) and (offset is None or _is_int8_constant(offset)):
            inputs += [None] * (zero + 1 - len(inputs))
            inputs[weight] = _raised(value)
            inputs[zero] = np.array(STEP, np.uint8) if offset is None else _raised(offset)
            changes = True
    if not changes:
        return None
    outputs = m.root.outputs
    types = [None if v is None else v.type for v in outputs]
    new = New(m.root.op, inputs, domain=m.root.domain, like=m.root, outputs=len(outputs), types=types)
    return tuple(None if v is None else Out(new, i) if i else new for i, v in enumerate(outputs))


def _is_int8_constant(value: Value) -> bool:
    return value.constant is not None and value.dtype is DType.INT8


def _raised(value: Value) -> NewInput:
    """An int8 constant as uint8, 128 higher."""
    assert value.constant is not None
    return np.asarray(value.constant.numpy().view(np.uint8) ^ np.uint8(STEP))
