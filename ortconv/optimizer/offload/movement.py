"""Operators that move elements, in forms that NNAPI supports: up to rank 4, equal parts, constant padding."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain, combinations, groupby, pairwise, permutations

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operands import ints, producer_of, scalar
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.pad import pad_value
from ortconv.optimizer.basic.transpose_handlers import compress
from ortconv.optimizer.conditions import RESHAPES, SLICE_BY_INPUTS, split_sizes, stated_pads
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import (
    integers,
    is_float,
    may_be_infinite,
    mul,
    op,
    reshape,
    reshaped,
    shape_of,
    sliced,
    transpose,
)
from ortconv.optimizer.parts import AxisRange, slice_of, sliced_part
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import transpose_perm

MOST_AXES = 4
"""Maximum rank that NNAPI supports."""

MOST_PARTS = 6
"""Maximum number of parts that transpositions move in steps: the search for the fewest steps takes long for more."""

MOST_MOVES = 8
"""Maximum number of Transposes and Reshapes of higher ranks, one behind the other."""


def _merged(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, permutation) of an equivalent transposition without axes of size 1, and with axes that stay together merged."""
    order = [a for a in perm if shape[a] != 1]
    kept = sorted(order)
    shifts = groupby(
        enumerate(order), lambda place: kept.index(place[1]) - place[0]
    )  # equal for axes that stay together
    runs = [[a for _, a in run] for _, run in shifts]
    by_place = sorted(runs)
    return tuple(math.prod(shape[a] for a in run) for run in by_place), tuple(by_place.index(run) for run in runs)


_TRANSPOSE = P("Transpose", "x", name="move")


@rule("TransposeToRank4", P(RESHAPES, _TRANSPOSE, ...), _TRANSPOSE)
def lower_transpose(m: Match) -> Replacement:
    """Reshape(Transpose(Reshape(x))) with rank 5 or more inside  ->  the same with at most rank 4, by merging axes that
    stay together; in several steps if more than four parts move, as in a grid of windows

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    move, out = m.node("move"), m.root.out.static_shape
    has_reshape = not move.out.is_output and [reader.op in RESHAPES for reader in move.out.consumers] == [True]
    if out is None or (m.x.rank or 0) <= MOST_AXES or (move is m.root and has_reshape):
        return None
    found = _moved(_flat(m.x, m.root), m.x, move, MOST_AXES if move is m.root else MOST_PARTS)
    return None if found is None else reshape(found, out)


def _moved(source: NewInput | None, x: Value, move: Node, most: int = MOST_PARTS) -> NewInput | None:
    """The elements of Transpose(x) with at most rank 4, from those of x; None if too many parts move."""
    shape = shape_of(x)
    merged, perm = ((), ()) if shape is None else _merged(shape, transpose_perm(move) or ())
    if source is None or shape is None or len(merged) > most:
        return None
    for step in _steps(perm):
        sizes, order = _merged(merged, step)
        if not isinstance(source, Value) or source.static_shape != sizes:
            source = reshape(source, sizes)
        source = transpose(source, order)
        merged = tuple(merged[a] for a in step)
    return source


def _flat(value: Value, root: Node, most: int = MOST_MOVES) -> NewInput | None:
    """The elements of a value with at most rank 4, from before the Transposes and Reshapes of the root's provider that make it."""
    if value.constant is not None or (value.rank is not None and value.rank <= MOST_AXES):
        return value
    node = producer_of(value, "Transpose", *RESHAPES)
    if node is None or node.ep != root.ep or most == 0:
        return None
    x = node.present_inputs[0]
    inner = _flat(x, root, most - 1)
    return inner if node.op in RESHAPES else _moved(inner, x, node)


