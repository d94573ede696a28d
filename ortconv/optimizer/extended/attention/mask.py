"""Masks that are added to the scores of attention before the softmax, in the form that the fused kernels need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import producer_of, source_of
from ortconv.ir.slices import AxisSlice, axis_slices
from ortconv.ir.symbols import broadcast_dims, stretches_to, terms, times
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType
from ortconv.optimizer.conditions import RESHAPES, SLICE_BY_INPUTS
from ortconv.optimizer.extended.attention.biased import Biased, Keys, condition_of, masked_keys
from ortconv.optimizer.extended.attention.heads import Heads, length, row_sources
from ortconv.optimizer.extended.attention.past import ROWS, joined
from ortconv.optimizer.insertion import insert, integers, with_list
from ortconv.optimizer.parts import picked_part
from ortconv.optimizer.shapes import Element, dim_of, elements


class PaddingMask(NamedTuple):
    """A mask of keys, int32 (batch, keys), and the number that is added to the scores where it is zero."""

    keys: Value
    low: float


class Scores(NamedTuple):
    """Scores that a mask is for. New nodes are inserted before the node `before`."""

    query: Heads
    key: Heads
    rows: set[Element]
    columns: set[Element]
    """All elements known to equal the number of rows, or of columns."""
    before: Node
    is_bounded: bool
    """True if a mask certainly does not enlarge them."""
    has_all_columns: bool
    """True if a mask certainly adds no columns to them."""


class Masks:
    """The masks of one graph; nodes created for a mask are shared by all layers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: dict[tuple[object, ...], Value] = {}
        """By the kind of mask and what it is made of."""
        self.expanded: dict[Value, list[tuple[Value, set[Element], set[Element]]]] = {}
        self.extents: dict[tuple[Value, int], Value] = {}
        self.has_measured = False
        """True once nodes read a number of rows that is computed behind them."""

    def fitting(self, biased: Biased, scores: Scores) -> Value | None:
        """The mask as (1 or batch, 1 or heads, queries, keys); None if it cannot be given that shape."""
        mask = biased.mask
        if biased.layers is not None:
            return self._joined(*biased.layers, scores)
        if mask is None or (biased.replaced is None and mask.dtype is not DType.FLOAT):
            return None
        if mask.constant is not None:
            return self._constant(biased, mask.constant, scores)
        return self._added(mask, scores) if biased.replaced is None else self._blended(biased, scores)

    def _added(self, mask: Value, scores: Scores) -> Value | None:
        """A float mask that is added to the scores, in the form of attention's input."""
        if mask.rank is None or mask.rank > 4:
            return None
        rows, columns, heads = scores.rows, scores.columns, scores.query.count
        dims = _four_dims(mask, rows, columns)
        outer = _broadcasts(dims[0], length(scores.query, 0)) and dims[1] in (1, heads)
        if outer and _is_one_of(dims[2], rows) and _is_one_of(dims[3], columns):
            return mask if mask.rank == 4 else self._raised(mask, scores.before)
        fits = outer and _broadcasts(dims[2], rows) and (scores.has_all_columns or _broadcasts(dims[3], columns))
        return self._expanded(mask, scores) if scores.is_bounded or fits else None

    def padding(self, biased: Biased, scores: Scores) -> PaddingMask | None:
        """The mask as a mask of keys with one row per batch, if it is the same for all queries; else None."""
        found, batch, columns = condition_of(biased), length(scores.query, 0), scores.columns
        if found is None or biased.mask is None or found.value.graph is not self.graph:
            return None
        keys = masked_keys(found.value, batch, columns)
        dims = [dim_of(biased.mask, i) for i in range(biased.mask.rank or 0)]
        allowed: tuple[set[Element], ...] = (batch, {1}, scores.rows, columns)
        if keys is None or len(dims) != 4 or not all(map(_broadcasts, dims, allowed)):
            return None
        return PaddingMask(self._as_numbers(keys, found.inverted, scores.before), found.low)

    def _as_numbers(self, keys: Keys, inverted: bool, before: Node) -> Value:
        """The condition of keys as 0 and 1."""
        name = ("numbers", keys, inverted)
        if name not in self.made:
            kept, shape = keys.value, keys.value.shape
            for node in reversed(keys.nodes):
                inputs = [kept if v is not None and v.constant is None else v for v in node.inputs]
                kept = insert(node.op, inputs, TensorType(node.out.dtype or DType.BOOL, shape), before, node.attrs)
            kept = insert("Not", [kept], TensorType(DType.BOOL, shape), before) if inverted else kept
            type = TensorType(DType.INT32, shape)
            self.made[name] = insert("Cast", [kept], type, before, {"to": int(DType.INT32)})
        return self.made[name]

    def _constant(self, biased: Biased, const: Tensor, scores: Scores) -> Value | None:
        rows, columns = number(scores.rows), number(scores.columns)
        if const.rank > 4 or rows is None or columns is None or const.size == 0:
            return None
        assert biased.mask is not None
        heads = scores.query.count
        key = ("constant", biased.mask, biased.replaced, biased.inverted, heads, rows, columns)
        if key not in self.made:
            array = _whole_constant(biased, const, heads, (rows, columns))
            if array is None:
                return None
            if array.shape == const.shape and biased.replaced is None:
                return biased.mask
            self.made[key] = self.graph.constant(Tensor.of(np.ascontiguousarray(array)), f"{biased.mask.name}_bias")
        return self.made[key]

    def _blended(self, biased: Biased, scores: Scores) -> Value | None:
        """The number to add to the scores where a condition replaces them."""
        condition = biased.mask
        if condition is None or condition.graph is not self.graph:
            return None
        name = ("blended", condition, biased.replaced, biased.inverted)
        if name not in self.made:
            self.made[name] = self._where(biased, None, condition.shape, scores.before)
        return self._fitting_made(name, scores)

    def _joined(self, last: Biased, first: Biased, scores: Scores) -> Value | None:
        """One mask for both layers: the sum, with the number wherever a condition replaces the scores."""
        if last.replaced is not None or first.replaced is not None:
            return self._added_and_blended(last, first, scores)
        masks = [v for v in (first.mask, last.mask) if v is not None and v.graph is self.graph]
        dims = _common(masks[0], masks[-1], scores) if [v.dtype for v in masks] == [DType.FLOAT] * 2 else None
        if dims is None:
            return None
        name = ("sum", *masks)
        if name not in self.made:
            self.made[name] = insert("Add", masks, TensorType(DType.FLOAT, dims), scores.before)
        return self._fitting_made(name, scores)

    def _added_and_blended(self, last: Biased, first: Biased, scores: Scores) -> Value | None:
        """One mask for a layer that is added and one that replaces scores."""
        added, replacing = (last, first) if last.replaced is None else (first, last)
        mask, condition = added.mask, replacing.mask
        if mask is None or condition is None or mask.dtype is not DType.FLOAT:
            return None
        dims = _common(mask, condition, scores)
        if dims is None or condition.graph is not self.graph:
            return None
        name = ("joined", mask, condition, replacing.replaced, replacing.inverted, replacing is last)
        if name not in self.made and replacing is last:
            self.made[name] = self._where(replacing, mask, dims, scores.before)
        elif name not in self.made:
            where = self._where(replacing, None, condition.shape, scores.before)
            self.made[name] = insert("Add", [where, mask], TensorType(DType.FLOAT, dims), scores.before)
        return self._fitting_made(name, scores)

    def _where(self, replacing: Biased, kept: Value | None, shape: Shape | None, before: Node) -> Value:
        """The mask `kept`, or zero, with the number of a condition wherever it replaces the scores."""
        condition = replacing.mask
        assert condition is not None
        name = f"{condition.name}_bias"
        zero, number = (self.graph.constant(Tensor.of(np.float32(n)), name) for n in (0, replacing.replaced))
        branches = [number, kept or zero] if replacing.inverted else [kept or zero, number]
        return insert("Where", [condition, *branches], TensorType(DType.FLOAT, shape), before)

    def _fitting_made(self, name: tuple[object, ...], scores: Scores) -> Value | None:
        """The mask with this name in the form of attention's input. If it does not fit and is unused, it is removed again."""
        mask = self.made[name]
        fitting = self._added(mask, scores)
        if fitting is None and mask.producer is not None and not mask.uses:
            del self.made[name]
            self.graph.remove_dead(mask.producer)
        return fitting

    def _raised(self, mask: Value, before: Node) -> Value | None:
        """The mask with leading axes of length 1, so that it has four axes."""
        missing = tuple(range(4 - (mask.rank or 0)))
        if mask.graph is not self.graph or mask.shape is None:
            return None
        if ("raised", mask) not in self.made:
            self.made["raised", mask] = self._unsqueezed(mask, missing, before)
        return self.made["raised", mask]

    def _unsqueezed(self, mask: Value, axes: tuple[int, ...], before: Node) -> Value:
        """The mask with axes of length 1 inserted at these positions, in ascending order."""
        dims = list(mask.shape or ())
        for axis in axes:
            dims.insert(axis, 1)
        type = TensorType(DType.FLOAT, tuple(dims))
        inputs, attrs = with_list(self.graph, "Unsqueeze", mask, axes)
        return insert("Unsqueeze", inputs, type, before, attrs)

    def _expanded(self, mask: Value, scores: Scores) -> Value | None:
        """Expand(mask) to (..., queries, keys), created once for all layers of the same lengths."""
        rows, columns, before = scores.rows, scores.columns, scores.before
        for value, its_rows, its_columns in self.expanded.get(mask, ()):
            if rows & its_rows and columns & its_columns:
                return value
        if self.graph.opset() < SLICE_BY_INPUTS or mask.graph is not self.graph:
            return None
        height, width = self.size(scores.query, before), self.size(scores.key, before)
        if height is None or width is None:
            return None
        parts = [integers(self.graph, (1, 1), mask), height, width]
        shape = insert("Concat", parts, TensorType(DType.INT64, (4,)), before, {"axis": 0})
        outer = ((1,) * (4 - (mask.rank or 0)) + (mask.shape or ()))[:2]
        type = TensorType(DType.FLOAT, (*outer, _dim(rows), _dim(columns)))
        result = insert("Expand", [mask, shape], type, before)
        self.expanded.setdefault(mask, []).append((result, rows, columns))
        return result

    def whole(self, bias: Value, query: Heads, earlier: Value | None, before: Node) -> Value:
        """The bias (1 or batch, 1 or heads, queries, keys), expanded to all heads and batches. If the number of batches is not
        known, earlier keys have it.
        """
        type, batch = whole_type(bias, query), number(length(query, 0))
        name = ("whole", query.count, bias)
        if name not in self.made:
            shape = integers(self.graph, (batch or 1, query.count, 1, 1), bias)
            if earlier is not None and not knows_all_batches(bias, query):
                parts = [self.extent(earlier, 0, before), integers(self.graph, (query.count, 1, 1), bias)]
                shape = insert("Concat", parts, TensorType(DType.INT64, (4,)), before, {"axis": 0})
            self.made[name] = insert("Expand", [bias, shape], type, before)
        return self.made[name]

    def by_groups(self, bias: Value, key: Heads, before: Node) -> Value:
        """The bias (1 or batch, 1, queries, keys), with one copy of each row for every query head that shares a key."""
        name = ("by_groups", key.copies, bias)
        if name not in self.made:
            rows, columns = bias.dim(2), bias.dim(3)
            five = TensorType(DType.FLOAT, (bias.dim(0), 1, rows, key.copies, columns))
            apart = self._unsqueezed(bias, (3,), before)
            wide = insert("Expand", [apart, integers(self.graph, (1, 1, 1, key.copies, 1), bias)], five, before)
            keys = self.extent(bias, 3, before)
            parts = [integers(self.graph, (0, 1, -1), bias), keys]
            shape = insert("Concat", parts, TensorType(DType.INT64, (4,)), before, {"axis": 0})
            type = TensorType(DType.FLOAT, (bias.dim(0), 1, times(rows, key.copies), columns))
            self.made[name] = insert("Reshape", [wide, shape], type, before)
        return self.made[name]

    def rows_with_a_key(self, bias: Value, before: Node) -> Value:
        """A condition (1 or batch, queries, 1), true where a bias, the same for all heads, leaves a row a key."""
        if ("rows", bias) not in self.made:
            rows = (bias.dim(0), 1, bias.dim(2))
            inputs, attrs = with_list(self.graph, "ReduceMax", bias, (3,), keepdims=0)
            best = insert("ReduceMax", inputs, TensorType(DType.FLOAT, rows), before, attrs)
            never = self.graph.constant(Tensor.of(np.float32(-np.inf)), f"{bias.name}_const")
            kept = insert("Greater", [best, never], TensorType(DType.BOOL, rows), before)
            type = TensorType(DType.BOOL, (rows[0], rows[2], 1))
            self.made["rows", bias] = insert("Reshape", [kept, integers(self.graph, (0, -1, 1), bias)], type, before)
        return self.made["rows", bias]

    def batches_with_a_key(self, keys: Value, before: Node) -> Value:
        """A condition (batch, 1, 1), true where a mask of keys leaves a batch a key."""
        if ("batches", keys) not in self.made:
            inputs, attrs = with_list(self.graph, "ReduceMax", keys, (1,), keepdims=1)
            best = insert("ReduceMax", inputs, TensorType(DType.INT32, (keys.dim(0), 1)), before, attrs)
            kept = insert("Cast", [best], TensorType(DType.BOOL, (keys.dim(0), 1)), before, {"to": int(DType.BOOL)})
            type = TensorType(DType.BOOL, (keys.dim(0), 1, 1))
            self.made["batches", keys] = insert("Reshape", [kept, integers(self.graph, (0, 1, 1), keys)], type, before)
        return self.made["batches", keys]

    def size(self, side: Heads, before: Node) -> Value | None:
        """The number of rows as a tensor of one element."""
        source = side.source
        known = number(length(side, 1))
        if known is not None:
            return integers(self.graph, (known,), source)
        if source.graph is not self.graph or source.rank not in (3, 4):
            return None
        if source is not side.whole:  # rows
            if source.rank == 3:
                *_, source = (v for v in row_sources(source) if v.graph is self.graph)
            return self.extent(source, side.length_axis, before)
        self._measure_parts(side, before)
        return self.extent(source, ROWS, before)

    def _measure_parts(self, side: Heads, before: Node) -> None:
        """Compute the number of concatenated rows from their parts: attention may concatenate them, and need the number."""
        past = joined(side)
        if past is None or (side.source, ROWS) in self.extents:
            return
        later = self.size(past.later, before)
        if later is not None:
            parts = [self.extent(past.earlier, ROWS, before), later]
            total = insert("Add", parts, TensorType(DType.INT64, (1,)), before)
            self.extents[side.source, ROWS] = total

    def extent(self, value: Value, axis: int, before: Node) -> Value:
        """One dimension of a value, as a tensor of one element."""
        if (value, axis) not in self.extents:
            shape = insert("Shape", [value], TensorType(DType.INT64, (value.rank,)), before)
            self.extents[value, axis] = self._element(shape, axis, value, before)
        return self.extents[value, axis]

    def _element(self, shape: Value, index: int, value: Value, before: Node) -> Value:
        """One element of the shape of a value, by a Slice in the form of the opset."""
        bounds, type = (index, index + 1), TensorType(DType.INT64, (1,))
        if self.graph.opset() < SLICE_BY_INPUTS:
            attrs = {name: Ints((number,)) for name, number in zip(("starts", "ends"), bounds)}
            return insert("Slice", [shape], type, before, attrs)
        return insert("Slice", [shape, *(integers(self.graph, (number,), value) for number in bounds)], type, before)

    def remove_unused(self) -> None:
        """Remove the nodes that were made for a mask and that no fused node reads."""
        expanded = [value for masks in self.expanded.values() for value, *_ in masks]
        for value in (*expanded, *self.made.values(), *self.extents.values()):
            if value.producer is not None:
                self.graph.remove_dead(value.producer)

    def measure(self, side: Heads, before: Node) -> None:
        """Give the number of rows that is selected from Shape(join), also of heads that were repeated, the sum of the numbers of
        earlier and later rows.

        A mask that is cut to the number of keys would need them joined, while the attention that joins them needs the mask.
        """
        repeated = [n for n in side.source.consumers if n.is_op("Gather") and n.attr("axis", 0) == 1]
        for value in (side.source, *(node.out for node in repeated)):
            for pick in self._row_counts(value):
                size = self.size(side, before)
                if size is not None:
                    _put(pick, size)
                    self.has_measured = True

    def _readers(self, value: Value, op: str) -> list[Node]:
        """The nodes of this graph and operator that read a value."""
        return [n for n in value.consumers if n.is_op(op) and n.graph is self.graph]

    def _row_counts(self, value: Value) -> list[Node]:
        """The nodes Gather(Shape(value), rows) and Slice(Shape(value)) of the rows."""
        shapes = [n for n in self._readers(value, "Shape") if not n.attrs]
        picks = [n for shape in shapes for op in ("Gather", "Slice") for n in self._readers(shape.out, op)]
        parts = ((node, picked_part(node.out)) for node in picks)
        return [node for node, part in parts if part is not None and (part.start, part.end) == (ROWS, ROWS + 1)]


