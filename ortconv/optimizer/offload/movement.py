"""Operators that move elements, in forms that NNAPI supports: up to rank 4, equal parts, constant padding."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operands import ints, scalar
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.pad import pad_value
from ortconv.optimizer.conditions import split_sizes, stated_pads
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import (
    LARGEST_CONSTANT,
    integers,
    is_float,
    may_be_infinite,
    mul,
    op,
    shape_of,
    sliced,
    transpose,
)
from ortconv.optimizer.pattern import C, Match, P

MOST_COPIES = 64


@rule("ExpandToMul", P("Expand", "x", C("shape")))
def expand(m: Match) -> Replacement:
    """Expand(x, shape)  ->  x * ones, which broadcasts

    Opt-in: multiplies by 1; useful only if an accelerator supports Mul but not Expand.
    """
    return _broadcast(m)


def _broadcast(m: Match) -> Replacement:
    """The product of x and ones in the shape of the result; None if it would repeat axes of other sizes than 1, or be too large."""
    source, out = shape_of(m.x), shape_of(m.root.out)
    if source is None or out is None:
        return None
    known = (1,) * (len(out) - len(source)) + source
    ones = [d if d != s else 1 for d, s in zip(out, known)]
    fits = all(s in (1, d) for d, s in zip(out, known)) and math.prod(ones) <= LARGEST_CONSTANT
    return mul(m.x, np.ones(ones, np.float32)) if fits else None


@rule("TileToConcat", P("Tile", "x", C("repeats")))
def tile(m: Match) -> Replacement:
    """Tile(x, repeats)  ->  Concat(x, x, ...) along each repeated axis; x * ones for many copies along axes of size 1

    Opt-in: useful only if an accelerator supports Concat but not Tile.
    """
    repeats = ints(m.repeats)
    if not is_float(m.x) or m.x.rank is None or repeats is None or min(repeats, default=1) < 1:
        return None
    if any(r > MOST_COPIES for r in repeats):
        return _broadcast(m)
    y: NewInput = m.x
    for axis, count in enumerate(repeats):
        if count > 1:
            y = op("Concat", *[y] * count, axis=axis)
    return y if isinstance(y, New) else op("Identity", y)


@rule("SplitToSlices", P("Split", "x", ...))
def split(m: Match) -> Replacement:
    """Split(x)  ->  one Slice per part

    Opt-in: more nodes; useful only if an accelerator supports only equal parts, or no Split of this version.
    """
    node, rank = m.root, m.x.rank
    if not is_float(m.x) or not rank or m.graph.opset() < 10 or None in node.outputs:
        return None
    axis = node.attr("axis", 0) % rank
    size = m.x.dim(axis)
    parts = split_sizes(node, size)
    if parts is None or sum(parts) != size or min(parts) < 1:
        return None
    ends = np.cumsum(parts).tolist()
    return tuple(sliced(m.x, (start,), (end,), (axis,)) for start, end in pairwise((0, *ends)))


@rule("SliceToGather", P("Slice", "x"))
def slices(m: Match) -> Replacement:
    """Slice<axes, starts, ends>(x) before opset 10  ->  Gather of a range along each axis

    Opt-in: useful only if an accelerator supports Gather but no Slice of this version.
    """
    shape = m.x.static_shape
    if not is_float(m.x) or shape is None or m.graph.opset() >= 10:
        return None
    starts, ends = m.root.attr("starts", Ints()), m.root.attr("ends", Ints())
    y: NewInput = m.x
    for axis, start, end in zip(m.root.attr("axes", Ints(range(len(starts)))), starts, ends):
        y = op("Gather", y, integers(range(*slice(start, end).indices(shape[axis]))), axis=axis)
    return y if isinstance(y, New) else None


@rule("GatherToPlainGather", P("Gather", "x", C("indices")))
def plain_gather(m: Match) -> Replacement:
    """Gather(x, indices)  ->  the same with int64 indices of at least 0

    Opt-in: useful only for an accelerator that does not count from the end, or that supports no single int32 index.
    """
    indices, shape = m.indices.constant, m.x.static_shape
    if indices is None or not shape:
        return None
    axis = m.root.attr("axis", 0)
    stated = indices.numpy().astype(np.int64)
    plain = np.where(stated < 0, stated + shape[axis], stated)
    if np.array_equal(plain, stated) and indices.dtype is DType.INT64:
        return None
    return New("Gather", [m.x, plain], m.root.attrs, like=m.root)


def _padding(m: Match) -> tuple[tuple[int, ...], list[tuple[int, int]]] | None:
    """The shape of x, and the padding at the start and end of each axis; None if they are unknown."""
    shape = shape_of(m.x)
    pads = stated_pads(m.root, len(shape)) if shape else None
    return None if shape is None or pads is None else (shape, list(zip(pads, pads[len(shape) :])))


def _mode(node: Node) -> str:
    return str(attribute(node, "mode") or "constant")


@rule("PadToGather", P("Pad", "x", ...))
def mirrored(m: Match) -> Replacement:
    """Pad<reflect, edge or wrap>(x)  ->  Gather along each padded axis

    Opt-in: useful only if an accelerator supports only constant padding.
    """
    mode, found = _mode(m.root), _padding(m)
    if found is None or mode not in ("reflect", "edge", "wrap"):
        return None
    y: NewInput = m.x
    for axis, (size, (begin, end)) in enumerate(zip(*found)):
        least = 1 - size if mode == "edge" else 0
        most = size - 1 if mode == "reflect" else size
        if min(begin, end) < 0 or (mode != "edge" and max(begin, end) > most) or least > 0:
            return None
        if begin or end:
            index = np.pad(np.arange(size), (begin, end), mode=mode)  # type: ignore[call-overload]
            y = op("Gather", y, index.astype(np.int64), axis=axis)
    return y if isinstance(y, New) else op("Identity", y)


@rule("PadToPlainPad", P("Pad", "x", ...))
def plain_pad(m: Match) -> Replacement:
    """Pad of some axes, by negative amounts, or with an empty name for its value  ->  Slice(x), and Pad of all axes

    Opt-in: useful only for an accelerator that has only the plain form.
    """
    node, found, value = m.root, _padding(m), pad_value(m.root)
    if found is None or value is None or _mode(node) != "constant" or m.graph.opset() < 11:
        return None
    x = _cropped(m.x, *found)
    is_plain = len(node.inputs) < 4 and None not in node.inputs[2:]
    if x is None or (x is m.x and is_plain):
        return None
    return New("Pad", [x, integers(np.maximum(found[1], 0).T.reshape(-1)), np.array(value, np.float32)], like=node)


def _cropped(x: Value, shape: tuple[int, ...], pads: list[tuple[int, int]]) -> NewInput:
    """x without the elements that negative pads remove; None if nothing remains."""
    cut = [a for a, pair in enumerate(pads) if min(pair) < 0]
    starts = [max(0, -pads[a][0]) for a in cut]
    ends = [shape[a] + min(0, pads[a][1]) for a in cut]
    if any(end <= start for start, end in zip(starts, ends)):
        return None
    return sliced(x, starts, ends, cut) if cut else x


@rule("PadToConcat", P("Pad", "x", ...))
def filled(m: Match) -> Replacement:
    """Pad<constant>(x)  ->  Concat with constants along each padded axis

    Opt-in: adds constants; useful only if an accelerator supports Concat but no Pad of this version.
    """
    found, value = _padding(m), pad_value(m.root)
    if found is None or value is None or _mode(m.root) != "constant":
        return None
    shape, pads = found
    dims, total = list(shape), 0
    y: Value | New = m.x
    for axis, pair in enumerate(pads):
        if min(pair) < 0:
            return None
        blocks: list[Array] = [np.full((*dims[:axis], p, *dims[axis + 1 :]), value, np.float32) for p in pair]
        total += sum(b.size for b in blocks)
        parts: list[NewInput] = [*([blocks[0]] if pair[0] else []), y, *([blocks[1]] if pair[1] else [])]
        y = op("Concat", *parts, axis=axis) if len(parts) > 1 else y
        dims[axis] += sum(pair)
    return y if isinstance(y, New) and total <= LARGEST_CONSTANT else None


LONGEST_SUM = 512


@rule("CumSumToMatMul", P("CumSum", "x", C("axis", one=True)))
def cumulative(m: Match) -> Replacement:
    """CumSum(x)  ->  MatMul(x, triangle of ones), between Transposes unless the axis is the last

    Opt-in: for each sum as many products as the axis has elements. An infinite element makes its whole row NaN, so x must not
    depend on an infinite constant or on the logarithm of a sigmoid.
    """
    rank = m.x.rank
    if not is_float(m.x) or rank is None or rank < 2 or may_be_infinite(m.x):
        return None
    axis = int(scalar(m.axis) or 0) % rank
    size = m.x.dim(axis)
    if not isinstance(size, int) or not 1 <= size <= LONGEST_SUM:
        return None
    triangle = np.triu(np.ones((size, size), np.float32), 1 if m.root.attr("exclusive", 0) else 0)
    if m.root.attr("reverse", 0):
        triangle = np.ascontiguousarray(triangle.T)
    if axis == rank - 1:
        return op("MatMul", m.x, triangle)
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return transpose(op("MatMul", transpose(m.x, perm), triangle), perm)
