"""Fuses the nodes of rotary positions into com.microsoft:RotaryEmbedding."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, only_reader, producer_of, scalar
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType, ValueType
from ortconv.optimizer.basic.mask_index import is_natural
from ortconv.optimizer.conditions import SLICE_BY_INPUTS, array_of, equal_shapes, numbers, same_dim
from ortconv.optimizer.engine import Context, New, insert_new
from ortconv.optimizer.extended.attention.factors import Factors, as_copies, constant_columns, copied_from, looked_up
from ortconv.optimizer.insertion import insert, integers, reshaped
from ortconv.optimizer.parts import AxisIndices, AxisRange, part_of, sliced_indices
from ortconv.optimizer.pattern import Match, P, PatternInput, matches


class Rotation(NamedTuple):
    """Pairs of elements of x, multiplied by matrices of cosines and sines."""

    root: Node
    x: Value
    cos: Value
    sin: Value
    heads: int
    """The axis of the heads in x, which may have no batch: 1, or 2 if rows come first."""
    interleaved: bool
    """True if a pair is side by side; else its second element is in the second half of the columns."""
    columns: Array
    """For each column of cos and sin, the pair that it belongs to."""
    nodes: tuple[Node, ...]

    @property
    def rows(self) -> int:
        return 3 - self.heads

    def dim(self, axis: int) -> Dim:
        """The length of this axis of x with a batch."""
        return _dim(self.x, axis)


class Tables:
    """Nodes shared by the rotations of one graph: tables with one row per position, and the positions of rows."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: dict[object, Value] = {}

    def of(self, r: Rotation) -> tuple[Value, Value, Value] | None:
        """Positions, cosines and sines; the latter have one column per pair of elements. None if they have an unknown form."""
        if any(f is None or f.dim(r.heads) != 1 for f in map(as_copies, (r.cos, r.sin))):
            return None
        return self._constant(r) or self._looked_up(r) or self._computed(r)

    def _constant(self, r: Rotation) -> tuple[Value, Value, Value] | None:
        """Constant factors of all rows, which batches share, or of each row of each batch."""
        batch, rows = _common_outer(r)
        if batch not in (1, r.dim(0)) or not same_dim(rows, r.dim(r.rows)):
            return None
        cos, sin = (constant_columns(factors, r.columns) for factors in (r.cos, r.sin))
        if cos is None or sin is None:
            return None
        positions = integers(self.graph, (0,), r.cos) if batch == 1 else self._in_order(r.cos, (batch, rows))
        return positions, self._columns(r.cos, cos), self._columns(r.sin, sin)

    def _in_order(self, factors: Value, shape: tuple[Dim, Dim]) -> Value:
        """The positions 0, 1, ... of constant factors in this shape."""
        sizes = numbers(*shape)
        if (factors, sizes) not in self.made:
            positions = Tensor.of(np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes))
            self.made[factors, sizes] = self.graph.constant(positions, f"{factors.name}_positions")
        return self.made[factors, sizes]

    def _looked_up(self, r: Rotation) -> tuple[Value, Value, Value] | None:
        """Rows that a Gather selects from constant tables of one length, which is not known to be less than the number of rows."""
        cos, sin = (looked_up(factors, r.columns, 0, r.rows) for factors in (r.cos, r.sin))
        if cos is None or sin is None or cos.positions is not sin.positions:
            return None
        if cos.positions.dtype is not DType.INT64 or not _fits(cos.positions.shape, r):
            return None
        rows, length = r.dim(r.rows), cos.table.dim(0)
        if length != sin.table.dim(0) or (isinstance(rows, int) and isinstance(length, int) and rows > length):
            return None
        positions = self._from_front(cos.positions, length, r.root)
        return positions, self._columns(cos.table, cos.columns), self._columns(sin.table, sin.columns)

    def _from_front(self, positions: Value, length: Dim, before: Node) -> Value:
        """The positions without negative ones, which Gather counts from the end: RotaryEmbedding refuses them."""
        if is_natural(positions):
            return positions
        key = ("positions", positions, length)
        if key not in self.made:
            inputs = [positions, integers(self.graph, (length,), positions)]
            self.made[key] = insert("Mod", inputs, positions.type, before)
        return self.made[key]

    def _columns(self, table: Value, columns: Array) -> Value:
        """Some columns of a constant, as a matrix."""
        key = (table, columns.tobytes())
        if key not in self.made:
            part = np.ascontiguousarray(array_of(table)[..., columns].reshape(-1, len(columns)))
            self.made[key] = self.graph.constant(Tensor.of(part), f"{table.name}_half")
        return self.made[key]

    def _computed(self, r: Rotation) -> tuple[Value, Value, Value] | None:
        """Cosines and sines that the graph computes. If batches share them, the first position suffices."""
        cos, sin = copied_from(r.cos, r.columns), copied_from(r.sin, r.columns)
        if cos is None or sin is None or not equal_shapes(_outer(cos, r), _outer(sin, r)):
            return None
        batch, rows = _outer(cos, r)
        shared = batch == 1
        if not _fits((r.dim(0) if shared else batch, rows), r):
            return None
        positions = integers(self.graph, (0,), cos.value) if shared else self._positions(cos, r)
        return None if positions is None else (positions, self._table(cos, r), self._table(sin, r))

    def _table(self, factors: Factors, r: Rotation) -> Value:
        """The factors as a matrix with one row for each batch and row."""
        x, order = factors.value, _order(factors, r)
        key = (x, factors.functions, order)
        if key not in self.made:
            width = int(r.columns[-1]) + 1
            for node in reversed(factors.functions):
                x = insert(node.op, [x if scalar(v) is None else v for v in node.present_inputs], x.type, node)
            before = factors.functions[0] if factors.functions else r.root
            if order != tuple(sorted(order)):
                type = TensorType(DType.FLOAT, tuple(x.dim(axis) for axis in order))
                x = insert("Transpose", [x], type, before, {"perm": Ints(order)})
            self.made[key] = reshaped(x, (-1, width), before, TensorType(DType.FLOAT, (None, width)))
        return self.made[key]

    def _positions(self, factors: Factors, r: Rotation) -> Value | None:
        """Positions 0, 1, ... in the shape (batch, rows) of the factors; None if it is no part of a computed shape."""
        x, batch, rows = factors.value, factors.axes[0], factors.axes[r.rows]
        before = factors.functions[0] if factors.functions else r.root
        if batch is None or rows is None:
            return None
        if (x, batch, rows) not in self.made:
            graph = before.parent
            shape = insert("Shape", [x], TensorType(DType.INT64, (x.rank,)), before)
            picked = integers(graph, (batch, rows), x)
            lengths = insert("Gather", [shape, picked], TensorType(DType.INT64, (2,)), before, {"axis": 0})
            count = insert("ReduceProd", [lengths], TensorType(DType.INT64, ()), before, {"keepdims": 0})
            zero, one = (graph.constant(Tensor.of(np.array(n, np.int64)), f"{x.name}_const") for n in (0, 1))
            numbers = insert("Range", [zero, count, one], TensorType(DType.INT64, (None,)), before)
            type = TensorType(DType.INT64, _outer(factors, r))
            self.made[x, batch, rows] = insert("Reshape", [numbers, lengths], type, before)
        return self.made[x, batch, rows]


