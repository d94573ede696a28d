"""Rows of heads around attention: rotation before they are split, and head order moved into the weights before and after."""

from __future__ import annotations

from math import prod

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import ints
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim
from ortconv.optimizer.conditions import equal_shapes, numbers
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.attention.heads import SPLIT, SWAP_HEADS, split_of_one_row
from ortconv.optimizer.extended.attention.partial_rotary import (
    by_rows,
    is_plain,
    rotate,
    rotated,
    rotated_by_onnx,
    rotates_each,
)
from ortconv.optimizer.pattern import C, Match, P, PatternInput
from ortconv.optimizer.permutation import transpose_perm


def _both(x: PatternInput) -> tuple[P, P]:
    """Patterns of a RotaryEmbedding of x, of com.microsoft and of operator set 23."""
    return rotated(x), rotated_by_onnx(x)


def _of_rows(m: Match, count: Dim, size: Dim) -> dict[str, Attribute] | None:
    """The attributes with which the matched rotation rotates each head of rows; None if it cannot."""
    rotation, width = m.node("rotation"), m.cos.dim(1)
    if rotation.domain == "":
        return {"num_heads": count} if isinstance(count, int) else None
    return {} if is_plain(rotation) and isinstance(width, int) and size == 2 * width else None


@rule("RotaryRowsFusion", *_both(P("Transpose", "x", name="transpose")))
def rotate_heads(m: Match) -> Replacement:
    """RotaryEmbedding(Transpose(x))  ->  Transpose(Reshape(RotaryEmbedding(Reshape(x)))), if x has rows of heads"""
    attrs, transpose = _of_rows(m, m.x.dim(2), m.x.dim(3)), m.node("transpose")
    if m.x.rank != 4 or transpose_perm(transpose) != SPLIT or attrs is None:
        return None
    heads = by_rows(m, m.x, **attrs)
    return heads and New("Transpose", [heads], like=transpose)


@rule("RotaryRowsFusion", *_both(P("Reshape", "x", "heads", name="split")))
def rotate_one_row(m: Match) -> Replacement:
    """RotaryEmbedding(Reshape(x))  ->  Reshape(RotaryEmbedding(x)), if the only row of x is split into heads"""
    split = m.node("split")
    sizes = split_of_one_row(split)
    attrs = None if sizes is None else _of_rows(m, *sizes)
    return None if attrs is None else New("Reshape", [rotate(m, m.x, m.x.type, **attrs), m.heads], like=split)


NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")


@rule("RotaryRowsFusion", *_both(P(NORMS, P("Transpose", "x", name="transpose"), ..., name="norm")))
def norm_before_transpose(m: Match) -> Replacement:
    """RotaryEmbedding(Norm(Transpose(x)))  ->  RotaryEmbedding(Transpose(Norm(x))), for norms of each row of each head"""
    norm, transpose = m.node("norm"), m.node("transpose")
    if m.x.rank != 4 or transpose_perm(transpose) != SPLIT or not _is_of_rows(norm):
        return None
    before = New(norm.op, [m.x, *norm.inputs[1:]], norm.attrs, like=norm, types=[m.x.type])
    heads = New("Transpose", [before], like=transpose, types=[transpose.out.type])
    return rotate(m, heads, m.root.out.type)


def _is_of_rows(norm: Node) -> bool:
    """True for a norm of (..., rows, size) over the last axis, with scale and bias of this axis, and one result."""
    scales = norm.present_inputs[1:]
    return len(norm.outputs) == 1 and attribute(norm, "axis") in (-1, 3) and all(v.rank == 1 for v in scales)


def _swapped(x: PatternInput) -> P:
    """Pattern for rows x that are split into a matrix of heads, with this matrix transposed, and reshaped to rows."""
    return P("Reshape", P("Transpose", P("Reshape", x, C("heads"), name="split"), name="transpose"), C("rows"))


def _order(m: Match, x: Value) -> Array | None:
    """The columns of x in the order after the transposition of heads; None for any other sequence of nodes."""
    parts = _parts(m)
    if x.rank != 3 or len(parts) != 3 or transpose_perm(m.node("transpose")) != SWAP_HEADS or x.dim(2) != prod(parts):
        return None
    return np.arange(prod(parts)).reshape(parts).transpose(1, 0, 2).reshape(-1)


def _parts(m: Match) -> tuple[int, ...]:
    """(rows and columns of the matrix of heads, head size) into which the first Reshape splits rows; () for any other Reshape."""
    split = m.node("split")
    before, after = split.present_inputs[0].shape or (), split.out.shape or ()
    return numbers(*after[2:]) if equal_shapes(before[:2], after[:2]) else ()


