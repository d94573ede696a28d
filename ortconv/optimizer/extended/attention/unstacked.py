"""Separates batch and heads that attention has in one axis, as PyTorch's MultiheadAttention does with need_weights=True."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import Shape
from ortconv.optimizer.basic.swapped import UNSTACKED
from ortconv.optimizer.conditions import numbers, with_shape
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P, with_factor
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.shapes import elements, keeps_dim, target

_MERGE = (1, 0, 2)


def _heads(name: str) -> P:
    return P("Transpose", P("Reshape", name, ..., name=f"{name}_split"), name=f"{name}_swap")


def _attention(query: P) -> P:
    softmax = P("Softmax", P("MatMul", query, _heads("k"), name="multiply"), name="softmax")
    merge = P("Transpose", P("MatMul", softmax, _heads("v"), name="weigh"), name="merge")
    return P("Reshape", merge, "shape")


_QUERIES = (_heads("q"), *with_factor(_heads("q"), C("factor", one=True), "scale"))


@rule("UnstackedAttention", *map(_attention, _QUERIES))
def unstack(m: Match) -> Replacement:
    """Attention of heads (batch * count, length, size) without a mask  ->  attention of heads (batch, count, length, size)

    Transposes swap the first two axes of the heads before and after it.
    """
    sides = [side for name in "qkv" if (side := _side(m, name)) is not None]
    softmax, merge = m.node("softmax"), m.node("merge")
    if len(sides) < 3 or len({side.heads for side in sides}) > 1 or transpose_perm(merge) != _MERGE:
        return None
    if attribute(softmax, "axis") not in (-1, 2) or _may_copy(m.shape):
        return None
    query, key, value = sides
    left, scale = query.split, m.optional_node("scale")
    if scale is not None:
        left = New(scale.op, [left, m.factor], like=scale, types=left.types)
    rows, keys = query.dims[2], key.dims[3]
    scores = _product(m.node("multiply"), left, key.split, (*query.dims[:2], rows, keys))
    weights = New("Softmax", [scores], {"axis": -1}, like=softmax, types=scores.types)
    result = _product(m.node("weigh"), weights, value.split, (*query.dims[:2], rows, value.dims[3]))
    swapped = with_shape(m.root.out, (rows, *query.dims[:2], value.dims[3]))
    apart = New("Transpose", [result], {"perm": Ints((2, 0, 1, 3))}, like=merge, types=[swapped])
    return New("Reshape", [apart, m.shape], like=m.root)


def _may_copy(shape: Value) -> bool:
    """True if the shape of a Reshape may have a 0, other than the first element, which would copy another dimension."""
    found = elements(shape)
    return found is None or not {0, None}.isdisjoint(found[1:])


class _Side(NamedTuple):
    """Query, key or value: heads with separate axes, their number, and their dimensions."""

    split: New
    heads: int
    dims: Shape


def _side(m: Match, name: str) -> _Side | None:
    """A side whose Reshape and Transpose are as expected, from rows (length, batch, hidden), which may be flat; else None."""
    x, reshape, swap = getattr(m, name), m.node(f"{name}_split"), m.node(f"{name}_swap")
    perm, wanted, stacked = transpose_perm(swap), target(reshape), reshape.out
    sizes = numbers(x.dim(-1), stacked.dim(2))
    if perm not in UNSTACKED or wanted is None or stacked.rank != 3 or len(sizes) < 2 or sizes[0] % sizes[1]:
        return None
    count, size = sizes[0] // sizes[1], sizes[1]
    if x.rank == 3:
        outer, spec = (x.dim(0), x.dim(1)), (0, 0, count, size)
        is_known = keeps_dim(reshape, wanted, 0)
    else:
        length, stacks = numbers(stacked.dim(0), stacked.dim(1)) or (0, 0)
        outer, is_known = (length, stacks // count), x.rank == 2 and stacks > 0 and stacks % count == 0
        spec = (*outer, count, size)
    if not is_known:
        return None
    dims, after = (*outer, count, size), UNSTACKED[perm]
    apart = New("Reshape", [x, np.array(spec, np.int64)], like=reshape, attrs={}, types=[with_shape(x, dims)])
    moved = tuple(dims[axis] for axis in after)
    split = New("Transpose", [apart], {"perm": Ints(after)}, like=swap, types=[with_shape(x, moved)])
    return _Side(split, count, moved)


def _product(node: Node, a: New, b: New, shape: Shape) -> New:
    return New("MatMul", [a, b], like=node, types=[with_shape(node.out, shape)])
