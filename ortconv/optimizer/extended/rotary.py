"""Rotary positions that are spelled out become com.microsoft:RotaryEmbedding."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import same_dim
from ortconv.optimizer.engine import Context, FunctionPass
from ortconv.optimizer.extended.split import slice_part

MICROSOFT = "com.microsoft"
SLICE_BY_INPUTS = 10


@dataclass(frozen=True, eq=False, slots=True)
class Rotation:
    """x * factors + (-second half of x, first half of x) * other factors."""

    root: Node
    x: Value
    cos: Value
    sin: Value
    nodes: tuple[Node, ...]


@dataclass
class Tables:
    """What the rotations of one graph share: tables with a row for each position, and the rows that positions take."""

    graph: Graph
    made: dict[object, Value] = field(default_factory=dict)

    def of(self, r: Rotation) -> tuple[Value, Value, Value] | None:
        """Positions, cosines and sines, which have a column for each pair of elements."""
        cos, sin = _table(r.cos), _table(r.sin)
        if cos is None or sin is None:
            return None
        return self._looked_up(r, cos, sin) if cos.op == "Gather" else self._computed(r, cos, sin)

    def _looked_up(self, r: Rotation, cos: Node, sin: Node) -> tuple[Value, Value, Value] | None:
        """Rows that a Gather takes from constant tables, both halves of which are the same."""
        if sin.op != "Gather" or sin.inputs[1] is not cos.inputs[1] or any(n.attr("axis", 0) for n in (cos, sin)):
            return None
        positions, tables = cos.inputs[1], (cos.inputs[0], sin.inputs[0])
        if positions is None or positions.dtype is not DType.INT64 or not _fits(positions, r.x, 2):
            return None
        halves = [self._half_of(table, r.x.dim(-1)) for table in tables]
        first, second = halves
        return (positions, first, second) if first is not None and second is not None else None

    def _half_of(self, table: Value | None, width: object) -> Value | None:
        const = None if table is None else table.constant
        if (
            table is None
            or const is None
            or const.rank != 2
            or const.shape[1] != width
            or const.dtype is not DType.FLOAT
        ):
            return None
        if table not in self.made:
            array: Array = const.numpy()
            first, second = np.split(array, 2, axis=1)
            if not np.array_equal(first, second):
                return None
            self.made[table] = self.graph.constant(Tensor.of(np.ascontiguousarray(first)), f"{table.name}_half")
        return self.made[table]

    def _computed(self, r: Rotation, cos: Node, sin: Node) -> tuple[Value, Value, Value] | None:
        """Cos and Sin of angles that stand twice in a row."""
        angles, others = _angles(cos), _angles(sin)
        if cos.op != "Cos" or sin.op != "Sin" or angles is None or angles is not others:
            return None
        width = r.x.dim(-1)
        if not isinstance(width, int) or angles.dim(-1) != width // 2 or not _fits(angles, r.x, 3):
            return None
        positions = self._positions(angles, cos)
        return positions, self._halved(cos, angles, width // 2), self._halved(sin, angles, width // 2)

    def _halved(self, node: Node, angles: Value, width: int) -> Value:
        if node not in self.made:
            function = self._node(node.op, [angles], {}, angles.type, node)
            shape = self._ints((-1, width), angles)
            self.made[node] = self._node("Reshape", [function, shape], {}, TensorType(DType.FLOAT, (None, width)), node)
        return self.made[node]

    def _positions(self, angles: Value, before: Node) -> Value:
        """0, 1, ... in the shape (batch, rows) of the angles."""
        if angles not in self.made:
            dims = angles.shape or (None, None, None)
            shape = self._node("Shape", [angles], {}, TensorType(DType.INT64, (3,)), before)
            bounds = [self._ints((i,), angles) for i in (0, 2)]
            rows = self._node("Slice", [shape, *bounds], {}, TensorType(DType.INT64, (2,)), before)
            count = self._node("ReduceProd", [rows], {"keepdims": 0}, TensorType(DType.INT64, ()), before)
            zero, one = (self.graph.constant(Tensor.of(np.array(n, np.int64)), f"{angles.name}_const") for n in (0, 1))
            numbers = self._node("Range", [zero, count, one], {}, TensorType(DType.INT64, (None,)), before)
            self.made[angles] = self._node("Reshape", [numbers, rows], {}, TensorType(DType.INT64, dims[:2]), before)
        return self.made[angles]

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
    """x * cos + Concat(-x[..., half:], x[..., :half]) * sin  ->  RotaryEmbedding(x, positions, cos, sin)"""
    tables = Tables(graph)
    return sum(_fuse(node, tables, context) for node in graph if node.is_op("Add"))


def _fuse(root: Node, tables: Tables, context: Context) -> bool:
    graph = root.graph
    found = None if graph is None or graph.opset() < SLICE_BY_INPUTS else _find(root)
    if graph is None or found is None or not context.may_touch(root, *found.nodes):
        return False
    inputs = tables.of(found)
    if inputs is None:
        return False
    graph.opsets.setdefault(MICROSOFT, 1)
    before, label = len(graph), root.label
    fused = graph.add_node(
        "RotaryEmbedding",
        [found.x, *inputs],
        1,
        {"interleaved": 0},
        domain=MICROSOFT,
        name=graph.fresh(f"{root.name or root.out.name}/RotaryEmbedding"),
        types=[root.out.type],
        before=root,
    )
    fused.ep = root.ep
    graph.replace(root.out, fused.out)
    graph.remove_dead(root)
    context.record("RotaryEmbeddingFusion", label, before - len(graph) + 1, 1)
    return True


def _find(root: Node) -> Rotation | None:
    products = [None if v is None else v.producer for v in root.inputs]
    plain, turned = products
    for first, second in ((plain, turned), (turned, plain)):
        if first is None or second is None or not first.is_op("Mul") or not second.is_op("Mul"):
            return None
        for half, sin in (second.inputs, second.inputs[::-1]):
            x, nodes = _source_of_halves(half)
            if x is None or sin is None or x not in first.inputs or x.rank != 4 or x.dtype is not DType.FLOAT:
                continue
            cos = first.inputs[1 - first.inputs.index(x)]
            inner = (first, second, *nodes)
            if cos is not None and all(len(n.out.uses) == 1 and not n.out.is_output for n in inner):
                return Rotation(root, x, cos, sin, inner)
    return None


def _source_of_halves(value: Value | None) -> tuple[Value | None, tuple[Node, ...]]:
    """x, where a value is Concat(-x[..., half:], x[..., :half]), and the Concat and the Neg."""
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
    """What a value is a half of, along the last axis, and which."""
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


def _table(value: Value) -> Node | None:
    """The node that computes factors for (batch, rows, width), which a value has for all heads."""
    node = value.producer
    if (
        value.rank != 4
        or value.dim(1) != 1
        or node is None
        or node.domain != ""
        or node.op not in ("Unsqueeze", "Reshape")
    ):
        return None
    inner = node.inputs[0]
    if inner is None or inner.rank != 3 or inner.producer is None or inner.producer.domain != "":
        return None
    dims = (value.dim(0), value.dim(2), value.dim(3))
    return inner.producer if all(same_dim(a, b) for a, b in zip(dims, inner.shape or ())) else None


def _angles(node: Node) -> Value | None:
    """What Cos or Sin finds twice in its input, side by side."""
    twice = node.inputs[0]
    join = None if twice is None else twice.producer
    if twice is None or join is None or not join.is_op("Concat") or len(join.inputs) != 2:
        return None
    angles = join.inputs[0]
    doubled = join.inputs[1] is angles and join.attr("axis", 0) in (-1, (twice.rank or 0) - 1)
    return angles if doubled and angles is not None and angles.dtype is DType.FLOAT else None


def _fits(value: Value, x: Value, rank: int) -> bool:
    """True if a value begins with the axes batch and rows of x."""
    return value.rank == rank and same_dim(value.dim(0), x.dim(0)) and same_dim(value.dim(1), x.dim(2))


PASSES = (FunctionPass("RotaryEmbeddingFusion", fuse),)