def _put(pick: Node, size: Value) -> None:
    """Replace a node that selects a size by a tensor of one element: a scalar if the node returns one."""
    scalar = TensorType(DType.INT64, ())
    pick.parent.replace(pick.out, insert("Squeeze", [size], scalar, pick) if pick.out.rank == 0 else size)
    pick.parent.remove_dead(pick)


def whole_type(bias: Value, query: Heads) -> TensorType:
    """The type of a four-dimensional bias expanded to all batches and query heads."""
    batch = bias.dim(0) if has_all_batches(bias, query) else query.source.dim(0)
    return TensorType(DType.FLOAT, (batch, query.count, bias.dim(2), bias.dim(3)))


def has_all_batches(bias: Value, query: Heads) -> bool:
    """True if a bias has a row for each batch of the queries."""
    return bias.dim(0) in length(query, 0)


def knows_all_batches(bias: Value, query: Heads) -> bool:
    """True if a bias has a row for each batch of the queries, or if their number is known."""
    return has_all_batches(bias, query) or number(length(query, 0)) is not None


def _dim(known: set[Element]) -> Dim:
    """One of these equal elements that is a number or a symbol; None if there is none."""
    return next((d for d in known if isinstance(d, (int, str))), None)


def number(known: set[Element]) -> int | None:
    """One of these equal elements that is a number; None if there is none."""
    return next((d for d in known if isinstance(d, int)), None)