def fuse(graph: Graph, context: Context) -> int:
    """x * cos + Concat(-x[..., half:], x[..., :half]) * sin  ->  RotaryEmbedding(x, positions, cos, sin);
    x * cos + Reshape(Concat(-x[..., 1::2], x[..., 0::2])) * sin  ->  RotaryEmbedding<interleaved=1>(x, positions, cos, sin),
    also if a Reshape gives the pairs an axis of their own;
    Concat(first * cos - second * sin, second * cos + first * sin), for halves of x  ->  RotaryEmbedding(x, positions, cos, sin)

    Counterpart: none: its GroupQueryAttentionFusion supports other providers only
    """
    tables, roots = Tables(graph), _PATTERNS if graph.opset() >= SLICE_BY_INPUTS else ()
    return sum(_fuse(node, tables, context) for node in graph if node.op in roots and node.domain == "")


def _fuse(root: Node, tables: Tables, context: Context) -> bool:
    graph = tables.graph
    rotations = (_rotation(m) for pattern in _PATTERNS[root.op] for m in matches(pattern, root))
    found = next(filter(None, rotations), None)
    if found is None or 0 in (found.x.shape or ()) or not context.may_touch(root, *found.nodes):
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
        attrs = {"interleaved": int(r.interleaved)}
        return insert_new(New("RotaryEmbedding", [x, *inputs], attrs, domain=MICROSOFT, types=[type]), r.root).out

    if r.heads == 1:
        return rotation(r.x, r.root.out.type)
    size = numbers(r.dim(2), r.dim(3))
    whole, back = ((0, 0, math.prod(size)), (0, 0, *size)) if r.x.rank == 4 else ((1, -1, math.prod(size)), (-1, *size))
    flat = TensorType(DType.FLOAT, (r.dim(0), r.dim(1), math.prod(size)))
    rows = _rows(r.x, flat) or reshaped(r.x, whole, r.root, flat)
    rows.retype(flat)
    return reshaped(rotation(rows, flat), back, r.root, r.root.out.type)


