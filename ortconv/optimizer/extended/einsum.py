"""Rewrites an Einsum to MatMul if it is a matrix product, and to Transpose if it only orders axes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operands import ints
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType, Shape
from ortconv.optimizer.conditions import same_dim, with_shape
from ortconv.optimizer.einsum import Equation, ProductAxes, equation_of
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P, with_factor


@rule("EinsumFusion", P("Einsum", "x"))
def permute(m: Match) -> Replacement:
    """Einsum(x) that only orders axes  ->  Transpose(x)"""
    equation = equation_of(m.root)
    order = None if equation is None else equation.order
    return None if order is None else New("Transpose", [m.x], {"perm": order}, like=m.root)


@rule("EinsumFusion", P("Einsum", "a", C("w")))
def multiply_by_weights(m: Match) -> Replacement:
    """Einsum(x, weights), with the last axes of x summed and all others kept  ->  MatMul between Reshapes

    Counterpart: none: its Einsum kernel transposes and reshapes at every run
    """
    found, x, shape, w = _product(m.root), m.a, m.a.shape or (), m.tensor("w")
    if found is None or not _is_float(x, m.w):
        return None
    ((left, right), out), (_, rest, summed, _) = found
    columns = out[len(rest) :]
    if not rest or not columns or (left, out) != (rest + summed, rest + columns):
        return None
    weights = w.numpy().transpose([right.index(c) for c in summed + columns])
    if 0 in w.shape or not all(map(same_dim, shape[len(rest) :], weights.shape)):
        return None
    outer, sizes = shape[: len(rest)], weights.shape[len(summed) :]
    inner, width = math.prod(weights.shape[: len(summed)]), math.prod(sizes)
    rows: NewInput = x
    if len(summed) > 1:
        rows = New("Reshape", [x, _spec(rest, inner)], {}, types=[with_shape(x, (*outer, inner))])
    flat = with_shape(x, (*outer, width))
    product = New("MatMul", [rows, weights.reshape(inner, width)], {}, like=m.root, types=[flat])
    return product if len(sizes) == 1 else New("Reshape", [product, _spec(rest, *sizes)])


def _spec(kept: Iterable[object], *sizes: int) -> Array:
    """The target of a Reshape that keeps the leading axes."""
    return np.array([0 for _ in kept] + list(sizes), np.int64)


@rule("EinsumFusion", P("Einsum", "a", "b"))
def multiply_stacks(m: Match) -> Replacement:
    """Einsum(a, b) with one summed axis and one more of each operand  ->  transposed MatMul of Transposes"""
    found, shape = _product(m.root), m.root.out.shape
    if found is None or not _is_float(m.a, m.b):
        return None
    (terms, out), (stack, rows, summed, columns) = found
    batch, first, second = "".join(sorted(stack, key=out.index)), m.a, m.b
    if (len(summed), len(rows), len(columns)) != (1, 1, 1):
        return None
    if not same_dim(m.a.dim(terms[0].index(summed)), m.b.dim(terms[1].index(summed))):
        return None
    if out.index(columns) < out.index(rows):
        first, second, terms, rows, columns = second, first, terms[::-1], columns, rows
    left = _turned(first, terms[0], batch + rows + summed)
    right = _turned(second, terms[1], batch + summed + columns)
    order = batch + rows + columns
    type = None if shape is None else with_shape(m.a, _turned_shape(shape, out, order))
    product = New("MatMul", [left, right], {}, like=m.root, types=[type])
    return product if order == out else New("Transpose", [product], {"perm": Ints(order.index(c) for c in out)})


def _product(node: Node) -> tuple[Equation, ProductAxes] | None:
    """The equation of an Einsum that is a product, and its axes; None if it sums nothing, or if its operands have other ranks."""
    equation = equation_of(node)
    axes = None if equation is None else equation.product
    if equation is None or axes is None or not axes.summed:
        return None
    return (equation, axes) if [v.rank for v in node.present_inputs] == [*map(len, equation.operands)] else None


def _turned(value: Value, term: str, wanted: str) -> NewInput:
    if term == wanted:
        return value
    perm = Ints(term.index(c) for c in wanted)
    type = with_shape(value, _turned_shape(value.shape or (), term, wanted))
    return New("Transpose", [value], {"perm": perm}, types=[type])


def _turned_shape(shape: Shape, term: str, wanted: str) -> Shape:
    """The shape of a tensor with axes `term`, in the order `wanted`."""
    return tuple(shape[term.index(c)] for c in wanted)


def _is_float(*values: Value) -> bool:
    return all(v.dtype in (DType.FLOAT, DType.DOUBLE) and v.dtype is values[0].dtype for v in values)


_SPLIT = P("Reshape", "x", C("shape"), name="reshape")


@rule("EinsumFusion", P("Add", _SPLIT, C("k"), commutative=True), *with_factor(_SPLIT, C("k")))
def compute_before_split(m: Match) -> Replacement:
    """Reshape(x) + k, with the last axis split in two  ->  Reshape(x + k), so that a projection keeps its bias"""
    reshape = m.node("reshape")
    x, const, wanted, out = m.x.shape, m.tensor("k"), ints(m.shape), reshape.out.shape
    if x is None or out is None or wanted is None or not len(x) + 1 == len(wanted) == len(out):
        return None
    if any(wanted[:-2]) or reshape.attr("allowzero", 0) or const.size == 0:
        return None
    if const.shape == out[-2:]:
        operand = const.numpy().reshape(-1)
    elif const.size == 1 and const.rank <= len(x):
        operand = const.numpy()
    else:
        return None
    inner = New(m.root.op, [m.x, operand], {}, like=m.root, types=[m.x.type])
    return New("Reshape", [inner, m.shape], like=reshape)
