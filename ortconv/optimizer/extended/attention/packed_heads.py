"""Query, key and value that are selected along an axis of their own become parts of the rows, or columns of each head."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, ints, producer_of, reader_of
from ortconv.ir.types import Shape, TensorType
from ortconv.optimizer.conditions import numbers
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.extended.attention.heads import SPLIT_TRANSPOSED, split_of
from ortconv.optimizer.extended.parts import gathered, part_of
from ortconv.optimizer.insertion import insert, integers, with_list
from ortconv.optimizer.permutation import Perm, identity, permuted_type, transpose_perm
from ortconv.optimizer.shapes import dim_of, refined, target

PARTS = 3
BEFORE_HEADS, IN_HEADS = 2, 3
"""The axis of the parts in (batch, rows, 3, heads, size), and in (batch, rows, heads, 3, size)."""

ADDED = -1
"""An axis of length 1 that the Reshape or an Unsqueeze adds."""


class Packed(NamedTuple):
    """A Reshape that splits rows into parts."""

    axes: Perm
    """The axes of the result: their numbers without added ones, or ADDED."""
    axis: int
    """The number of the axis of the parts."""
    parts: int
    shape: Shape
    """The shape of one part."""
    together: Shape | None = None
    """The target of a Reshape of the rows whose last axis has all parts, if their own last axis has not."""
    target: Shape | None = None
    """The target of a Reshape of one part, if it needs one."""


class Pick(NamedTuple):
    """A part whose axis is gone, or which only a Reshape reads, and how it permutes the axes of the part."""

    value: Value
    part: int
    perm: Perm


class _View(NamedTuple):
    """A value with all parts, or with one part, whose axis it still has."""

    value: Value
    axes: Perm
    """As `axes` of Packed."""
    part: int | None


def fuse(graph: Graph, context: Context) -> int:
    """Reshape(x, (..., 3, size))[..., i, :]  ->  Split(x)[i];
    Reshape(x, (batch, rows, 3, heads, size))[:, :, i]  ->  Reshape(Split(x)[i]);
    Reshape(x, (batch, rows, heads, 3, size))[:, :, :, i]  ->  Split(Reshape(x, (batch, rows, heads, 3 * size)))[i];
    also behind a Transpose, which then follows

    Counterpart: none: beyond ONNX Runtime
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("Reshape"))


def _fuse(reshape: Node, context: Context) -> bool:
    graph, packed = reshape.parent, _packed(reshape)
    passed: list[Node] = []
    picks = None if packed is None else _picks(_View(reshape.out, packed.axes, None), packed.axis, passed)
    if (
        packed is None or not picks or all(pick.perm == SPLIT_TRANSPOSED for pick in picks)
    ):  # scores of columns, not rows
        return False
    if not context.may_touch(reshape, *passed):
        return False
    near = reader_of(reshape.out, "Transpose") or reshape
    before, label, x = len(graph), near.label, reshape.present_inputs[0]
    parts = _split(x, packed, reshape, near)
    wanted = None if packed.target is None else integers(graph, packed.target, x, "heads")
    for pick in picks:
        part = parts[pick.part]
        if wanted is not None:
            part = insert("Reshape", [part, wanted], _type(reshape, packed.shape), near)
        if pick.perm != identity(len(pick.perm)):
            part = insert("Transpose", [part], permuted_type(part.type, pick.perm), near, {"perm": Ints(pick.perm)})
        graph.replace(pick.value, part)
    for node in reversed(passed):
        graph.remove_dead(node)
    context.record("PackedHeadsFusion", label, max(0, before - len(graph)), max(0, len(graph) - before))
    return True


def _packed(reshape: Node) -> Packed | None:
    outer = (reshape.out.dim(0), reshape.out.dim(1))
    for axis in (BEFORE_HEADS, IN_HEADS):
        found = split_of(reshape, PARTS, axis=axis)
        if found is not None:
            heads, size, rows = found
            copied = rows[:2] if rows else (0, 0)
            together = (*copied, heads, PARTS * size) if axis == IN_HEADS else None
            own = (*copied, heads, size) if axis == BEFORE_HEADS else None
            return Packed(identity(5), axis, PARTS, (*outer, heads, size), together, own)
    return _packed_rows(reshape)


