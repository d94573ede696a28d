"""Computations of more axes than NNAPI supports, between Reshapes: the same with at most rank 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, combinations, pairwise, permutations

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import axes_of, constant_of, producer_of
from ortconv.ir.operators import Trait, named
from ortconv.ir.schema import attribute
from ortconv.optimizer.basic.transpose_handlers import compress
from ortconv.optimizer.conditions import RESHAPES, SLICE_BY_INPUTS
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import (
    LARGEST_CONSTANT,
    is_float,
    mul,
    op,
    reshape,
    reshaped,
    shape_of,
    sliced,
    transpose,
)
from ortconv.optimizer.parts import AxisRange, gathered, part_of, slice_of
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.standard_forms import with_axes

MOST_AXES = 4
"""Maximum rank that NNAPI supports."""

MOST_PARTS = 6
"""Maximum number of parts that transpositions move in steps: the search for the fewest steps takes long for more."""

MOST_NODES = 64
"""Maximum number of nodes of higher ranks between Reshapes."""

_MOVES = (*RESHAPES, "Transpose", "Slice", "Split", "Gather", "Expand")
"""Operators that only move elements, or copy them."""

_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")

Shape = tuple[int, ...]


def _merged(shape: Shape, perm: Shape) -> tuple[Shape, Shape]:
    """(shape, permutation) of an equivalent transposition without axes of size 1, and with axes that stay together merged."""
    order = [a for a in perm if shape[a] != 1]
    kept = sorted(order)
    runs: list[list[int]] = []
    for a in order:
        follows = bool(runs) and kept.index(a) == kept.index(runs[-1][-1]) + 1
        if follows:
            runs[-1].append(a)
        else:
            runs.append([a])
    by_place = sorted(runs)
    return tuple(math.prod(shape[a] for a in run) for run in by_place), tuple(by_place.index(run) for run in runs)


def _merged_operands(whole: Shape, *operands: Shape) -> list[Shape]:
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


class _Region:
    """The computation before a node, with at most rank 4: nodes of higher ranks that Reshapes make from values of lower ranks.

    A value is found as one with the same elements in the same order, in any shape of at most rank 4. Nodes that compute, and not
    only move elements, belong to it if they have no other reader, or if all readers move elements.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.found: dict[Value, NewInput] = {}

    def flat(self, value: Value | None) -> NewInput:
        """The elements of a value; None if they cannot be computed with at most rank 4."""
        if value is None or value.constant is not None or (value.rank is not None and value.rank <= MOST_AXES):
            return value
        if value not in self.found:
            self.found[value] = self._lowered(value)
        return self.found[value]

    def shaped(self, value: NewInput, shape: Shape) -> NewInput:
        """The elements of a value, or of an array, in a shape of at most rank 4."""
        return _shaped(self.flat(value) if isinstance(value, Value) else value, shape)

    def _lowered(self, value: Value) -> NewInput:
        node = value.producer
        if node is None or node.ep != self.root.ep or len(self.found) > MOST_NODES or shape_of(value) is None:
            return None
        if node.op not in _MOVES and not _is_repeatable(value):
            return None
        lower = _LOWER.get((node.domain, node.op))
        return None if lower is None else lower(self, value, node)


def _is_repeatable(value: Value) -> bool:
    """True for a result with one reader, or with readers that only move elements: if all become of lower rank, equal nodes merge.

    Readers in another graph do not count: the optimizer tries rewrites on copies.
    """
    graph = None if value.producer is None else value.producer.graph
    readers = {node for node in value.consumers if node.graph is graph}
    return not value.is_output and (len(readers) <= 1 or all(node.op in _MOVES for node in readers))


def _shaped(source: NewInput, shape: Shape) -> NewInput:
    if isinstance(source, Value):
        return source if source.static_shape == shape else reshaped(source, shape)
    if isinstance(source, np.ndarray):
        return source.reshape(shape)
    return None if source is None else reshape(source, shape)


def _made(name: str, inputs: Sequence[NewInput], **attrs: Attribute) -> NewInput:
    """A node, if all of its inputs are known."""
    return None if any(x is None for x in inputs) else op(name, *inputs, **attrs)


