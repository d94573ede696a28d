"""Convolutions, and the weights and biases that matrix products have in common with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.executor.algorithms.sliding_window import same_padding
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import Operand, OperandType, Operation, PaddingCode
from ortconv.partition.nnapi.checks import is_quantized, parameters

Pair = tuple[int, int]
"""(rows, columns)"""


def conv(b: Builder, unit: NodeUnit) -> None:
    """CONV_2D for one group, DEPTHWISE_CONV_2D for groups of one channel, else GROUPED_CONV_2D."""
    node = unit.target
    groups = node.attr("group", 1)
    x = b.operand(value_of(unit), image=True)
    size, channels, *window = shape_of(value_of(unit, 1))
    depthwise = groups != 1 and channels == 1
    order, channel = ((1, 2, 3, 0), 3) if depthwise else ((0, 2, 3, 1), 0)
    w = weights(b, unit, lambda array: array.transpose(order), channel)
    strides, dilations = pair(unit, "strides"), pair(unit, "dilations")
    pads = padding(b, unit, shape_of(value_of(unit))[2:], window, strides, dilations)
    inputs = [x, w, bias(b, unit, size, x, w), *pads, b.int32(strides[1]), b.int32(strides[0])]
    code = Operation.CONV_2D
    if groups != 1:
        code = Operation.DEPTHWISE_CONV_2D if depthwise else Operation.GROUPED_CONV_2D
        inputs.append(b.int32(size // groups if depthwise else groups))
    inputs += [b.activation(unit), *b.layout_flag()]
    if dilations != (1, 1):
        inputs += [b.int32(dilations[1]), b.int32(dilations[0])]
    b.emit(unit, code, inputs, image=True)


def pair(unit: NodeUnit, name: str) -> Pair:
    """An attribute with one number for rows and one for columns; the default is 1."""
    rows, columns = unit.target.attr(name, (1, 1))
    return rows, columns


def padding(
    b: Builder, unit: NodeUnit, size: Sequence[int], window: Sequence[int], strides: Pair, dilations: Pair = (1, 1)
) -> list[int]:
    """The operands for padding: an implicit padding code if it is equivalent, else left, right, top and bottom."""
    mode = unit.target.attr("auto_pad", "NOTSET")
    pads = tuple(unit.target.attr("pads", (0, 0, 0, 0)))
    (top, bottom), (left, right) = map(same_padding, size, window, strides, dilations)
    upper = (top, left, bottom, right)
    if mode == "VALID":
        return [b.int32(PaddingCode.VALID)]
    if mode == "SAME_UPPER" or (mode == "NOTSET" and dilations == (1, 1) and pads == upper):
        return [b.int32(PaddingCode.SAME)]
    top, left, bottom, right = (*upper[2:], *upper[:2]) if mode == "SAME_LOWER" else pads
    return [b.int32(n) for n in (left, right, top, bottom)]


def weights(b: Builder, unit: NodeUnit, arranged: Callable[[Array], Array], channel: int) -> int:
    """The constant weights, input 1, rearranged by `arranged`, with the output channels in dimension `channel`.

    int8 weights with a single scale are converted to uint8; those with several scales are unchanged.
    """
    operand, const = unit.inputs[1], unit.constant(1)
    assert operand is not None
    assert const is not None
    array = arranged(const.numpy())
    if operand.scale is None:
        return b.constant(array)
    if const.dtype is DType.UINT8:
        return b.constant(array, parameters(operand))
    scales = operand.scale.constant
    assert scales is not None
    if scales.size == 1:
        return b.constant(array.view(np.uint8) ^ np.uint8(0x80), (float(scales.item()), 128))
    kind = OperandType(Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL, array.shape)
    return b.tensor(kind, array, (channel, scales.numpy().ravel().tolist()))


def bias(b: Builder, unit: NodeUnit, size: int, x: int, w: int) -> int:
    """The third input as a vector; zeros if it is absent. Quantized biases have the product of both scales as their scale."""
    const, value = unit.constant(2), unit.input(2)
    if is_quantized(unit):
        scale = np.float32(b.kind(x).scale) * np.float32(b.kind(w).scale)
        array = np.zeros(size, np.int32) if const is None else const.numpy().reshape(size)
        return b.tensor(OperandType(Operand.TENSOR_INT32, (size,), float(scale)), array)
    if value is None or const is not None:
        return b.constant(np.zeros(size, np.float32) if const is None else const.numpy().reshape(size))
    index = b.operand(value)
    dims = b.dims(index)
    if len(dims) > 1:
        source, index = index, b.temporary(b.kind(index), (size,))
        b.add(Operation.SQUEEZE, [source, b.ints(range(len(dims) - 1))], [index])
    return index


LOWERINGS: dict[str, Lowering] = {"Conv": conv, "QLinearConv": conv}
