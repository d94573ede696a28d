"""Heads of which only the first elements, or the last rows, are rotated."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import constant_of, ints, producer_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.symbols import times
from ortconv.ir.types import ValueType
from ortconv.optimizer.basic.nan_guard import projected_from
from ortconv.optimizer.conditions import equal_shapes, numbers, with_shape
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.extended.attention.heads import SPLIT, split_of_one_row
from ortconv.optimizer.parts import part_of
from ortconv.optimizer.pattern import Match, P, PatternInput
from ortconv.optimizer.permutation import Perm, transpose_perm


def is_plain(rotation: Node) -> bool:
    """True for a RotaryEmbedding without attributes that change the meaning of its operands."""
    return not any(rotation.attr(name, 0) for name in ("num_heads", "rotary_embedding_dim", "is_packed_batching"))


def rotates_each(m: Match, rows: int, columns: int, size: int) -> bool:
    """True if the matched rotation treats all heads of a matrix of heads in the same way."""
    width, rotation = m.cos.dim(1), m.node("rotation")
    heads = rotation.attr("num_heads", 0)
    if rotation.attr("is_packed_batching", 0) or not isinstance(width, int):
        return False
    return heads == rows * columns if heads else is_plain(rotation) and size == 2 * width


def rotated(x: PatternInput) -> P:
    """Pattern of a RotaryEmbedding of x, of com.microsoft."""
    return P("RotaryEmbedding", x, "positions", "cos", "sin", domain=MICROSOFT, name="rotation")


def rotated_by_onnx(x: PatternInput) -> P:
    """Pattern of a RotaryEmbedding of x, of operator set 23."""
    return P("RotaryEmbedding", x, "cos", "sin", ..., name="rotation")


def rotate(m: Match, x: NewInput, type: ValueType | None, **attrs: Attribute) -> New:
    """The matched rotation, applied to x, which has this type. With further attributes, it is named anew."""
    rotation = m.node("rotation")
    like, inputs = None if attrs else rotation, (x, *rotation.inputs[1:])
    return New("RotaryEmbedding", inputs, {**rotation.attrs, **attrs}, like=like, domain=rotation.domain, types=[type])


def by_rows(m: Match, x: Value, **attrs: Attribute) -> New | None:
    """The matched rotation of heads (batch, rows, heads, size), applied to rows; None if a size is unknown."""
    sizes = numbers(x.dim(2), x.dim(3))
    if x.shape is None or not sizes:
        return None
    type = with_shape(x, (*x.shape[:2], prod(sizes)))
    rows = New("Reshape", [x, np.array([0, 0, prod(sizes)], np.int64)], types=[type])
    return New("Reshape", [rotate(m, rows, type, **attrs), np.array([0, 0, *sizes], np.int64)], types=[x.type])


@rule("PartialRotaryFusion", P("Concat", rotated("part"), "rest"))
def rotate_heads(m: Match) -> Replacement:
    """Concat(RotaryEmbedding(first part of Transpose(x)), second part)  ->  Transpose(RotaryEmbedding<rotary_embedding_dim>(x))"""
    transpose = producer_of(_whole(m), "Transpose")
    if transpose is None or transpose_perm(transpose) != SPLIT:
        return None
    rotated = _rotate(m, transpose.present_inputs[0])
    return rotated and New("Transpose", [rotated], like=transpose)


@rule("PartialRotaryFusion", P("Concat", rotated("part"), "rest"))
def rotate_one_row(m: Match) -> Replacement:
    """Concat(RotaryEmbedding(first part of Reshape(x)), second part)  ->  Reshape(RotaryEmbedding<rotary_embedding_dim>(x)), if x
    has a single row
    """
    split, width = producer_of(_whole(m), "Reshape"), m.cos.dim(1)
    sizes = None if split is None else split_of_one_row(split)
    if split is None or sizes is None or not isinstance(width, int) or m.part.dim(3) != 2 * width:
        return None
    x, shape = split.present_inputs
    return New("Reshape", [rotate(m, x, x.type, num_heads=sizes[0], rotary_embedding_dim=2 * width), shape], like=split)


@rule("PartialRotaryFusion", P("Concat", rotated_by_onnx("part"), "rest"))
def rotate_first_columns(m: Match) -> Replacement:
    "Concat(RotaryEmbedding(first columns of x), other columns)  ->  RotaryEmbedding<rotary_embedding_dim>(x), of operator set 23"
    x, width = joined_columns(m), m.part.dim(3)
    if x is None or not isinstance(width, int) or m.node("rotation").attr("rotary_embedding_dim", 0) not in (0, width):
        return None
    return rotate(m, x, x.type, rotary_embedding_dim=width)


_ROWS = rotated(P("Reshape", "part", ..., name="rows"))


@rule("PartialRotaryFusion", P("Concat", P("Reshape", _ROWS, ..., name="back"), "rest"))
def rotate_rows(m: Match) -> Replacement:
    "Concat(Reshape(RotaryEmbedding(Reshape(first part of x))), second part)  ->  RotaryEmbedding<rotary_embedding_dim>(x)"
    whole, part = _whole(m), m.part.shape
    hidden = None if part is None else times(*part[2:])
    if whole is None or part is None or hidden is None:
        return None
    rows = (*part[:2], hidden)
    fits = equal_shapes(m.node("rows").out.shape, rows) and equal_shapes(m.node("back").out.shape, part)
    return _rotate(m, whole) if fits else None


@rule("PartialRotaryFusion", P("Concat", "first", rotated("part")))
def rotate_all_rows(m: Match) -> Replacement:
    """Concat(first rows of x, RotaryEmbedding(other rows))  ->  RotaryEmbedding(x), which multiplies the first rows by 1

    Differs: for constant tables, in attention: a first row that holds infinity becomes NaN, which the softmax makes of it anyway.
    """
    x, rotation = _joined(m), m.node("rotation")
    cos, sin = constant_of(m.cos), constant_of(m.sin)
    if x is None or cos is None or sin is None or not is_plain(rotation) or ints(m.positions) != (0,):
        return None
    if not _is_attended(m.root.out):
        return None
    sizes = numbers(m.first.dim(2), m.part.dim(2))
    if not sizes or sizes[1] > cos.shape[0]:
        return None
    tables = []
    for fill, table in ((1, cos), (0, sin)):
        first = np.full((sizes[0], table.shape[1]), fill, table.dtype.numpy)
        tables.append(np.concatenate([first, table.numpy()[: sizes[1]]]))
    return New("RotaryEmbedding", (x, m.positions, *tables), like=rotation, domain=MICROSOFT)


def _is_attended(heads: Value) -> bool:
    """True if only attention reads heads, or products of computed operands. They may be scaled, transposed or reshaped before."""
    if heads.is_output:
        return False
    return all(_attends(n) or (n.op in _BEFORE_PRODUCT and _is_attended(n.out)) for n in heads.consumers)


def _attends(node: Node) -> bool:
    is_product = node.op in ("MatMul", "FusedMatMul") and all(v.constant is None for v in node.present_inputs)
    return is_product or node.op in ("Attention", "MultiHeadAttention")


_BEFORE_PRODUCT = ("Mul", "Div", "Transpose", "Reshape")


def _joined(m: Match) -> Value | New | None:
    """The heads of which a Concat joins both parts along the rows; the parts may be transposed alike."""
    first, part = _selected(m.first), _selected(m.part)
    if first is None or part is None or first.x is not part.x or first.perm != part.perm:
        return None
    whole = (first.start, first.end, part.end) == (0, part.start, first.x.dim(first.perm[2]))
    if not whole or m.root.attr("axis", 0) not in (2, -2) or projected_from(first.x) is None:
        return None
    if first.transpose is None:
        return first.x
    return New("Transpose", [first.x], like=first.transpose, types=[m.root.out.type])


class _Rows(NamedTuple):
    """[start, end) of the rows of x, which become axis 2 of four by a permutation."""

    x: Value
    start: int
    end: int
    perm: Perm
    transpose: Node | None


def _selected(value: Value) -> _Rows | None:
    """The rows that are selected before a Transpose, if there is one; None if they are unknown."""
    transpose = producer_of(value, "Transpose")
    perm = (0, 1, 2, 3) if transpose is None else transpose_perm(transpose)
    part = part_of(value if transpose is None else transpose.inputs[0])
    if part is None or perm is None or not len(perm) == part.x.rank == 4 or part.axis != perm[2]:
        return None
    return _Rows(part.x, part.start, part.end, perm, transpose)


def _whole(m: Match) -> Value | None:
    return joined_columns(m) if is_plain(m.node("rotation")) else None


def joined_columns(m: Match) -> Value | None:
    """The tensor of rank 4 that the rotated part and the other one are slices of, which the Concat joins again."""
    first, rest = part_of(m.part), part_of(m.rest)
    if first is None or rest is None or first.x is not rest.x or first.x.rank != 4:
        return None
    if m.root.attr("axis", 0) not in (3, -1):
        return None
    joined = first.end == rest.start < rest.end == first.x.dim(3)
    return first.x if joined and (first.axis, rest.axis, first.start) == (3, 3, 0) else None


def _rotate(m: Match, x: Value) -> New | None:
    """Heads (batch, rows, heads, size) with the first elements rotated."""
    sizes = numbers(x.dim(2), m.cos.dim(1))
    if not sizes or m.part.dim(3) != 2 * sizes[1]:
        return None
    return by_rows(m, x, num_heads=sizes[0], rotary_embedding_dim=2 * sizes[1])