def _four_dims(mask: Value, rows: set[Element], columns: set[Element]) -> tuple[Element, ...]:
    """The dimensions of a mask of rank 4 or less, with leading axes of length 1 if it has fewer axes."""
    rank = mask.rank or 0
    dims: tuple[Element, ...] = (*(1,) * (4 - rank), *(dim_of(mask, i) for i in range(rank)))
    return (*dims[:2], _row_dim(mask, dims[2], rows, columns), dims[3])


def _whole_constant(biased: Biased, const: Tensor, heads: int, sizes: tuple[int, int]) -> Array | None:
    """A constant mask as (1, 1 or heads, queries, keys); None if it has another shape, or differs between batches."""
    array: Array = const.numpy().reshape((1,) * (4 - const.rank) + const.shape)
    array = array[:1] if (array == array[:1]).all() else array
    if any(d not in (1, size) for d, size in zip(array.shape, (1, heads, *sizes))):
        return None
    if biased.replaced is not None:
        array = np.where(array != biased.inverted, np.float32(0), np.float32(biased.replaced))
    return np.broadcast_to(array, (*array.shape[:2], *sizes))


def _common(a: Value, b: Value, scores: Scores) -> Shape | None:
    """The broadcast shape of two masks of the same scores; None if a dimension is uncertain."""
    if a.rank is None or b.rank is None or max(a.rank, b.rank) > 4:
        return None
    rows, columns = scores.rows, scores.columns
    pairs = zip(*(_four_dims(mask, rows, columns) for mask in (a, b)))
    dims = tuple(map(_common_dim, pairs, (set[Element](), set[Element](), rows, columns)))
    return None if None in dims else dims[4 - max(a.rank, b.rank) :]