@cache
def _steps(perm: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The fewest permutations that together equal this one, each of at most four runs of axes."""
    found: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {tuple(range(len(perm))): ()}
    for order in (orders := [*found]):
        if order == perm:
            break
        for step in _moves(len(perm)):
            if (reached := tuple(order[a] for a in step)) not in found:
                found[reached] = (*found[order], step)
                orders.append(reached)
    return found[perm]


@cache
def _moves(axes: int) -> list[tuple[int, ...]]:
    """The permutations of a number of axes that move at most four runs of neighbors. Those that leave the last axis come first."""
    cuts = [c for n in range(1, MOST_AXES) for c in combinations(range(1, axes), n)]
    runs = [[range(a, b) for a, b in pairwise((0, *cut, axes))] for cut in cuts]
    moves = [tuple(chain.from_iterable(order)) for parts in runs for order in permutations(parts)]
    return sorted(moves, key=lambda move: move[-1] != axes - 1)


@rule("ConcatToRank4", P(RESHAPES, P("Concat", ..., name="concat"), ...))
def lower_concat(m: Match) -> Replacement:
    """Reshape(Concat(Reshape(a), Reshape(b))) with rank 5 or more inside  ->  the same with rank 3, by merging the other axes

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    concat = m.node("concat")
    whole, out = shape_of(concat.out), m.root.out.static_shape
    if whole is None or out is None or len(whole) <= MOST_AXES:
        return None
    axis = concat.attr("axis", 0) % len(whole)
    parts: list[NewInput] = []
    for value in concat.inputs:
        shape, source = shape_of(value), _source(value)
        if shape is None or source is None:
            return None
        merged = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        parts.append(reshaped(source, merged))
    return reshape(New("Concat", parts, {"axis": 1}, like=concat), out)


def _source(value: Value | None) -> Value | None:
    """A value of at most rank 4 with the same elements: a constant, or the input of a Reshape that makes it."""
    if value is None or value.constant is not None:
        return value
    node = producer_of(value, *RESHAPES)
    found = None if node is None else node.inputs[0]
    return found if found is not None and found.rank is not None and found.rank <= MOST_AXES else None


_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")


@rule("BinaryToRank4", P(RESHAPES, P(_BINARY, "a", "b", name="op"), ...))
def lower_binary(m: Match) -> Replacement:
    """Reshape(Add(Reshape(a), Reshape(b))) with rank 5 or more inside  ->  the same with at most rank 4, by merging axes that
    broadcast alike

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    node, out = m.node("op"), m.root.out.static_shape
    whole, left, right, a, b = (*map(shape_of, (node.out, m.a, m.b)), _source(m.a), _source(m.b))
    if whole is None or left is None or right is None or out is None or a is None or b is None:
        return None
    merged = _merged_operands(whole, left, right)
    if len(whole) <= MOST_AXES or len(merged) > MOST_AXES:
        return None
    first, second = zip(*merged, strict=True) if merged else ((1,), (1,))
    return reshape(New(node.op, [reshaped(a, first), reshaped(b, second)], like=node), out)


@rule("ExpandToRank4", P(RESHAPES, P("Expand", "x", ..., name="copy"), ...))
def lower_expand(m: Match) -> Replacement:
    """Reshape(Expand(Reshape(x))) with rank 5 or more inside  ->  Reshape(Reshape(x) * ones) with at most rank 4, as for keys
    that several heads share

    Opt-in: multiplies by 1; useful only for an accelerator that supports only up to rank 4.
    """
    whole, shape, out, x = (*map(shape_of, (m.node("copy").out, m.x)), m.root.out.static_shape, _flat(m.x, m.root))
    if whole is None or shape is None or out is None or x is None or len(whole) <= MOST_AXES or not is_float(m.x):
        return None
    merged = _merged_operands(whole, whole, shape) or [(1, 1)]
    ones = [full if part != full else 1 for full, part in merged]
    if len(merged) > MOST_AXES or math.prod(ones) > LARGEST_CONSTANT:
        return None
    return reshape(mul(reshape(x, (part for _, part in merged)), np.ones(ones, np.float32)), out)


def _merged_operands(whole: tuple[int, ...], *operands: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The lengths of two operands along the axes that remain if axes of size 1 go, and those that broadcast alike are merged."""
    aligned = [(1,) * (len(whole) - len(shape)) + shape for shape in operands]
    runs: list[tuple[int, tuple[bool, ...]]] = []
    for size, *lengths in zip(whole, *aligned, strict=True):
        stretches = tuple(length != size for length in lengths)
        if runs and runs[-1][1] == stretches:
            runs[-1] = (runs[-1][0] * size, stretches)
        elif size != 1:
            runs.append((size, stretches))
    return [tuple(1 if stretched else size for stretched in stretches) for size, stretches in runs]


_SLICES = (P("Gather", "x", C("index", one=True)), P("Squeeze", P("Slice", ...), ...), P("Squeeze", "x", ...))


@rule("SliceToRank4", *_SLICES)
def lower_slice(m: Match) -> Replacement:
    """One of the slices that are stacked in Transpose(Reshape(x)) with rank 5 or more  ->  Transpose(Reshape(Slice(Reshape(x))))
    with at most rank 4, as for query, key and value of a projection

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    part = slice_of(m.root.out) if m.graph.opset() >= SLICE_BY_INPUTS else None
    if part is None:
        return None
    move = producer_of(part.x, "Transpose")
    stack = part.x if move is None else move.inputs[0]
    shape, source = shape_of(stack), _source(stack)
    if shape is None or source is None or len(shape) != MOST_AXES + 1 or _is_elsewhere(m.root, part.x, stack):
        return None
    perm = transpose_perm(move) or tuple(range(len(shape)))
    axis, order = perm[part.axis], compress(perm, (part.axis,))
    found = reshape(_rows(source, shape, part._replace(axis=axis)), shape[:axis] + shape[axis + 1 :])
    return found if order is None else transpose(found, order)


def _rows(source: NewInput, shape: tuple[int, ...], part: AxisRange) -> New:
    """A part along one axis of a shape, as rank 3."""
    axis = part.axis
    rows = reshape(source, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
    return sliced(rows, (part.start,), (part.end,), (1,))


@rule("PartToRank4", P(RESHAPES, P("Slice", ...), ...))
def lower_part(m: Match) -> Replacement:
    """Reshape(Slice(Reshape(x))) with rank 5 or more inside  ->  the same with rank 3, by merging the axes that are not sliced

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    part = sliced_part(m.root.inputs[0]) if m.graph.opset() >= SLICE_BY_INPUTS else None
    out = m.root.out.static_shape
    shape, source = (None, None) if part is None else (shape_of(part.x), _flat(part.x, m.root))
    if part is None or shape is None or source is None or out is None or len(shape) <= MOST_AXES:
        return None
    return reshape(_rows(source, shape, part), out)


def _is_elsewhere(root: Node, *values: Value | None) -> bool:
    """True if another provider than that of the root computes its input 0, or one of these values."""
    makers = [value.producer for value in (*values, root.inputs[0]) if value is not None]
    return any(maker is not None and maker.ep != root.ep for maker in makers)


LARGEST_CONSTANT = 1 << 20
MOST_COPIES = 64


@rule("UnaryToRank4", P(("Floor", "Tanh", "DequantizeLinear"), "x", ...))
def unary_of_low_rank(m: Match) -> Replacement:
    """Floor(x) of rank 5 or more  ->  Reshape(Floor(Reshape(x))) of a matrix; also Tanh, and DequantizeLinear by one scale

    Opt-in: more nodes; useful only for an accelerator that supports only up to rank 4.
    """
    shape, parameters = m.x.static_shape, m.root.present_inputs[1:]
    if shape is None or len(shape) <= MOST_AXES or 0 in shape or any(v.static_shape != () for v in parameters):
        return None
    rows = reshape(m.x, (shape[0], math.prod(shape[1:])))
    return reshape(New(m.root.op, [rows, *m.root.inputs[1:]], m.root.attrs, like=m.root), shape)


@rule("ExpandToMul", P("Expand", "x", C("shape")))
def expand(m: Match) -> Replacement:
    """Expand(x, shape)  ->  x * ones, which broadcasts

    Opt-in: multiplies by 1; useful only if an accelerator supports Mul but not Expand.
    """
    source, out = shape_of(m.x), shape_of(m.root.out)
    if source is None or out is None:
        return None
    known = (1,) * (len(out) - len(source)) + source
    ones = [d if d != s else 1 for d, s in zip(out, known)]
    return mul(m.x, np.ones(ones, np.float32)) if math.prod(ones) <= LARGEST_CONSTANT else None


@rule("TileToConcat", P("Tile", "x", C("repeats")))
def tile(m: Match) -> Replacement:
    """Tile(x, repeats)  ->  Concat(x, x, ...) along each repeated axis

    Opt-in: useful only if an accelerator supports Concat but not Tile.
    """
    repeats = ints(m.repeats)
    if not is_float(m.x) or m.x.rank is None or repeats is None or not all(1 <= r <= MOST_COPIES for r in repeats):
        return None
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
