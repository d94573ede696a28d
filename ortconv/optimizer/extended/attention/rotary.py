"""Fuses the nodes of rotary positions into com.microsoft:RotaryEmbedding."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, Shape, TensorType
from ortconv.optimizer.conditions import axes_of, equal_shapes, same_dim
from ortconv.optimizer.engine import Context, FunctionPass, New, import_operators
from ortconv.optimizer.extended.split import slice_part
from ortconv.records import dataclass

MICROSOFT = "com.microsoft"
SLICE_BY_INPUTS = 10


@dataclass(frozen=True, eq=False, slots=True)
class Rotation:
    """x * factors + (-second half of x, first half of x) * other factors."""

    root: Node
    x: Value
    cos: Value
    sin: Value
    heads: int
    """The axis of the heads in x: 1, or 2 if rows come first."""
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Table:
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
        if cos is None or sin is None or cos.axes != sin.axes or cos.heads != r.heads:
            return None
        looked_up = cos.node.op == "Gather" and cos.axes == (0, 1, 2)
        return self._looked_up(r, cos.node, sin.node) if looked_up else self._computed(r, cos, sin)

    def _looked_up(self, r: Rotation, cos: Node, sin: Node) -> tuple[Value, Value, Value] | None:
        """Rows that a Gather selects from constant tables with two equal halves of columns."""
        if sin.op != "Gather" or sin.inputs[1] is not cos.inputs[1] or any(n.attr("axis", 0) for n in (cos, sin)):
            return None
        positions, tables = cos.inputs[1], (cos.inputs[0], sin.inputs[0])
        if (
            positions is None
            or positions.dtype is not DType.INT64
            or positions.rank != 2
            or not _fits(positions.shape, r)
        ):
            return None
        halves = [(table, _half_of_table(table, r.x.dim(-1))) for table in tables if table is not None]
        if len(halves) < 2 or any(half is None for _, half in halves):
            return None
        first, second = (self._constant(table, half) for table, half in halves if half is not None)
        return positions, first, second

    def _constant(self, table: Value, half: Array) -> Value:
        if table not in self.made:
            self.made[table] = self.graph.constant(Tensor.of(np.ascontiguousarray(half)), f"{table.name}_half")
        return self.made[table]

    def _computed(self, r: Rotation, cos: Table, sin: Table) -> tuple[Value, Value, Value] | None:
        """Cos and Sin of angles that occur twice in a row. If batches share the angles, the first position suffices."""
        angles, others = _angles(cos), _angles(sin)
        if cos.node.op != "Cos" or sin.node.op != "Sin" or angles is None or angles is not others or angles.rank != 3:
            return None
        width = r.x.dim(-1)
        dims = tuple(angles.dim(axis) for axis in cos.axes)
        shared = dims[0] == 1
        if not isinstance(width, int) or dims[2] != width // 2:
            return None
        if not _fits((r.x.dim(0) if shared else dims[0], dims[1]), r):
            return None
        return (
            self._ints((0,), angles) if shared else self._positions(angles, cos),
            self._halved(cos, angles, width // 2),
            self._halved(sin, angles, width // 2),
        )

    def _halved(self, table: Table, angles: Value, width: int) -> Value:
        node = table.node
        if (node, table.axes) not in self.made:
            function = self._node(node.op, [angles], {}, angles.type, node)
            if table.axes != (0, 1, 2):
                type = TensorType(DType.FLOAT, tuple(angles.dim(axis) for axis in table.axes))
                function = self._node("Transpose", [function], {"perm": Ints(table.axes)}, type, node)
            shape = self._ints((-1, width), angles)
            result = self._node("Reshape", [function, shape], {}, TensorType(DType.FLOAT, (None, width)), node)
            self.made[node, table.axes] = result
        return self.made[node, table.axes]

    def _positions(self, angles: Value, table: Table) -> Value:
        """Positions 0, 1, ... in the shape (batch, rows) of the angles."""
        batch_and_rows, before = table.axes[:2], table.node
        if (angles, batch_and_rows) not in self.made:
            shape = self._node("Shape", [angles], {}, TensorType(DType.INT64, (3,)), before)
            picked = self._ints(batch_and_rows, angles)
            rows = self._node("Gather", [shape, picked], {"axis": 0}, TensorType(DType.INT64, (2,)), before)
            count = self._node("ReduceProd", [rows], {"keepdims": 0}, TensorType(DType.INT64, ()), before)
            zero, one = (self.graph.constant(Tensor.of(np.array(n, np.int64)), f"{angles.name}_const") for n in (0, 1))
            numbers = self._node("Range", [zero, count, one], {}, TensorType(DType.INT64, (None,)), before)
            type = TensorType(DType.INT64, tuple(angles.dim(axis) for axis in batch_and_rows))
            self.made[angles, batch_and_rows] = self._node("Reshape", [numbers, rows], {}, type, before)
        return self.made[angles, batch_and_rows]

    def _ints(self, numbers: tuple[int, ...], near: Value) -> Value:
        return self.graph.constant(Tensor.of(np.array(numbers, np.int64)), f"{near.name}_const")

    def _node(
        self, op: str, inputs: list[Value | None] | list[Value], attrs: dict[str, Attribute], type: object, before: Node
    ) -> Value:
        assert isinstance(type, TensorType)
        node = self.graph.add_node(op, inputs, 1, attrs, types=[type], before=before)
        node.ep = before.ep
        return node.out


def fuse(graph: Graph, context: Context) -> int:
    """x * cos + Concat(-x[..., half:], x[..., :half]) * sin  ->  RotaryEmbedding(x, positions, cos, sin)

    Counterpart: none: its GroupQueryAttentionFusion supports other providers only
    """
    tables = Tables(graph)
    return sum(_fuse(node, tables, context) for node in graph if node.is_op("Add"))


def _fuse(root: Node, tables: Tables, context: Context) -> bool:
    graph = root.graph
    found = None if graph is None or graph.opset() < SLICE_BY_INPUTS else _find(root)
    if graph is None or found is None or not context.may_touch(root, *found.nodes):
        return False
    if not context.may_make(graph, New("RotaryEmbedding", [found.x], domain=MICROSOFT)):
        return False
    inputs = tables.of(found)
    if inputs is None:
        return False
    before, label = len(graph), root.label
    graph.replace(root.out, _rotated(graph, found, inputs))
    graph.remove_dead(root)
    context.record("RotaryEmbeddingFusion", label, before - len(graph) + 1, 1)
    return True


def _rotated(graph: Graph, r: Rotation, inputs: tuple[Value, Value, Value]) -> Value:
    """The rotated heads. If heads are not the second axis, rows are rotated, and then split into heads."""
    import_operators(graph, MICROSOFT)
    x, type = r.x, r.root.out.type
    heads, size = r.x.dim(2), r.x.dim(3)
    if r.heads == 2:
        assert isinstance(heads, int)
        assert isinstance(size, int)
        x = _reshaped(graph, x, (0, 0, heads * size), r.root)
        type = TensorType(DType.FLOAT, (*(r.x.shape or ())[:2], heads * size))
        x.retype(type)
    node = graph.add_node(
        "RotaryEmbedding",
        [x, *inputs],
        1,
        {"interleaved": 0},
        domain=MICROSOFT,
        name=graph.fresh(f"{r.root.name or r.root.out.name}/RotaryEmbedding"),
        types=[type],
        before=r.root,
    )
    node.ep = r.root.ep
    if r.heads == 1:
        return node.out
    assert isinstance(heads, int)
    assert isinstance(size, int)
    split = _reshaped(graph, node.out, (0, 0, heads, size), r.root)
    split.retype(r.root.out.type)
    return split


def _reshaped(graph: Graph, x: Value, shape: tuple[int, ...], before: Node) -> Value:
    rows = x.producer
    if len(shape) == 3 and rows is not None and rows.is_op("Reshape") and rows.inputs[0] is not None:
        source = rows.inputs[0]
        if source.rank == 3 and equal_shapes(source.shape, (*(x.shape or ())[:2], shape[2])):
            return source
    spec = graph.constant(Tensor.of(np.array(shape, np.int64)), f"{x.name}_shape")
    node = graph.add_node("Reshape", [x, spec], 1, types=[None], before=before)
    node.ep = before.ep
    return node.out


def _find(root: Node) -> Rotation | None:
    products = [None if v is None else v.producer for v in root.inputs]
    plain, turned = products
    for first, second in ((plain, turned), (turned, plain)):
        if first is None or second is None or not first.is_op("Mul") or not second.is_op("Mul"):
            return None
        for half, sin in (second.inputs, second.inputs[::-1]):
            x, nodes = _source_of_halves(half)
            inner = (first, second, *nodes)
            cos = None if x is None else _factor(first, x)
            if x is None or cos is None or sin is None or not all(map(_has_one_reader, inner)):
                continue
            heads = 1 if cos.dim(1) == 1 else 2
            fits = heads == 1 or all(isinstance(x.dim(i), int) for i in (2, 3))
            return Rotation(root, x, cos, sin, heads, inner) if fits else None
    return None


def _factor(product: Node, x: Value) -> Value | None:
    """The other factor of a product with float32 heads x; None if x is no factor."""
    if x not in product.inputs or x.rank != 4 or x.dtype is not DType.FLOAT:
        return None
    return product.inputs[1 - product.inputs.index(x)]


def _has_one_reader(node: Node) -> bool:
    return len(node.out.uses) == 1 and not node.out.is_output


def _source_of_halves(value: Value | None) -> tuple[Value | None, tuple[Node, ...]]:
    """x and the nodes Concat and Neg, if a value is Concat(-x[..., half:], x[..., :half]); else None and no nodes."""
    join = None if value is None else value.producer
    if value is None or join is None or not join.is_op("Concat") or len(join.inputs) != 2:
        return None, ()
    rank = value.rank or 0
    negative = None if join.inputs[0] is None else join.inputs[0].producer
    if negative is None or not negative.is_op("Neg") or join.attr("axis", 0) not in (-1, rank - 1):
        return None, ()
    second, first = _half(negative.inputs[0], rank), _half(join.inputs[1], rank)
    if second is None or first is None or first[0] is not second[0] or (first[1], second[1]) != (0, 1):
        return None, ()
    return first[0], (join, negative)


def _half(value: Value | None, rank: int) -> tuple[Value, int] | None:
    """The value of which this one is a half along the last axis, and which half (0 or 1)."""
    node = None if value is None else value.producer
    x = None if node is None else node.inputs[0]
    width = None if x is None else x.dim(-1)
    if value is None or node is None or x is None or not isinstance(width, int) or width % 2 or x.rank != rank:
        return None
    if node.is_op("Split") and len(node.outputs) == 2 and node.attr("axis", 0) in (-1, rank - 1):
        return (x, node.outputs.index(value)) if value.dim(-1) == width // 2 else None
    part = slice_part(node, x) if node.is_op("Slice") else None
    if part is None or part.axis != rank - 1:
        return None
    halves = [(0, width // 2), (width // 2, width)]
    return (x, halves.index((part.start, part.end))) if (part.start, part.end) in halves else None


def _table(value: Value) -> Table | None:
    """The node that computes the factors in a value of rank 4, the same for all heads; None if there is none."""
    axes: tuple[int | None, ...] = (0, 1, 2, 3)
    node = value.producer
    while node is not None and node.domain == "" and node.op in ("Unsqueeze", "Reshape", "Transpose"):
        inner = node.inputs[0]
        sources = None if inner is None else _sources(node, inner)
        if inner is None or sources is None:
            return None
        axes = tuple(None if a is None else sources[a] for a in axes)
        node = inner.producer
    if node is None or node.domain != "" or value.rank != 4 or None not in axes[1:3]:
        return None
    heads = axes.index(None)
    batch, rows, columns = (a for i, a in enumerate(axes) if i != heads)
    if batch is None or rows is None or columns is None or node.out.rank != 3:
        return None
    return Table(node, (batch, rows, columns), heads)


def _sources(node: Node, inner: Value) -> tuple[int | None, ...] | None:
    """For each output axis of a node, the input axis that it comes from, or None for a new one of length 1. None if unknown."""
    if inner.rank is None:
        return None
    if node.op == "Transpose":
        return tuple(node.attr("perm", Ints(reversed(range(inner.rank)))))
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


def _half_of_table(table: Value, width: object) -> Array | None:
    """The first half of a constant's columns, if the second half is equal; else None."""
    const = table.constant
    if (
        const is None
        or const.rank != 2
        or const.shape[1] != width
        or const.dtype is not DType.FLOAT
        or const.shape[1] % 2
    ):
        return None
    array: Array = const.numpy()
    first, second = np.split(array, 2, axis=1)
    return first if np.array_equal(first, second) else None


def _angles(table: Table) -> Value | None:
    """The angles that occur twice, side by side along the columns, in the input of Cos or Sin; None if they do not."""
    twice = table.node.inputs[0]
    join = None if twice is None else twice.producer
    if twice is None or join is None or not join.is_op("Concat") or len(join.inputs) != 2:
        return None
    angles, axis = join.inputs[0], join.attr("axis", 0)
    doubled = join.inputs[1] is angles and axis in (table.axes[2], table.axes[2] - (twice.rank or 0))
    return angles if doubled and angles is not None and angles.dtype is DType.FLOAT else None


def _fits(dims: Shape | None, r: Rotation) -> bool:
    """True if the dimensions begin with batch and rows of the rotated tensor."""
    return dims is not None and same_dim(dims[0], r.x.dim(0)) and same_dim(dims[1], r.x.dim(3 - r.heads))


PASSES = (FunctionPass("RotaryEmbeddingFusion", fuse, operators=(("", "Neg"),)),)