def _rows(heads: Value, type: TensorType) -> Value | None:
    """The rows of this type that a Reshape splits into heads; None if there are none."""
    split = producer_of(heads, "Reshape")
    rows = None if split is None else split.inputs[0]
    return rows if rows is not None and equal_shapes(rows.shape, type.shape) else None


_IN_TURN = P("Reshape", P("Concat", P("Unsqueeze", P("Neg", "second"), ..., name="unsqueeze"), P("Unsqueeze", "first", ...,
    name="unsqueeze first"), name="join"), ..., name="merge")  # fmt: skip
_IN_PAIRS = P("Reshape", P("Concat", P("Neg", "second"), "first", name="join"), ..., name="merge")
_BY_HALVES = P("Concat", P("Neg", "second"), "first", name="join")


def _times(x: PatternInput, factor: str) -> P:
    return P("Mul", x, factor, commutative=True)


_TURNED = [_times(turned, "sin") for turned in (_BY_HALVES, _IN_TURN, _IN_PAIRS)]
_FIRST = P("Sub", _times("first", "cos"), _times("second", "sin"))
_SECOND = P("Add", _times("second", "cos"), _times("first", "sin"), commutative=True)
_PATTERNS = {
    "Add": [P("Add", _times("x", "cos"), turned, commutative=True) for turned in _TURNED],
    "Concat": [P("Concat", _FIRST, _SECOND)],
}
"""The forms of a rotation, by the operator of their last node."""


