"""Normalization, softmax and means."""

from __future__ import annotations

import math

import numpy as np

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.backends.nnapi.movement import NHWC_AXES
from ortconv.ir.operands import axes_of
from ortconv.ir.tensor import Array
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import FuseCode, Operation


def batch_normalization(b: Builder, unit: NodeUnit) -> None:
    """A multiplication and an addition per channel, computed from scale, bias, mean and variance."""
    value = value_of(unit)
    rank = len(shape_of(value))
    scale, shift, mean, variance = (_floats(unit, slot) for slot in (1, 2, 3, 4))
    factor = scale / np.sqrt(variance + np.float32(unit.target.attr("epsilon", 1e-5)))
    image = rank == 4 and not b.nchw
    dims = (-1,) if image else (-1, *(1,) * (rank - 2))
    x = b.operand(value, image=image)
    scaled = b.temporary(b.kind(x))
    b.add(Operation.MUL, [x, b.constant(factor.reshape(dims)), b.int32(FuseCode.NONE)], [scaled])
    summand = b.constant((shift - mean * factor).reshape(dims))
    b.emit(unit, Operation.ADD, [scaled, summand, b.activation(unit)], image)


def _floats(unit: NodeUnit, slot: int) -> Array:
    const = unit.constant(slot)
    assert const is not None
    return const.numpy().astype(np.float32, copy=False)


def lrn(b: Builder, unit: NodeUnit) -> None:
    """LOCAL_RESPONSE_NORMALIZATION. Its radius is half of the size, rounded down."""
    node = unit.target
    x, size = b.operand(value_of(unit), image=True), node.attr("size", 1)
    numbers = [node.attr("bias", 1.0), node.attr("alpha", 1e-4) / size, node.attr("beta", 0.75)]
    inputs = [x, b.int32((size - 1) // 2), *map(b.float32, numbers)]
    if b.level > 28:
        inputs.append(b.int32(1 if b.nchw else -1))
    b.emit(unit, Operation.LOCAL_RESPONSE_NORMALIZATION, inputs, image=True)


def softmax(b: Builder, unit: NodeUnit) -> None:
    """SOFTMAX. Before version 13 it runs over all dimensions from an axis on: on a matrix between two RESHAPEs."""
    value, beta = value_of(unit), b.float32(1.0)
    x, shape = b.operand(value), shape_of(value) or (1,)
    if unit.since >= 13:
        axis = [b.int32(unit.target.attr("axis", -1) % len(shape))] if b.level > 28 else []
        b.emit(unit, Operation.SOFTMAX, [x, beta, *axis])
        return
    axis_ = unit.target.attr("axis", 1)
    axis_ += len(shape) if axis_ < 0 else 0
    dims = (math.prod(shape[:axis_]), math.prod(shape[axis_:]))
    if dims == shape:
        b.emit(unit, Operation.SOFTMAX, [x, beta])
        return
    out = b.make(b.result(unit))
    flat, powers = b.temporary(b.kind(x), dims), b.temporary(b.kind(out), dims)
    b.add(Operation.RESHAPE, [x, b.ints(dims)], [flat])
    b.add(Operation.SOFTMAX, [flat, beta], [powers])
    b.add(Operation.RESHAPE, [powers, b.ints(shape)], [out])


def reduce_mean(b: Builder, unit: NodeUnit) -> None:
    value, keep = value_of(unit), unit.target.attr("keepdims", 1)
    rank = len(shape_of(value))
    axes = [axis % rank for axis in axes_of(unit.target) or range(rank)]
    image = bool(keep) and b.is_image(value)
    x = b.operand(value, image=image)
    listed = b.ints([NHWC_AXES[axis] for axis in axes] if image else axes)
    b.emit(unit, Operation.MEAN, [x, listed, b.int32(keep)], image)


LOWERINGS: dict[str, Lowering] = {
    "BatchNormalization": batch_normalization,
    "LRN": lrn,
    "Softmax": softmax,
    "ReduceMean": reduce_mean,
}