def _packed_rows(reshape: Node) -> Packed | None:
    """A Reshape of (..., 3 * size) to (..., 3, size), perhaps with leading axes of length 1; also of a matrix, if all is known."""
    x, wanted = reshape.inputs[0], target(reshape)
    if x is None or wanted is None or not x.rank or wanted.count(-1) > 1:
        return None
    dims = refined(wanted, reshape.out)
    known = numbers(x.dim(-1), *dims[-2:])
    if not known or known[1] not in (2, PARTS) or known[0] != known[1] * known[2]:
        return None
    _, parts, size = known
    outer = dims[:-2]
    while len(outer) > max(x.rank - 1, 2) and outer[0] == 1:
        outer = outer[1:]
    added = len(dims) - 2 - len(outer)
    lead = numbers(*outer)
    if x.rank == len(outer) + 1:
        kept = all(e == -1 or dim_of(x, i) in (e, dims[added + i]) for i, e in enumerate(wanted[added:-2]))
        own: Shape | None = None
    else:
        kept, own = x.rank == 2 and bool(lead) and prod(lead) == x.dim(0), (*lead, size)
    shape = (*(reshape.out.dim(added + i) for i in range(len(outer))), size)
    axes = (*(ADDED,) * added, *identity(len(outer) + 2))
    return Packed(axes, len(outer), parts, shape, None, own) if kept and outer else None


def _picks(view: _View, axis: int, passed: list[Node]) -> list[Pick] | None:
    """The parts that the readers of a value select, and the nodes on the way; None if there are other readers."""
    x, found = view.value, list[Pick]()
    for node in x.consumers:
        if node.graph is not x.graph or node.inputs[0] is not x:
            return None
        passed.append(node)
        for value in node.outputs:
            part = None if value is None else _picked(value, view, axis)
            if value is None or part is None:
                return None
            if isinstance(part, Pick):
                found.append(part)
                continue
            inner = _picks(part, axis, passed)
            if inner is None:
                return None
            found += inner
    return None if x.is_output else found


def _picked(value: Value, view: _View, axis: int) -> Pick | _View | None:
    """What an output of a reader of a value is: a part, or another view; None if it is anything else."""
    x, axes, part = view
    place, node = axes.index(axis), value.producer
    turned = transpose_perm(node)
    if turned is not None:
        return _View(value, tuple(axes[i] for i in turned), part)
    if producer_of(value, "Unsqueeze") is not None:
        return _unsqueezed(value, view)
    perm = tuple(a - (a > axis) for a in axes if a not in (axis, ADDED))
    taken, is_whole = gathered(value, keeps=False), ADDED not in axes
    if taken is not None:
        return Pick(value, taken.start if part is None else part, perm) if is_whole and taken.axis == place else None
    squeeze = producer_of(value, "Squeeze")
    if squeeze is not None:
        gone = {a % len(axes) for a in axes_of(squeeze) or ()}
        if part is not None and gone == {i for i, a in enumerate(axes) if a in (axis, ADDED)}:
            return Pick(value, part, perm)
        is_added = bool(gone) and all(axes[i] == ADDED for i in gone)
        return _View(value, tuple(a for i, a in enumerate(axes) if i not in gone), part) if is_added else None
    if part is None:
        kept = gathered(value, keeps=True) or part_of(value)
        is_one = kept is not None and kept.axis == place and kept.end - kept.start == 1
        return _View(value, axes, kept.start) if kept is not None and is_one else None
    reshape = reader_of(x, "Reshape")
    shape = None if reshape is None else ints(reshape.input(1))
    return None if shape is None or 0 in shape else Pick(x, part, perm)  # a 0 would refer to an axis of x


def _unsqueezed(value: Value, view: _View) -> _View | None:
    added = axes_of(value.producer) if value.producer is not None else None
    if not added or value.rank != len(view.axes) + len(added):
        return None
    places = {a % value.rank for a in added}
    rest = iter(view.axes)
    return _View(value, tuple(ADDED if i in places else next(rest) for i in range(value.rank)), view.part)


def _split(x: Value, packed: Packed, reshape: Node, near: Node) -> list[Value]:
    """The parts, or the rows of each part: equal parts of the last axis."""
    graph = near.parent
    if packed.together is not None:
        inputs = [x, integers(graph, packed.together, x, "heads")]
        type = _type(reshape, (*packed.shape[:-1], packed.together[-1]))
        x = insert("Reshape", inputs, type, near, name=reshape.name)
    *outer, width = x.shape or ()
    assert isinstance(width, int)
    part = width // packed.parts
    inputs, attrs = with_list(graph, "Split", x, [part] * packed.parts, "parts", axis=len(outer))
    types = [_type(reshape, (*outer, part))] * packed.parts
    name = graph.fresh(f"{near.name or near.out.name}/Split")
    return insert_node("Split", inputs, packed.parts, types, near, attrs, name=name).present_outputs


def _type(reshape: Node, shape: Shape) -> TensorType:
    dtype = reshape.out.dtype
    assert dtype is not None
    return TensorType(dtype, shape)
