"""Repeated slices, such as heads that several queries share, are gathered at once, or not repeated at all."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Ints, Value
from ortconv.ir.operands import axes_of
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim, DType, Shape, TensorType
from ortconv.optimizer.conditions import equal_shapes, keeps_rank, numbers, same_dim, with_shape
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.attention.heads import repeats, scaling_of
from ortconv.optimizer.pattern import C, Match, P, with_factor
from ortconv.optimizer.permutation import permuted_type, transpose_perm
from ortconv.optimizer.shapes import dim_of, expressed

_COPYING = ("Expand", "Tile")
_WIDE = P(_COPYING, P("Unsqueeze", "x", ..., name="unsqueeze"), ..., name="expand")


@rule("RepeatFusion", P("Reshape", _WIDE, ...))
def fuse_repeat(m: Match) -> Replacement:
    """Reshape(Expand(Unsqueeze(x, axis + 1)))  ->  Gather(x, [0, 0, 1, 1, ...], axis), behind it a Reshape that merges more; also
    with Tile
    """
    copied = _copied_slices(m)
    if copied is None:
        return None
    axis, count, copies = copied
    shape = m.x.shape or ()
    index = np.repeat(np.arange(count, dtype=np.int64), copies)
    merged = (*shape[:axis], count * copies, *shape[axis + 1 :])
    if equal_shapes(m.root.out.shape, merged):
        return New("Gather", [m.x, index], {"axis": axis})
    target = numbers(*(m.root.out.shape or ()))
    if not target or len(target) > len(shape):
        return None
    gather = New("Gather", [m.x, index], {"axis": axis}, types=[with_shape(m.x, merged)])
    return New("Reshape", [gather, np.array(target, np.int64)], {})


def _copied_slices(m: Match) -> tuple[int, int, int] | None:
    """The axis of x whose slices are copied, their number, and the number of copies of each; None if anything else is copied."""
    shape, wide, axes = m.x.shape, m.node("expand").out.shape, axes_of(m.node("unsqueeze"))
    if shape is None or wide is None or len(wide) != len(shape) + 1 or not axes or len(axes) != 1:
        return None
    axis = axes[0] % len(wide) - 1
    sizes = numbers(shape[axis], wide[axis + 1])
    if axis < 0 or not sizes or not equal_shapes(wide, (*shape[: axis + 1], sizes[1], *shape[axis + 1 :])):
        return None
    return axis, sizes[0], sizes[1]


@rule("RepeatFusion", P("Reshape", P(_COPYING, "x", ..., name="expand"), ...))
def fuse_static_repeat(m: Match) -> Replacement:
    """Reshape(Expand(x)), where an axis of length 1 grows and merges with the one before  ->  Gather(Reshape(x), [0, 0,
    1, 1, ...], axis)
    """
    dims, wide = m.x.shape, m.node("expand").out.shape
    at = _grown_axis(dims, wide)
    if dims is None or wide is None or not at:
        return None
    count, copies = wide[at - 1], wide[at]
    if not isinstance(count, int) or not isinstance(copies, int):
        return None
    if not equal_shapes(m.root.out.shape, (*wide[: at - 1], count * copies, *wide[at + 1 :])):
        return None
    shape = (*dims[:at], *dims[at + 1 :])
    spec = expressed([dim_of(m.x, axis) for axis in range(len(dims)) if axis != at], m.x)
    if spec is None:
        return None
    rows = New("Reshape", [m.x, np.array(spec, np.int64)], {}, types=[with_shape(m.x, shape)])
    index = np.repeat(np.arange(count, dtype=np.int64), copies)
    return New("Gather", [rows, index], {"axis": at - 1})


def _grown_axis(dims: Shape | None, wide: Shape | None) -> int | None:
    """The only axis of length 1 that has another length afterward; None if other axes change, too, or there are no elements."""
    if dims is None or wide is None or len(dims) != len(wide) or 0 in wide:
        return None
    grown = [i for i, (d, w) in enumerate(zip(dims, wide)) if not same_dim(d, w)]
    return grown[0] if len(grown) == 1 and dims[grown[0]] == 1 else None


_REPEATED = P("Gather", "x", C("index"), name="gather")


@rule("GroupedMatMulFusion", P("Transpose", _REPEATED))
def transpose_before_repeat(m: Match) -> Replacement:
    """Transpose(Gather(x, [0, 0, 1, 1, ...]))  ->  Gather(Transpose(x), [0, 0, 1, 1, ...]) along the new position of the axis"""
    gather = m.node("gather")
    perm, x = transpose_perm(m.root), m.x
    if perm is None or x.shape is None or repeats(gather) is None:
        return None
    inner = New("Transpose", [x], {"perm": Ints(perm)}, types=[permuted_type(x.type, perm)])
    axis = perm.index(gather.attr("axis", 0) % len(perm))
    return New("Gather", [inner, m.index], {"axis": axis}, like=gather)


@rule("GroupedMatMulFusion", *with_factor(_REPEATED, C("factor", one=True)))
def scale_before_repeat(m: Match) -> Replacement:
    "Gather(x, [0, 0, 1, 1, ...]) * factor  ->  Gather(x * factor, [0, 0, 1, 1, ...])"
    gather = m.node("gather")
    if not keeps_rank(m.x, m.factor) or repeats(gather) is None:
        return None
    inner = New(m.root.op, [m.x, m.factor], {}, types=[m.x.type])
    return New("Gather", [inner, m.index], like=gather)


@rule("GroupedMatMulFusion", P("MatMul", "a", _REPEATED))
def multiply_groups(m: Match) -> Replacement:
    """MatMul(a, Gather<axis 1>(x, [0, 0, 1, 1, ...]))  ->  Reshape(MatMul(Reshape(a), x)), each matrix with one group of rows

    Counterpart: none: beyond ONNX Runtime, whose GroupQueryAttentionFusion supports other providers only
    """
    gather = m.node("gather")
    a, x = m.a.shape, m.x.shape
    copies = repeats(gather)
    if a is None or x is None or len(a) != 4 or len(x) != 4 or gather.attr("axis", 0) not in (1, -3):
        return None
    if copies is None or m.a.dtype not in (DType.FLOAT, DType.DOUBLE) or not isinstance(x[1], int):
        return None
    if a[1] != x[1] * copies or 0 in (*a, *x):
        return None
    rows = a[2] * copies if isinstance(a[2], int) else None
    groups = _grouped(m.a, _shape(x[1], rows), TensorType(m.a.dtype, (a[0], x[1], rows, a[3])))
    type = TensorType(m.a.dtype, (m.root.out.dim(0), x[1], rows, x[3]))
    products = New("MatMul", [groups, m.x], like=m.root, types=[type])
    return New("Reshape", [products, _shape(a[1], a[2])], {})


def _grouped(rows: Value, shape: Array, type: TensorType) -> New:
    """A Reshape of rows, before their scale if they have one, so that the scale can be fused into the product."""
    scaling = scaling_of(rows)
    if scaling is None:
        return New("Reshape", [rows, shape], {}, types=[type])
    node, x, _ = scaling
    groups = New("Reshape", [x, shape], {}, types=[type])
    return New(node.op, [groups if v is x else v for v in node.present_inputs], types=[type])


_SPLIT_PRODUCT = P("Reshape", P("MatMul", "a", "b", name="matmul"), "shape", name="reshape")


@rule("GroupedMatMulFusion", *with_factor(_SPLIT_PRODUCT, C("k", one=True)))
def scale_before_reshape(m: Match) -> Replacement:
    """Reshape(MatMul(a, b)) * k  ->  Reshape(MatMul(a, b) * k), so that the factor can be fused into the product"""
    product = m.node("matmul").out
    if product.rank is None or m.tensor("k").rank > min(product.rank, m.root.out.rank or 0):
        return None
    inner = New(m.root.op, [product, m.k], {}, like=m.root, types=[product.type])
    return New("Reshape", [inner, m.shape], like=m.node("reshape"))


def _shape(count: int, rows: Dim) -> Array:
    """The target of a Reshape with this length for the second axis; the third one has its length, or -1 if it is unknown."""
    return np.array([0, count, rows if isinstance(rows, int) else -1, 0], np.int64)


REPEATS = fuse_repeat + fuse_static_repeat
PRODUCTS = transpose_before_repeat + scale_before_repeat + multiply_groups + scale_before_reshape
