"""Elementwise arithmetic, activations and quantization, in the layout of their inputs."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.backends.nnapi.builder import Builder, Lowering, value_of
from ortconv.ir.graph import Value
from ortconv.ir.operands import clip_bounds
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import FuseCode, Operand, OperandType, Operation
from ortconv.nnapi.running import NHWC

FUSE_CODES = {(0.0, float("inf")): FuseCode.RELU, (-1.0, 1.0): FuseCode.RELU1, (0.0, 6.0): FuseCode.RELU6}
"""Fused activations by their bounds."""


def unary(b: Builder, unit: NodeUnit, code: Operation) -> None:
    x, image = b.in_its_layout(value_of(unit))
    b.emit(unit, code, [x], image)


def activation(b: Builder, unit: NodeUnit) -> None:
    """A Relu or Clip that is not fused into the operation before it."""
    unary(b, unit, Operation[fuse_code(unit).name])


def fuse_code(unit: NodeUnit) -> FuseCode:
    return FUSE_CODES[clip_bounds(unit.target)]


def binary(b: Builder, unit: NodeUnit, code: Operation, fuses: bool = False) -> None:
    values = [value_of(unit, 0), value_of(unit, 1)]
    image = any(map(b.is_image, values)) and all(_fits(b, v) for v in values)
    inputs = [_as_image(b, v) if image else b.operand(v) for v in values]
    b.emit(unit, code, [*inputs, b.activation(unit)] if fuses else inputs, image)


def _fits(b: Builder, value: Value) -> bool:
    """True if a value can be part of a broadcast of images."""
    return value.rank == 4 or value.constant is not None or value.static_shape in ((), (1,))


def _as_image(b: Builder, value: Value) -> int:
    const = value.constant
    if const is None or const.size == 1 or const.dtype.bits != 32:
        return b.operand(value, image=value.rank == 4)
    array = const.numpy()
    return b.constant(array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(NHWC))


def elu(b: Builder, unit: NodeUnit) -> None:
    x, image = b.in_its_layout(value_of(unit))
    b.emit(unit, Operation.ELU, [x, b.float32(unit.target.attr("alpha", 1.0))], image)


def leaky_relu(b: Builder, unit: NodeUnit) -> None:
    """x < 0 ? alpha * x : x"""
    x, image = b.in_its_layout(value_of(unit))
    mask = b.temporary(OperandType(Operand.TENSOR_BOOL8, b.dims(x)))
    scaled = b.temporary(b.kind(x))
    alpha = b.constant(np.array([unit.target.attr("alpha", 0.01)], np.float32))
    b.add(Operation.LESS, [x, b.constant(np.zeros(1, np.float32))], [mask])
    b.add(Operation.MUL, [x, alpha, b.int32(FuseCode.NONE)], [scaled])
    b.emit(unit, Operation.SELECT, [mask, scaled, x], image)


LOWERINGS: dict[str, Lowering] = {
    **{op: partial(binary, code=Operation[op.upper()], fuses=True) for op in ("Add", "Sub", "Mul", "Div")},
    **{op: partial(binary, code=Operation[op.upper()]) for op in ("Pow", "PRelu")},
    **{op: partial(unary, code=Operation[op.upper()])
       for op in ("Abs", "Exp", "Log", "Neg", "Sin", "Sqrt", "Floor", "Tanh", "Cast")},
    "QLinearAdd": partial(binary, code=Operation.ADD, fuses=True),
    "QLinearMul": partial(binary, code=Operation.MUL, fuses=True),
    "Max": partial(binary, code=Operation.MAXIMUM),
    "Min": partial(binary, code=Operation.MINIMUM),
    "Sigmoid": partial(unary, code=Operation.LOGISTIC),
    "QLinearSigmoid": partial(unary, code=Operation.LOGISTIC),
    "DequantizeLinear": partial(unary, code=Operation.DEQUANTIZE),
    "QuantizeLinear": partial(unary, code=Operation.QUANTIZE),
    "Elu": elu,
    "LeakyRelu": leaky_relu,
    "Relu": activation,
    "Clip": activation,
}  # fmt: skip