def _same(region: _Region, value: Value, node: Node) -> NewInput:
    return region.flat(node.inputs[0])


def _unary(region: _Region, value: Value, node: Node) -> NewInput:
    x = region.flat(node.inputs[0])
    return None if x is None else New(node.op, [x, *node.inputs[1:]], node.attrs)


def _moved(region: _Region, value: Value, node: Node) -> NewInput:
    """Transpose(x) of up to six parts, in steps of four."""
    return _transposed(region.flat(node.inputs[0]), node, MOST_PARTS)


def _transposed(source: NewInput, move: Node, most: int) -> NewInput:
    shape = shape_of(move.inputs[0])
    merged, perm = ((), ()) if shape is None else _merged(shape, transpose_perm(move) or ())
    if source is None or shape is None or len(merged) > most:
        return None
    for step in _steps(perm):
        sizes, order = _merged(merged, step)
        source = transpose(_shaped(source, sizes), order)
        merged = tuple(merged[a] for a in step)
    return source


@cache
def _steps(perm: Shape) -> tuple[Shape, ...]:
    """The fewest permutations that together equal this one, each of at most four runs of axes."""
    found: dict[Shape, tuple[Shape, ...]] = {tuple(range(len(perm))): ()}
    for order in (orders := [*found]):
        if order == perm:
            break
        for step in _permutations(len(perm)):
            if (reached := tuple(order[a] for a in step)) not in found:
                found[reached] = (*found[order], step)
                orders.append(reached)
    return found[perm]


@cache
def _permutations(axes: int) -> list[Shape]:
    """The permutations of a number of axes that move at most four runs of neighbors. Those that leave the last axis come first."""
    cuts = [c for n in range(1, MOST_AXES) for c in combinations(range(1, axes), n)]
    runs = [[range(a, b) for a, b in pairwise((0, *cut, axes))] for cut in cuts]
    moves = [tuple(chain.from_iterable(order)) for parts in runs for order in permutations(parts)]
    return sorted(moves, key=lambda move: move[-1] != axes - 1)


def _binary(region: _Region, value: Value, node: Node) -> NewInput:
    """Add(a, b), with the axes merged that broadcast alike; a constant is repeated if more axes than four remain."""
    whole = shape_of(value)
    shapes = [shape for v in node.inputs if (shape := shape_of(v)) is not None]
    if whole is None or len(shapes) != 2:
        return None
    operands: list[NewInput] = [*node.inputs]
    merged = _merged_operands(whole, *shapes) or [(1, 1)]
    if len(merged) > MOST_AXES:
        operands, merged = _repeated(node, whole, shapes)
    if len(merged) > MOST_AXES:
        return None
    return _made(node.op, [region.shaped(v, shape) for v, shape in zip(operands, zip(*merged), strict=True)])


def _repeated(node: Node, whole: Shape, shapes: Sequence[Shape]) -> tuple[list[NewInput], list[Shape]]:
    """The operands with constants in the shape of the result, unless that is large, and their lengths along merged axes."""
    constants = [constant_of(v) if math.prod(whole) <= LARGEST_CONSTANT else None for v in node.inputs]
    pairs = list(zip(node.inputs, shapes, constants, strict=True))
    operands: list[NewInput] = [v if const is None else np.broadcast_to(const.numpy(), whole) for v, _, const in pairs]
    return operands, _merged_operands(whole, *(shape if const is None else whole for _, shape, const in pairs))


def _copied(region: _Region, value: Value, node: Node) -> NewInput:
    """Expand(x) as a product with ones."""
    whole, shape = shape_of(value), shape_of(node.inputs[0])
    if whole is None or shape is None:
        return None
    merged = _merged_operands(whole, whole, shape) or [(1, 1)]
    ones, x = [full if part != full else 1 for full, part in merged], region.flat(node.inputs[0])
    if x is None or len(merged) > MOST_AXES or math.prod(ones) > LARGEST_CONSTANT:
        return None
    return mul(_shaped(x, tuple(part for _, part in merged)), np.ones(ones, np.float32))


