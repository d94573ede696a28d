"""A Gemm between the Reshape that flattens rows and the one that restores them becomes MatMul, which needs neither."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import Dim, DType, Shape
from ortconv.optimizer.conditions import is_plain_gemm, numbers, with_shape
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.shapes import Element, dim_of, expressed, refined, target

_GEMM = P("Gemm", P("Reshape", "x", ..., name="flat", shared=True), C("weight"), C("bias", optional=True), name="gemm")


@rule("GemmRowsFusion", P("Reshape", _GEMM, ..., name="whole"))
def fuse_rows(m: Match) -> Replacement:
    """Reshape(Gemm(Reshape(x, (-1, columns)), w, b), (..., width))  ->  MatMul(x, w) + b

    If the first Reshape merges heads (..., count, size), a Reshape to rows (..., columns) remains.

    Counterpart: none: ONNX Runtime does the reverse (MatMulAddFusion), which results in more nodes and is not faster
    """
    return _product(m, _rows(m))


@rule("GemmRowsFusion", P("Reshape", _GEMM, ..., name="whole"))
def fuse_split_rows(m: Match) -> Replacement:
    """Reshape(Gemm(Reshape(x, (-1, columns)), w, b))  ->  Reshape(MatMul(x, w) + b), for known dimensions

    Only for BatchFirstFusion, since this removes no node.
    """
    columns, dims = m.node("flat").out.dim(1), m.root.out.static_shape
    if m.x.static_shape is None or dims is None or 0 in dims or (m.x.rank or 0) < 3 or m.x.dim(-1) != columns:
        return None
    rows = _product(m, _Rows(m.x, m.x.static_shape))
    return rows and New("Reshape", [rows, np.array(dims, np.int64)], like=m.root, attrs={})


def _product(m: Match, rows: _Rows | None) -> New | None:
    """The product of rows with the weights of the Gemm, plus the bias; None if they do not fit."""
    gemm, weight, bias = m.node("gemm"), m.tensor("weight"), m.bias
    if rows is None or m.x.dtype is not DType.FLOAT or not is_plain_gemm(gemm):
        return None
    array = weight.numpy().T if attribute(gemm, "transB") else weight.numpy()
    width = array.shape[-1]
    if array.shape != (rows.shape[-1], width) or not _is_of_columns(bias, width):
        return None
    matrix: NewInput = np.ascontiguousarray(array) if attribute(gemm, "transB") else m.weight
    types = [with_shape(m.x, (*rows.shape[:-1], width))]
    product = New("MatMul", [rows.value, matrix], types=types, like=gemm, attrs={})
    if bias is None:
        return product
    return New("Add", [product, bias if bias.rank == 1 else m.tensor("bias").numpy().reshape(-1)], types=types)


def _is_of_columns(bias: Value | None, width: int) -> bool:
    return bias is None or bias.shape in ((width,), (1, width))


class _Rows(NamedTuple):
    """The left operand of a product, and its shape."""

    value: NewInput
    shape: Shape


def _rows(m: Match) -> _Rows | None:
    """x as rows whose leading dimensions, at least two, are those after the second Reshape; None if x has others."""
    wanted, x, columns = target(m.node("whole")), m.x, m.node("flat").out.dim(1)
    if wanted is None or len(wanted) < 3 or wanted.count(-1) > 1 or 0 in (x.shape or ()):
        return None
    dims = refined(wanted, m.root.out)
    if {-1, m.node("gemm").out.dim(1)}.isdisjoint((wanted[-1], dims[-1])):
        return None
    if x.rank == len(wanted) + 1:
        return _merged(m, dims[:-1], columns)
    is_restored = all(w == -1 or dim_of(x, i) in (w, d) for i, (w, d) in enumerate(zip(wanted[:-1], dims)))
    return _Rows(x, x.shape or ()) if x.rank == len(wanted) and x.dim(-1) == columns and is_restored else None


def _merged(m: Match, leading: Sequence[Element], columns: Dim) -> _Rows | None:
    """x, heads (..., count, size), as rows with these leading dimensions and this number of columns; None if x has others."""
    x, spec = m.x, expressed((*leading, columns), m.x)
    if spec is None or math.prod(numbers(x.dim(-2), x.dim(-1))) != columns:
        return None
    shape = (*(m.root.out.shape or (None,) * len(spec))[:-1], columns)
    return _Rows(New("Reshape", [x, np.array(spec, np.int64)], types=[with_shape(x, shape)]), shape)