def _common_dim(pair: tuple[Element, ...], known: set[Element]) -> Dim:
    """The dimension to which those of two masks broadcast, where the scores have one of the known lengths."""
    longer = [d for d in pair if d != 1]
    if longer and all(_is_one_of(d, known) for d in longer):
        return _dim(known)
    return broadcast_dims([d if isinstance(d, (int, str)) else None for d in pair])


def _broadcasts(dim: Element, known: set[Element]) -> bool:
    """True if a mask dimension broadcasts to scores of one of the known lengths."""
    return dim == 1 or dim in known


def _row_dim(mask: Value, dim: Element, rows: set[Element], columns: set[Element]) -> Element:
    """The number of rows of a mask, which may be sliced from a larger one by the numbers of keys and queries.

    Its columns are also sliced to the number of keys, so the larger one must have at least as many, or it would fit no scores.
    """
    queries = next((d for d in rows if isinstance(d, str)), None)
    if queries is None or _is_one_of(dim, rows):
        return dim
    across = _cut(source_of(mask, "Where", "Cast"), 3)
    along = None if across is None else _cut(across.node.inputs[0], 2)
    if across is None or along is None or across.part.start != 0 or not _is_of_square(along.node):
        return dim
    keys = next((d for d in columns if across.part.end == along.part.end == d), None)
    return queries if isinstance(keys, str) and _is_difference(along.node.input(1), keys, queries) else dim


