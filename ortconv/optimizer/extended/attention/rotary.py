"""Fuses the nodes of rotary positions into com.microsoft:RotaryEmbedding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, only_reader, producer_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, Shape, TensorType, ValueType
from ortconv.optimizer.conditions import SLICE_BY_INPUTS, array_of, equal_shapes, numbers, same_dim
from ortconv.optimizer.engine import Context, New, insert_new
from ortconv.optimizer.extended.parts import AxisRange, part_of
from ortconv.optimizer.insertion import insert, integers, reshaped
from ortconv.optimizer.pattern import Match, P, matches
from ortconv.optimizer.permutation import transpose_perm


class Rotation(NamedTuple):
    """x * factors + (-second half of x, first half of x) * other factors."""

    root: Node
    x: Value
    cos: Value
    sin: Value
    heads: int
    """The axis of the heads in x: 1, or 2 if rows come first."""
    nodes: tuple[Node, ...]


class Table(NamedTuple):
    """The node that computes the factors for all heads. `axes` are those of batch, rows and columns in its result."""

    node: Node
    axes: tuple[int, int, int]
    heads: int


@dataclass
class Tables:
    """Nodes shared by the rotations of one graph: tables with one row per position, and the positions of rows."""

    graph: Graph
    made: dict[object, Value] = field(default_factory=dict)

    def of(self, r: Rotation) -> tuple[Value, Value, Value] | None:
        """Positions, cosines and sines; the latter have one column per pair of elements. None if they have an unknown form."""
        cos, sin = _table(r.cos), _table(r.sin)
        if cos is None or sin is None or cos[1:] != sin[1:] or cos.heads != r.heads:
            return None
        looked_up = cos.node.op == "Gather" and cos.axes == (0, 1, 2)
        return self._looked_up(r, cos.node, sin.node) if looked_up else self._computed(r, cos, sin)

    def _looked_up(self, r: Rotation, cos: Node, sin: Node) -> tuple[Value, Value, Value] | None:
        """Rows that a Gather selects from constant tables with two equal halves of columns."""
        positions = cos.present_inputs[1]
        if sin.op != "Gather" or sin.inputs[1] is not positions or any(n.attr("axis", 0) for n in (cos, sin)):
            return None
        if (positions.dtype, positions.rank) != (DType.INT64, 2) or not _fits(positions.shape, r):
            return None
        tables = cos.present_inputs[0], sin.present_inputs[0]
        if tables[0].shape != tables[1].shape or not all(_is_table_for(table, r) for table in tables):
            return None
        return positions, self._first_half(tables[0]), self._first_half(tables[1])

    def _first_half(self, table: Value) -> Value:
        """The first half of a constant's columns."""
        if table not in self.made:
            half, _ = np.split(array_of(table), 2, axis=1)
            self.made[table] = self.graph.constant(Tensor.of(np.ascontiguousarray(half)), f"{table.name}_half")
        return self.made[table]

    def _computed(self, r: Rotation, cos: Table, sin: Table) -> tuple[Value, Value, Value] | None:
        """Cos and Sin of angles that occur twice in a row. If batches share the angles, the first position suffices."""
        angles, width = _angles(cos, "Cos"), r.x.dim(-1)
        if angles is None or angles is not _angles(sin, "Sin"):
            return None
        batch, rows, columns = (angles.dim(axis) for axis in cos.axes)
        shared = batch == 1
        if not isinstance(width, int) or columns != width // 2 or not _fits((r.x.dim(0) if shared else batch, rows), r):
            return None
        positions = integers(self.graph, (0,), angles) if shared else self._positions(angles, cos)
        return positions, self._halved(cos, angles, width // 2), self._halved(sin, angles, width // 2)

    def _halved(self, table: Table, angles: Value, width: int) -> Value:
        node = table.node
        if (node, table.axes) not in self.made:
            function = insert(node.op, [angles], angles.type, node)
            if table.axes != (0, 1, 2):
                type = TensorType(DType.FLOAT, tuple(angles.dim(axis) for axis in table.axes))
                function = insert("Transpose", [function], type, node, {"perm": Ints(table.axes)})
            shape = integers(self.graph, (-1, width), angles)
            result = insert("Reshape", [function, shape], TensorType(DType.FLOAT, (None, width)), node)
            self.made[node, table.axes] = result
        return self.made[node, table.axes]

    def _positions(self, angles: Value, table: Table) -> Value:
        """Positions 0, 1, ... in the shape (batch, rows) of the angles."""
        batch_and_rows, before = table.axes[:2], table.node
        if (angles, batch_and_rows) not in self.made:
            shape = insert("Shape", [angles], TensorType(DType.INT64, (3,)), before)
            picked = integers(self.graph, batch_and_rows, angles)
            rows = insert("Gather", [shape, picked], TensorType(DType.INT64, (2,)), before, {"axis": 0})
            count = insert("ReduceProd", [rows], TensorType(DType.INT64, ()), before, {"keepdims": 0})
            zero, one = (self.graph.constant(Tensor.of(np.array(n, np.int64)), f"{angles.name}_const") for n in (0, 1))
            numbers = insert("Range", [zero, count, one], TensorType(DType.INT64, (None,)), before)
            type = TensorType(DType.INT64, tuple(angles.dim(axis) for axis in batch_and_rows))
            self.made[angles, batch_and_rows] = insert("Reshape", [numbers, rows], type, before)
        return self.made[angles, batch_and_rows]


def fuse(graph: Graph, context: Context) -> int:
    """x * cos + Concat(-x[..., half:], x[..., :half]) * sin  ->  RotaryEmbedding(x, positions, cos, sin)

    Counterpart: none: its GroupQueryAttentionFusion supports other providers only
    """
    tables = Tables(graph)
    return sum(_fuse(node, tables, context) for node in graph if node.is_op("Add"))


def _fuse(root: Node, tables: Tables, context: Context) -> bool:
    graph = tables.graph
    found = None if graph.opset() < SLICE_BY_INPUTS else _find(root)
    if found is None or not context.may_touch(root, *found.nodes):
        return False
    if not context.may_make(graph, New("RotaryEmbedding", [found.x], domain=MICROSOFT)):
        return False
    inputs = tables.of(found)
    if inputs is None:
        return False
    before, label = len(graph), root.label
    graph.replace(root.out, _rotated(found, inputs))
    graph.remove_dead(root)
    context.record("RotaryEmbeddingFusion", label, before - len(graph) + 1, 1)
    return True


def _rotated(r: Rotation, inputs: tuple[Value, Value, Value]) -> Value:
    """The rotated heads. If heads are not the second axis, rows are rotated, and then split into heads."""

    def rotation(x: Value, type: ValueType | None) -> Value:
        attrs = {"interleaved": 0}
        return insert_new(New("RotaryEmbedding", [x, *inputs], attrs, domain=MICROSOFT, types=[type]), r.root).out

    if r.heads == 1:
        return rotation(r.x, r.root.out.type)
    size = numbers(r.x.dim(2), r.x.dim(3))
    flat = TensorType(DType.FLOAT, (*(r.x.shape or ())[:2], math.prod(size)))
    rows = _rows(r.x, flat) or reshaped(r.x, (0, 0, math.prod(size)), r.root, flat)
    rows.retype(flat)
    return reshaped(rotation(rows, flat), (0, 0, *size), r.root, r.root.out.type)


def _rows(heads: Value, type: TensorType) -> Value | None:
    """The rows of this type that a Reshape splits into heads; None if there are none."""
    split = producer_of(heads, "Reshape")
    rows = None if split is None else split.inputs[0]
    return rows if rows is not None and equal_shapes(rows.shape, type.shape) else None


_HALVES = P("Concat", P("Neg", "second"), "first", name="join")
_ROTATED = P(
    "Add", P("Mul", "x", "cos", commutative=True), P("Mul", _HALVES, "sin", commutative=True), commutative=True
)  # fmt: skip


def _find(root: Node) -> Rotation | None:
    return next((found for m in matches(_ROTATED, root) if (found := _rotation(m)) is not None), None)


def _rotation(m: Match) -> Rotation | None:
    """The rotation of float32 heads in a match. If rows come before heads, number and size of the heads must be known."""
    x, nodes, join = m.x, tuple(node for node, _ in m.nodes), m.node("join")
    second, first = part_of(m.second), part_of(m.first)
    if first is None or x.rank != 4 or x.dtype is not DType.FLOAT or join.attr("axis", 0) not in (-1, 3):
        return None
    halves = AxisRange(x, 3, 0, first.end), AxisRange(x, 3, first.end, 2 * first.end)
    if (first, second) != halves or x.dim(3) != 2 * first.end or None in (only_reader(node.out) for node in nodes):
        return None
    heads = 1 if m.cos.dim(1) == 1 else 2
    known = heads == 1 or numbers(x.dim(2), x.dim(3))
    return Rotation(m.root, x, m.cos, m.sin, heads, nodes) if known else None


def _table(value: Value) -> Table | None:
    """The node that computes the factors in a value of rank 4, the same for all heads; None if there is none."""
    node, axes = _origin(value) if value.rank == 4 else (None, ())
    if node is None or node.out.rank != 3:
        return None
    batch, rows, columns = (a for a in axes if a is not None)
    return Table(node, (batch, rows, columns), axes.index(None))


def _origin(value: Value) -> tuple[Node | None, tuple[int | None, ...]]:
    """The node whose result other nodes only move to this value of rank 4, and the axis of the result for each axis of
    the value; None for an axis that is new. No node if one of the moves is unknown.
    """
    axes: tuple[int | None, ...] = (0, 1, 2, 3)
    while (move := producer_of(value, "Unsqueeze", "Reshape", "Transpose")) is not None:
        value = move.present_inputs[0]
        sources = _sources(move, value)
        if sources is None:
            return None, ()
        axes = tuple(None if a is None else sources[a] for a in axes)
    node = value.producer
    return (node, axes) if node is not None and node.domain == "" else (None, ())


def _sources(node: Node, inner: Value) -> tuple[int | None, ...] | None:
    """For each output axis of a node, the input axis that it comes from, or None for a new one of length 1. None if unknown."""
    if inner.rank is None:
        return None
    if node.op == "Transpose":
        return transpose_perm(node)
    inserted = _inserted(node, inner)
    if inserted is None:
        return None
    rest = iter(range(inner.rank))
    return tuple(None if i in inserted else next(rest) for i in range(inner.rank + len(inserted)))


def _inserted(node: Node, inner: Value) -> tuple[int, ...] | None:
    """The axes of length 1 that an Unsqueeze or Reshape inserts; None for any other node."""
    dims, rank = node.out.shape, node.out.rank or 0
    if node.op == "Unsqueeze":
        axes = axes_of(node)
        return None if not axes else tuple(a % rank for a in axes)
    for axis in range(rank):
        if dims is not None and dims[axis] == 1 and equal_shapes(inner.shape, dims[:axis] + dims[axis + 1 :]):
            return (axis,)
    return None


def _is_table_for(table: Value, r: Rotation) -> bool:
    """True for a constant matrix with two equal halves of columns, as wide as x and with no fewer rows, as far as known."""
    const, rows, width = table.constant, r.x.dim(3 - r.heads), r.x.dim(3)
    if const is None or const.shape[1] != width:
        return False
    if isinstance(rows, int) and rows > const.shape[0]:
        return False
    first, second = np.split(const.numpy(), 2, axis=1)
    return np.array_equal(first, second)


def _angles(table: Table, function: str) -> Value | None:
    """The angles that occur twice, side by side along the columns, in the input of Cos or Sin; None if they do not."""
    join = producer_of(table.node.inputs[0], "Concat") if table.node.op == function else None
    if join is None or len(join.inputs) != 2 or join.inputs[0] is not join.inputs[1]:
        return None
    angles, axis = join.inputs[0], join.attr("axis", 0)
    doubled = axis in (table.axes[2], table.axes[2] - (join.out.rank or 0))
    return angles if doubled else None


def _fits(dims: Shape | None, r: Rotation) -> bool:
    """True if the dimensions begin with batch and rows of the rotated tensor."""
    return dims is not None and same_dim(dims[0], r.x.dim(0)) and same_dim(dims[1], r.x.dim(3 - r.heads))