def _around(shape: Shape, axis: int) -> Shape:
    """A shape of rank 3 with the axes before and behind one merged."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _joined(region: _Region, value: Value, node: Node) -> NewInput:
    """Concat(a, b)"""
    axis, parts = node.attr("axis", 0) % (value.rank or 1), []
    for x in node.inputs:
        shape = shape_of(x)
        parts.append(None if shape is None else region.shaped(x, _around(shape, axis)))
    return _made("Concat", parts, axis=1)


def _part(region: _Region, value: Value, node: Node) -> NewInput:
    """Slice(x) along one axis, a part of Split(x), or Gather(x) with one index"""
    if node.parent.opset() < SLICE_BY_INPUTS:
        return None
    part = part_of(value) or gathered(value, keeps=True) or gathered(value, keeps=False)
    return None if part is None else _rows(region.flat(part.x), part)


def _rows(source: NewInput, part: AxisRange) -> NewInput:
    """A part of a value along one axis, as rank 3, from the elements of that value."""
    shape = shape_of(part.x)
    if shape is None or source is None:
        return None
    return sliced(_shaped(source, _around(shape, part.axis)), (part.start,), (part.end,), (1,))


def _softmax(region: _Region, value: Value, node: Node) -> NewInput:
    """Softmax(x) along the last axis"""
    shape = shape_of(value)
    if shape is None or attribute(node, "axis") not in (-1, len(shape) - 1):
        return None
    rows = region.shaped(node.inputs[0], (math.prod(shape[:-1]), shape[-1]))
    return _made("Softmax", [rows], axis=1)


def _product(region: _Region, value: Value, node: Node) -> NewInput:
    """MatMul(a, b) of stacks of equal size, or by one matrix"""
    left, right = map(shape_of, node.inputs)
    if left is None or right is None or not (len(right) == 2 or left[:-2] == right[:-2]):
        return None
    stack = () if len(right) == 2 else (math.prod(left[:-2]),)
    rows = math.prod(left[:-1]) // math.prod(stack)
    operands = [
        region.shaped(node.inputs[0], (*stack, rows, left[-1])),
        region.shaped(node.inputs[1], (*stack, *right[-2:])),
    ]
    return _made("MatMul", operands)


def _reduced(region: _Region, value: Value, node: Node) -> NewInput:
    """ReduceMean(x) or another reduction over neighboring axes"""
    shape, stated = shape_of(node.inputs[0]), axes_of(node)
    axes = sorted({a % len(shape) for a in stated}) if shape and stated else []
    if shape is None or not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    first, end = axes[0], axes[-1] + 1
    merged = math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(shape[end:])
    x = region.shaped(node.inputs[0], merged)
    return None if x is None else with_axes(node.op, x, (1,), node.parent, keepdims=1)


_LOWER: Mapping[tuple[str, str], Callable[[_Region, Value, Node], NewInput]] = {
    ("", name): lower
    for names, lower in (
        (RESHAPES, _same),
        (named(Trait.ELEMENTWISE), _unary),
        (_BINARY, _binary),
        (("Transpose",), _moved),
        (("Expand",), _copied),
        (("Concat",), _joined),
        (("Slice", "Split", "Gather"), _part),
        (("Softmax",), _softmax),
        (("MatMul",), _product),
        (("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), _reduced),
    )
    for name in names
}


def _lowered(m: Match) -> Replacement:
    """The input of the root, which has a higher rank, in the shape of the root."""
    x, out = m.root.inputs[0], m.root.out.static_shape
    if x is None or out is None or (x.rank or 0) <= MOST_AXES:
        return None
    found = _Region(m.root).flat(x)
    return None if found is None else reshape(found, out)


_TRANSPOSE = P("Transpose", "x", name="move")


@rule("TransposeToRank4", P(RESHAPES, _TRANSPOSE, ...), _TRANSPOSE)
def lower_transpose(m: Match) -> Replacement:
    """Reshape(Transpose(Reshape(x))) with rank 5 or more inside  ->  the same with at most rank 4, by merging axes that
    stay together; in several steps if more than four parts move, as in a grid of windows

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    move, out = m.node("move"), m.root.out.static_shape
    if out is None or (m.x.rank or 0) <= MOST_AXES or (move is m.root and _is_before_reshape(move)):
        return None
    found = _transposed(_Region(m.root).flat(m.x), move, MOST_AXES if move is m.root else MOST_PARTS)
    return None if found is None else reshape(found, out)