class _Cut(NamedTuple):
    """A Slice along one axis."""

    node: Node
    part: AxisSlice[Element]


def _cut(value: Value | None, axis: int) -> _Cut | None:
    """The Slice along this axis that computes a value of rank 4, if its step is 1; None if there is none."""
    node = producer_of(value, "Slice")
    parts = None if node is None or node.out.rank != 4 else axis_slices(node, elements)
    if node is None or parts is None or len(parts) != 1:
        return None
    return _Cut(node, parts[0]) if (parts[0].axis % 4, parts[0].step) == (axis, 1) else None


def _is_of_square(cut: Node) -> bool:
    """True if a Slice reads a mask with as many rows as columns, and more than one."""
    rows, columns = (cut.dim(0, axis) for axis in (2, 3))
    return isinstance(rows, int) and rows == columns and rows > 1


def _is_difference(value: Value | None, keys: str, queries: str) -> bool:
    """True if a tensor of one element is the number of keys, some of which are those of the queries, minus that of queries."""
    if queries not in terms(keys):
        return False
    difference = producer_of(source_of(value, *RESHAPES, "Cast"), "Sub")
    return difference is not None and [elements(v) for v in difference.inputs] == [(keys,), (queries,)]


def _is_one_of(dim: Element, known: set[Element]) -> bool:
    return any(stretches_to(dim, d) for d in known)