def _rotation(m: Match) -> Rotation | None:
    """The rotation of float32 heads in a match. If rows come before heads, number and size of the heads must be known."""
    interleaved = "merge" in m.bound
    paired = interleaved and "unsqueeze" not in m.bound
    x = _of_pairs(m.first, m.second) if paired else _whole(m.first, m.second, interleaved)
    nodes = tuple(node for node, _ in m.nodes)
    if x is None or x.dtype is not DType.FLOAT or None in (only_reader(node.out) for node in nodes):
        return None
    join, last = m.optional_node("join") or m.root, (x.rank or 0) - 1
    if not (_merges(m, x) if interleaved else join.attr("axis", 0) in (-1, last)):
        return None
    pairs = np.arange(numbers(x.dim(-1))[0] // 2)
    if m.optional("x") not in (None, x):
        return None
    columns = pairs if m.root.op == "Concat" else np.repeat(pairs, 2) if interleaved else np.tile(pairs, 2)
    cos = as_copies(m.cos)
    heads = 1 if cos is None or (cos.dim(1) == 1 and same_dim(cos.dim(2), _dim(x, 2))) else 2
    known = x.rank == 4 if heads == 1 else numbers(_dim(x, 2), x.dim(-1))
    return Rotation(m.root, x, m.cos, m.sin, heads, interleaved, columns, nodes) if known else None


def _whole(first: Value, second: Value, interleaved: bool) -> Value | None:
    """The value of rank 4, or 3 without a batch, of which these are the first and second elements of all pairs; else None."""
    a, b = map(_indices, (first, second))
    width, last = (None, 0) if a is None else (a.x.dim(-1), (a.x.rank or 0) - 1)
    if a is None or last not in (2, 3) or not isinstance(width, int) or width < 2 or width % 2:
        return None
    half = width // 2
    wanted = (range(0, width, 2), range(1, width, 2)) if interleaved else (range(half), range(half, width))
    return a.x if (a, b) == tuple(AxisIndices(a.x, last, indices) for indices in wanted) else None


def _of_pairs(first: Value, second: Value) -> Value | None:
    """The value of rank 4 whose pairs a Reshape puts along another axis, of which these are the two elements; else None."""
    a, b = part_of(first), part_of(second)
    split = None if a is None else producer_of(a.x, "Reshape")
    if a is None or split is None or (a, b) != (AxisRange(a.x, 4, 0, 1), AxisRange(a.x, 4, 1, 2)):
        return None
    x, shape = split.present_inputs[0], split.present_inputs[0].shape or ()
    width = numbers(*shape[3:])
    return x if len(width) == 1 and width[0] > 1 and equal_shapes(a.x.shape, (*shape[:3], width[0] // 2, 2)) else None


def _indices(value: Value) -> AxisIndices | None:
    part = part_of(value)
    return sliced_indices(value) or (part and AxisIndices(part.x, part.axis, range(part.start, part.end)))


def _merges(m: Match, x: Value) -> bool:
    """True if pairs are joined along a new last axis, and merged into the shape of x."""
    shape = m.node("merge").out.shape
    if shape is None or len(shape) != 4 or m.node("join").attr("axis", 0) not in (-1, 4):
        return False
    unsqueezes = filter(None, map(m.optional_node, ("unsqueeze", "unsqueeze first")))
    if any(axes_of(node) not in ((-1,), (4,)) for node in unsqueezes):
        return False
    return equal_shapes(shape[:3], (x.shape or ())[:3])


def _dim(x: Value, axis: int) -> Dim:
    """The length of an axis of x of rank 4, or of rank 3, to which a batch of one is added."""
    return x.dim(axis - 4) if axis or x.rank == 4 else 1


def _outer(factors: Factors, r: Rotation) -> tuple[Dim, Dim]:
    """The numbers of batches and rows."""
    return factors.dim(0), factors.dim(r.rows)


def _common_outer(r: Rotation) -> tuple[Dim, Dim]:
    """The numbers of batches and rows that cosines and sines both have; None if they differ or are unknown."""
    first, second = (None if factors is None else _outer(factors, r) for factors in map(as_copies, (r.cos, r.sin)))
    return first if first is not None and first == second else (None, None)


def _order(factors: Factors, r: Rotation) -> tuple[int, ...]:
    """The axes of the value, with those of batch, rows and columns in this order. All others have length 1."""
    needed = [axis for axis in (factors.axes[0], factors.axes[r.rows], factors.axes[3]) if axis is not None]
    every = range(factors.value.rank or 0)
    return tuple(every) if needed == sorted(needed) else (*(a for a in every if a not in needed), *needed)


def _fits(dims: Shape | None, r: Rotation) -> bool:
    """True if the dimensions begin with batch and rows of the rotated tensor."""
    return dims is not None and same_dim(dims[0], r.dim(0)) and same_dim(dims[1], r.dim(r.rows))
