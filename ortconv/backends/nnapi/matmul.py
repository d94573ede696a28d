"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.backends.nnapi.convolution import bias, weights
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import Operation


def gemm(b: Builder, unit: NodeUnit) -> None:
    """FULLY_CONNECTED with the weights as [N, K]."""
    x, turned = b.operand(value_of(unit)), bool(unit.target.attr("transB", 0))
    if unit.constant(1) is None:
        w = b.operand(value_of(unit, 1))
    else:
        w = weights(b, unit, lambda array: array if turned else array.T, 0)
    inputs = [x, w, bias(b, unit, b.dims(w)[0], x, w), b.activation(unit)]
    b.emit(unit, Operation.FULLY_CONNECTED, inputs)


def matmul(b: Builder, unit: NodeUnit) -> None:
    if len(shape_of(value_of(unit))) == 2:
        gemm(b, unit)
    else:
        _batched(b, unit)


def _batched(b: Builder, unit: NodeUnit) -> None:
    """Split both sides into matrices, multiply each pair with FULLY_CONNECTED, and join the results."""
    *batch, rows, size = shape_of(value_of(unit))
    columns = shape_of(value_of(unit, 1))[-1]
    count = math.prod(batch)
    a = _matrices(b, _reshaped(b, b.operand(value_of(unit)), (count, rows, size)))
    stacked = _reshaped(b, b.operand(value_of(unit, 1)), (count, size, columns))
    turned = b.temporary(b.kind(stacked), (count, columns, size))
    b.add(Operation.TRANSPOSE, [stacked, b.ints((0, 2, 1))], [turned])
    zeros = b.constant(np.zeros(columns, np.float32))
    products = []
    for x, w in zip(a, _matrices(b, turned), strict=True):
        products.append(b.temporary(b.kind(x), (rows, columns)))
        b.add(Operation.FULLY_CONNECTED, [x, w, zeros, b.activation(unit)], [products[-1]])
    joined = products[0]
    if count > 1:
        joined = b.temporary(b.kind(products[0]), (count * rows, columns))
        b.add(Operation.CONCATENATION, [*products, b.int32(0)], [joined])
    out = b.make(b.result(unit))
    b.add(Operation.RESHAPE, [joined, b.ints((*batch, rows, columns))], [out])


def _reshaped(b: Builder, x: int, dims: tuple[int, ...]) -> int:
    return x if b.dims(x) == dims else b.reshaped(x, dims)


def _matrices(b: Builder, x: int) -> list[int]:
    """Split a stack of matrices."""
    count, *dims = b.dims(x)
    parts = [x]
    if count > 1:
        parts = [b.temporary(b.kind(x), (1, *dims)) for _ in range(count)]
        b.add(Operation.SPLIT, [x, b.int32(0), b.int32(count)], parts)
    return [_reshaped(b, part, tuple(dims)) for part in parts]


LOWERINGS: dict[str, Lowering] = {"Gemm": gemm, "MatMul": matmul, "QLinearMatMul": matmul}