def _reshaped(m: Match, x: New) -> Replacement:
    """The last Reshape, applied to x instead of the transposed heads. Both have the same first two axes."""
    rows = ints(m.rows)
    if rows is None or 0 in rows[2:] or m.root.attr("allowzero", 0):
        return None
    return New("Reshape", [x, m.rows], like=m.root)


@rule("HeadOrderFusion", _swapped(P("MatMul", "x", C("w"), name="product")))
def swap_columns(m: Match) -> Replacement:
    """Reshape(Transpose<0, 1, 3, 2, 4>(Reshape(MatMul(x, w))))  ->  Reshape(MatMul(x, w')), with the columns of w in that order"""
    product = m.node("product")
    order = _order(m, product.out)
    if order is None or m.w.rank != 2 or len(m.w.uses) > 1:
        return None
    weights = np.ascontiguousarray(m.tensor("w").numpy()[:, order])
    return _reshaped(m, New("MatMul", [m.x, weights], like=product, types=[product.out.type]))


@rule("HeadOrderFusion", _swapped(P("Add", "x", C("b"), name="sum", commutative=True)))
def swap_bias(m: Match) -> Replacement:
    "Reshape(Transpose<0, 1, 3, 2, 4>(Reshape(x + b)))  ->  Reshape(Reshape(Transpose(Reshape(x))) + b')"
    order = _order(m, m.x)
    if order is None or m.tensor("b").shape != (m.x.dim(2),):
        return None
    total = New("Add", [_swap(m), m.tensor("b").numpy()[order]], like=m.node("sum"), types=[m.x.type])
    return _reshaped(m, total)


@rule("HeadOrderFusion", _swapped(rotated("x")))
def swap_before_rotation(m: Match) -> Replacement:
    "Reshape(Transpose<0, 1, 3, 2, 4>(Reshape(RotaryEmbedding(x))))  ->  Reshape(RotaryEmbedding(Reshape(Transpose(Reshape(x)))))"
    if _order(m, m.x) is None or not rotates_each(m, *_parts(m)):
        return None
    return _reshaped(m, rotate(m, _swap(m), m.x.type))


_NORM = P(NORMS, P("Reshape", "x", C("cut"), name="by_head"), ..., name="norm")


@rule("HeadOrderFusion", _swapped(_NORM))
def swap_before_norm(m: Match) -> Replacement:
    "Reshape(Transpose<0, 1, 3, 2, 4>(Reshape(Norm(Reshape(x)))))  ->  Reshape(Norm(Reshape(Transpose(Reshape(x)))))"
    by_head, norm, parts = m.node("by_head"), m.node("norm"), _parts(m)
    if _order(m, m.x) is None or not _is_of_rows(norm):
        return None
    if not equal_shapes(by_head.out.shape, (*(m.x.shape or ())[:2], prod(parts[:2]), parts[2])):
        return None
    rows = New("Reshape", [_swap(m), m.cut], like=by_head, types=[by_head.out.type])
    return _reshaped(m, New(norm.op, [rows, *norm.inputs[1:]], norm.attrs, like=norm, types=[norm.out.type]))


@rule("HeadOrderFusion", P("MatMul", _swapped("x"), C("w")))
def swap_rows(m: Match) -> Replacement:
    """MatMul(Reshape(Transpose<0, 1, 3, 2, 4>(Reshape(x))), w)  ->  MatMul(x, w'), with the rows of w in that order"""
    order = _order(m, m.x)
    if order is None or m.w.rank != 2 or m.w.dim(0) != len(order) or len(m.w.uses) > 1:
        return None
    if ints(m.rows) != (0, 0, len(order)):
        return None
    weights = np.empty_like(m.tensor("w").numpy())
    weights[order] = m.tensor("w").numpy()
    return New("MatMul", [m.x, weights], like=m.root)


def _swap(m: Match) -> New:
    """The same Reshapes and Transpose, applied to x."""
    split, transpose = m.node("split"), m.node("transpose")
    rows = New("Reshape", [m.x, m.heads], like=split, types=[split.out.type])
    transposed = New("Transpose", [rows], like=transpose, types=[transpose.out.type])
    shape = np.array([0, 0, prod(_parts(m))], np.int64)
    return New("Reshape", [transposed, shape], types=[m.x.type])


HEAD_ORDER = swap_columns + swap_bias + swap_before_rotation + swap_before_norm + swap_rows

ROTARY_ROWS = rotate_one_row + rotate_heads + norm_before_transpose
