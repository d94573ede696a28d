"""Einsum as a product of stacks of matrices, which NNAPI has."""

from __future__ import annotations

import math

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.tensor import Array
from ortconv.optimizer.einsum import equation_of
from ortconv.optimizer.engine import NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import op, reshape, shape_of, transpose
from ortconv.optimizer.pattern import Match, P


@rule("EinsumToMatMul", P("Einsum", "x"))
def permute(m: Match) -> Replacement:
    """Einsum(x) that only orders axes  ->  Transpose(x)"""
    equation = equation_of(m.root)
    order = None if equation is None else equation.order
    return None if order is None else transpose(m.x, order)


@rule("EinsumToMatMul", P("Einsum", "a", "b"))
def multiply_stacks(m: Match) -> Replacement:
    """Einsum(a, b)  ->  MatMul of stacks of matrices, with Transposes and Reshapes of operands and result

    Opt-in: more nodes; useful only if an accelerator has no Einsum.
    """
    equation = equation_of(m.root)
    sizes = None if equation is None else _sizes(equation.operands, (m.a, m.b))
    axes = None if equation is None else equation.product
    if equation is None or sizes is None or axes is None:
        return None
    left, right = equation.operands
    batch, rows, summed, columns = axes
    a = _stacked(_ordered(_content(m.a), left, batch + rows + summed), [batch, rows, summed], sizes)
    b = _stacked(_ordered(_content(m.b), right, batch + summed + columns), [batch, summed, columns], sizes)
    product: NewInput = op("MatMul", a, b)
    made = batch + rows + columns
    if not _are_matrices([batch, rows, columns]):
        product = reshape(product, [sizes[c] for c in made])
    return _ordered(product, made, equation.out)


def _are_matrices(parts: list[str]) -> bool:
    """True if the axes of a stack, of rows and of columns are those of a matrix, or of a stack of matrices along one axis."""
    stack, *others = parts
    return len(stack) <= 1 and all(len(part) == 1 for part in others)


def _stacked(x: NewInput, parts: list[str], sizes: dict[str, int]) -> NewInput:
    """A tensor with these axes as a stack of matrices, or as one matrix."""
    shape = [math.prod(sizes[c] for c in part) for part in (parts if parts[0] else parts[1:])]
    if isinstance(x, np.ndarray):
        return x.reshape(shape)
    return x if _are_matrices(parts) else reshape(x, shape)


def _content(value: Value) -> Value | Array:
    return value if value.constant is None else value.constant.numpy()


def _sizes(operands: list[str], values: tuple[Value, Value]) -> dict[str, int] | None:
    """The size of each axis of two float32 tensors; None if one is unknown, or if operands broadcast."""
    sizes: dict[str, int] = {}
    for term, value in zip(operands, values, strict=True):
        shape = shape_of(value)
        if shape is None or len(shape) != len(term):
            return None
        if any(sizes.setdefault(c, size) != size for c, size in zip(term, shape)):
            return None
    return sizes


def _ordered(x: NewInput, axes: str, wanted: str) -> NewInput:
    if axes == wanted:
        return x
    perm = [axes.index(c) for c in wanted]
    return x.transpose(perm) if isinstance(x, np.ndarray) else transpose(x, perm)