def _is_before_reshape(move: Node) -> bool:
    """True for a node whose only reader is the root of the pattern with a Reshape after it."""
    return not move.out.is_output and [reader.op in RESHAPES for reader in move.out.consumers] == [True]


@rule("ConcatToRank4", P(RESHAPES, P("Concat", ...), ...))
def lower_concat(m: Match) -> Replacement:
    """Reshape(Concat(Reshape(a), Reshape(b))) with rank 5 or more inside  ->  the same with rank 3, by merging the other axes

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    return _lowered(m)


@rule("BinaryToRank4", P(RESHAPES, P(_BINARY, ...), ...))
def lower_binary(m: Match) -> Replacement:
    """Reshape(Add(Reshape(a), Reshape(b))) with rank 5 or more inside  ->  the same with at most rank 4, by merging axes that
    broadcast alike

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    return _lowered(m)


@rule("ExpandToRank4", P(RESHAPES, P("Expand", ...), ...))
def lower_expand(m: Match) -> Replacement:
    """Reshape(Expand(Reshape(x))) with rank 5 or more inside  ->  Reshape(Reshape(x) * ones) with at most rank 4, as for keys
    that several heads share

    Opt-in: multiplies by 1; useful only for an accelerator that supports only up to rank 4.
    """
    return _lowered(m)


@rule(
    "SliceToRank4", P("Gather", "x", C("index", one=True)), P("Squeeze", P("Slice", ...), ...), P("Squeeze", "x", ...)
)
def lower_slice(m: Match) -> Replacement:
    """One of the slices that are stacked in Transpose(Reshape(x)) with rank 5 or more  ->  Transpose(Reshape(Slice(Reshape(x))))
    with at most rank 4, as for query, key and value of a projection

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    part = slice_of(m.root.out) if m.graph.opset() >= SLICE_BY_INPUTS else None
    if part is None:
        return None
    move = producer_of(part.x, "Transpose")
    stack = part.x if move is None else move.present_inputs[0]
    shape = shape_of(stack) or ()
    if len(shape) != MOST_AXES + 1 or _is_elsewhere(m.root, part.x, stack):
        return None
    perm = transpose_perm(move) or tuple(range(len(shape)))
    axis, order = perm[part.axis], compress(perm, (part.axis,))
    rows = _rows(_Region(m.root).flat(stack), part._replace(x=stack, axis=axis))
    if rows is None:
        return None
    found = reshape(rows, shape[:axis] + shape[axis + 1 :])
    return found if order is None else transpose(found, order)


def _is_elsewhere(root: Node, *values: Value | None) -> bool:
    """True if another provider than that of the root computes its input 0, or one of these values."""
    makers = [value.producer for value in (*values, root.inputs[0]) if value is not None]
    return any(maker is not None and maker.ep != root.ep for maker in makers)


@rule("PartToRank4", P(RESHAPES, P(("Slice", "Split", "Gather"), ...), ...))
def lower_part(m: Match) -> Replacement:
    """Reshape(Slice(Reshape(x))) with rank 5 or more inside  ->  the same with rank 3, by merging the axes that are not sliced;
    also Gather with one index

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    return _lowered(m)


@rule("ProductToRank4", P(RESHAPES, P(("MatMul", "Softmax"), ...), ...))
def lower_product(m: Match) -> Replacement:
    """Reshape(MatMul(Reshape(a), Reshape(b))) with rank 5 or more inside  ->  the same with rank 3, for stacks of equal size; also
    Softmax along the last axis

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    return _lowered(m)


@rule("MeanToRank4", P("ReduceMean", "x", ...))
def lower_mean(m: Match) -> Replacement:
    """ReduceMean(Reshape(x)) of rank 5 or more over neighboring axes, with a result of lower rank  ->  the same with rank 3

    Opt-in: useful only for an accelerator that supports only up to rank 4.
    """
    out = m.root.out.static_shape
    if (m.x.rank or 0) <= MOST_AXES or out is None or len(out) > MOST_AXES or not is_float(m.x):
        return None
    found = _reduced(_Region(m.root), m.root.out, m.root)
    return None if found is None else reshape(found, out)


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
