"""Query, key and value that are selected along an axis of their own become parts of the rows, or columns of each head."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, ints, producer_of, reader_of
from ortconv.ir.types import Shape, TensorType
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.extended.attention.heads import split_of
from ortconv.optimizer.extended.parts import gathered, part_of
from ortconv.optimizer.insertion import insert, integers, with_list
from ortconv.optimizer.permutation import Perm, identity, permuted_type, transpose_perm

PARTS = 3
BEFORE_HEADS, IN_HEADS = 2, 3
"""The axis of the parts in (batch, rows, 3, heads, size), and in (batch, rows, heads, 3, size)."""


class Packed(NamedTuple):
    """A Reshape that splits rows into parts and heads."""

    axis: int
    heads: int
    size: int
    rows: Shape | None
    """The shape of the rows of one part, if the input of the Reshape has another rank."""


class Pick(NamedTuple):
    """A part whose axis is gone, or which only a Reshape reads, and how it permutes the axes of the heads."""

    value: Value
    part: int
    perm: Perm


class _View(NamedTuple):
    """A value with all parts, or with one part, whose axis it still has."""

    value: Value
    perm: Perm
    """Its axes as axes of the Reshape."""
    axis: int
    """Its axis of the parts."""
    part: int | None


def fuse(graph: Graph, context: Context) -> int:
    """Reshape(x, (batch, rows, 3, heads, size))[:, :, i]  ->  Reshape(Split(x)[i]);
    Reshape(x, (batch, rows, heads, 3, size))[:, :, :, i]  ->  Split(Reshape(x, (batch, rows, heads, 3 * size)))[i];
    also behind a Transpose, which then follows

    Counterpart: none: beyond ONNX Runtime
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("Reshape") and node.out.rank == 5)


def _fuse(reshape: Node, context: Context) -> bool:
    graph, packed = reshape.parent, _packed(reshape)
    passed: list[Node] = []
    picks = None if packed is None else _picks(_View(reshape.out, identity(5), packed.axis, None), passed)
    if packed is None or not picks or not context.may_touch(reshape, *passed):
        return False
    near = reader_of(reshape.out, "Transpose") or reshape
    before, label = len(graph), near.label
    parts = _rows(reshape, packed, near) if packed.axis == BEFORE_HEADS else _heads(reshape, packed, near)
    shape = _shape(reshape, packed) if packed.axis == BEFORE_HEADS else None
    for pick in picks:
        part, type = parts[pick.part], _type(reshape, packed)
        if shape is not None:
            part = insert("Reshape", [part, shape], type, near)
        if pick.perm != identity(4):
            part = insert("Transpose", [part], permuted_type(type, pick.perm), near, {"perm": Ints(pick.perm)})
        graph.replace(pick.value, part)
    for node in reversed(passed):
        graph.remove_dead(node)
    context.record("PackedHeadsFusion", label, max(0, before - len(graph)), max(0, len(graph) - before))
    return True


def _packed(reshape: Node) -> Packed | None:
    for axis in (BEFORE_HEADS, IN_HEADS):
        split = split_of(reshape, PARTS, axis=axis)
        if split is not None:
            return Packed(axis, *split)
    return None


def _picks(view: _View, passed: list[Node]) -> list[Pick] | None:
    """The parts that the readers of a value select, and the nodes on the way; None if there are other readers."""
    x, found = view.value, list[Pick]()
    for node in x.consumers:
        if node.graph is not x.graph:
            return None
        passed.append(node)
        for value in node.outputs:
            part = None if value is None else _picked(value, view)
            if value is None or part is None:
                return None
            if isinstance(part, Pick):
                found.append(part)
                continue
            inner = _picks(part, passed)
            if inner is None:
                return None
            found += inner
    return None if x.is_output else found


def _picked(value: Value, view: _View) -> Pick | _View | None:
    """What an output of a reader of a value is: a part, or another view; None if it is anything else."""
    x, perm, axis, part = view
    turned = transpose_perm(value.producer)
    if turned is not None:
        return _View(value, tuple(perm[i] for i in turned), turned.index(axis), part)
    rest = tuple(p - (p > perm[axis]) for p in perm if p != perm[axis])
    taken = gathered(value, keeps=False)
    if taken is not None:
        return Pick(value, taken.start if part is None else part, rest) if taken.axis == axis else None
    if part is None:
        kept = gathered(value, keeps=True) or part_of(value)
        is_one = kept is not None and kept.axis == axis and kept.end - kept.start == 1
        return _View(value, perm, axis, kept.start) if kept is not None and is_one else None
    squeeze = producer_of(value, "Squeeze")
    if squeeze is not None:
        return Pick(value, part, rest) if axes_of(squeeze) in ((axis,), (axis - len(perm),)) else None
    reshape = reader_of(x, "Reshape")
    shape = None if reshape is None else ints(reshape.input(1))
    return None if shape is None or 0 in shape else Pick(x, part, rest)  # a 0 would refer to an axis of x


def _rows(reshape: Node, packed: Packed, near: Node) -> list[Value]:
    """The rows of each part."""
    x, width = reshape.present_inputs[0], packed.heads * packed.size
    assert x.shape is not None
    assert x.dtype is not None
    return _split(x, width, TensorType(x.dtype, (*x.shape[:-1], width)), near)


def _heads(reshape: Node, packed: Packed, near: Node) -> list[Value]:
    """The heads of each part."""
    together = packed._replace(size=PARTS * packed.size)
    inputs = [reshape.present_inputs[0], _shape(reshape, together)]
    heads = insert("Reshape", inputs, _type(reshape, together), near, name=reshape.name)
    return _split(heads, packed.size, _type(reshape, packed), near)


def _split(x: Value, size: int, type: TensorType, near: Node) -> list[Value]:
    """Equal parts of the last axis."""
    graph, last = near.parent, len(type.shape or ()) - 1
    inputs, attrs = with_list(graph, "Split", x, [size] * PARTS, "parts", axis=last)
    name = graph.fresh(f"{near.name or near.out.name}/Split")
    return insert_node("Split", inputs, PARTS, [type] * PARTS, near, attrs, name=name).present_outputs


def _shape(reshape: Node, packed: Packed) -> Value:
    """The target of a Reshape of rows to heads."""
    outer = packed.rows[:2] if packed.rows else (0, 0)
    return integers(reshape.parent, (*outer, packed.heads, packed.size), reshape.present_inputs[0], "heads")


def _type(reshape: Node, packed: Packed) -> TensorType:
    dtype = reshape.out.dtype
    assert dtype is not None
    return TensorType(dtype, (reshape.out.dim(0), reshape.out.dim(1), packed.heads, packed.size))
