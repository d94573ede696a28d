"""Masks that are added to the scores of attention before the softmax, in the form that the fused kernels need."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType
from ortconv.optimizer.basic.mask_index import UNSQUEEZE_BY_INPUT, is_true
from ortconv.optimizer.conditions import RESHAPES, ints, scalar
from ortconv.optimizer.extended.attention.heads import Heads, alone, length, row_sources
from ortconv.optimizer.extended.attention.past import ROWS, joined
from ortconv.optimizer.shapes import Element, dim_of, elements
from ortconv.optimizer.symbols import PLUS, broadcast_dims, stretches_to, times

LARGEST_BLEND = -1e30
"""At or below this value, adding any usual score has no effect."""

REDUCE_BY_INPUT = 18
"""The opset from which on ReduceMax has its axes as an input."""

SLICE_BY_INPUTS = 10
"""The opset from which on Slice has its bounds as inputs."""


class Biased(NamedTuple):
    """Scores with the mask that is added to them or replaces elements of them."""

    scores: Value
    mask: Value | None
    nodes: tuple[Node, ...]
    replaced: float | None = None
    """If `mask` is a condition: the value of scores where it is false, or true if `inverted`."""
    inverted: bool = False
    layers: tuple[Biased, Biased] | None = None
    """If one mask is added and another one replaces scores: both, the one applied last first."""


class Padding(NamedTuple):
    """A mask of keys, int32 (batch, keys), and the number that is added to the scores where it is zero."""

    keys: Value
    low: float


class Bounds(NamedTuple):
    """The dimensions that a mask certainly does not enlarge: all of the scores', or at least their columns."""

    scores: bool
    columns: bool


class Masks:
    """The masks of one graph; nodes created for a mask are shared by all layers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: dict[tuple[object, ...], Value] = {}
        self.expanded: dict[Value, list[tuple[Value, set[Element], set[Element]]]] = {}
        self.extents: dict[tuple[Value, int], Value] = {}

    def split(self, total: Value) -> Biased | None:
        """Split the softmax's input into scores and mask; None if scores are replaced in a way that no sum can express."""
        outer = self._layer(total)
        if outer is None or outer.mask is None:
            return outer
        inner = self._layer(outer.scores)
        if inner is None or inner.mask is None or (inner.replaced is None) == (outer.replaced is None):
            return outer
        both = (outer, inner)
        return Biased(inner.scores, outer.mask, (*outer.nodes, *inner.nodes), layers=both)

    def _layer(self, total: Value) -> Biased | None:
        """The mask that a single node adds to scores or puts in their place."""
        node = total.producer
        if node is None or node.domain != "" or alone(total) is None:
            return None
        if node.op == "Add":
            a, b = node.inputs
            if a is None or b is None:
                return None
            a, b = (a, b) if _may_be_scores(a) else (b, a)
            return Biased(a, b, (node,)) if alone(a) is not None else None
        if node.op == "Where":
            condition, a, b = node.inputs
            if condition is None or a is None or b is None:
                return None
            inverted = a.constant is not None
            scores, other = (b, a) if inverted else (a, b)
            number = scalar(other)
            if number is None or number > LARGEST_BLEND or math.isnan(number) or alone(scores) is None:
                return None
            return Biased(scores, condition, (node,), float(number), inverted)
        return Biased(total, None, ())

    def fitting(self, biased: Biased, query: Heads, key: Heads, before: Node, *, bounds: Bounds) -> Value | None:
        """The mask as (1 or batch, 1 or heads, queries, keys); None if it cannot be given that shape.

        New nodes are inserted before the node `before`.
        """
        if biased.layers is not None:
            return self._joined(biased, biased.layers, query, key, before, bounds)
        mask = biased.mask
        if mask is None or (biased.replaced is None and mask.dtype is not DType.FLOAT):
            return None
        rows, columns = length(query, 1), length(key, 1)
        if mask.constant is not None:
            return self._constant(biased, mask.constant, rows, columns, query.count)
        if mask.rank is None or mask.rank > 4:
            return None
        if biased.replaced is not None:
            return self._blended(biased, biased.replaced, query, key, before, bounds)
        dims: list[Element] = [1] * (4 - mask.rank)
        batch, heads, row, column = dims + [dim_of(mask, i) for i in range(mask.rank)]
        row = _row_dim(mask, row, rows, columns)
        outer = _broadcasts(batch, length(query, 0)) and heads in (1, query.count)
        if outer and _is_one_of(row, rows) and _is_one_of(column, columns):
            return mask if mask.rank == 4 else self._raised(mask, before)
        fits = outer and _broadcasts(row, rows) and (bounds.columns or _broadcasts(column, columns))
        return self._expanded(mask, query, key, before) if bounds.scores or fits else None

    def padding(self, biased: Biased, query: Heads, key: Heads, before: Node) -> Padding | None:
        """The mask as a mask of keys with one row per batch, if it is the same for all queries; else None."""
        condition, low, inverted = _condition(biased)
        if biased.layers is not None or biased.mask is None or low is None:
            return None
        if condition is None or condition.graph is not self.graph:
            return None
        keys = _masked_keys(condition, length(query, 0), length(key, 1))
        allowed: tuple[set[Element], ...] = (length(query, 0), {1}, length(query, 1), length(key, 1))
        dims: list[Element] = [dim_of(biased.mask, i) for i in range(biased.mask.rank or 0)]
        if keys is None or len(dims) != 4 or not all(map(_broadcasts, dims, allowed)):
            return None
        name = (keys, inverted)
        if name not in self.made:
            shape = keys.shape
            kept = self._node("Not", [keys], {}, TensorType(DType.BOOL, shape), before) if inverted else keys
            attrs: dict[str, Attribute] = {"to": int(DType.INT32)}
            self.made[name] = self._node("Cast", [kept], attrs, TensorType(DType.INT32, shape), before)
        return Padding(self.made[name], float(low))

    def _constant(
        self, biased: Biased, const: Tensor, rows: set[Element], columns: set[Element], heads: int
    ) -> Value | None:
        sizes = [d for known in (rows, columns) for d in known if isinstance(d, int)]
        if const.rank > 4 or len(sizes) != 2 or const.size == 0:
            return None
        key = (biased.mask, biased.replaced, biased.inverted, *sizes)
        if key in self.made:
            return self.made[key]
        array = const.numpy().reshape((1,) * (4 - const.rank) + const.shape)
        if array.shape[0] != 1 or array.shape[1] not in (1, heads):
            return None
        if biased.replaced is not None:
            array = np.where(array != biased.inverted, np.float32(0), np.float32(biased.replaced))
        try:
            array = np.broadcast_to(array, (*array.shape[:2], *sizes))
        except ValueError:
            return None
        assert biased.mask is not None
        if array.shape == const.shape and biased.replaced is None:
            return biased.mask
        self.made[key] = self.graph.constant(Tensor.of(np.ascontiguousarray(array)), f"{biased.mask.name}_bias")
        return self.made[key]

    def _blended(
        self, biased: Biased, low: float, query: Heads, key: Heads, before: Node, bounds: Bounds
    ) -> Value | None:
        """The number to add to the scores where a condition replaces them."""
        condition = biased.mask
        assert condition is not None
        blend = (condition, low, biased.inverted)
        if condition.graph is not self.graph:
            return None
        if blend not in self.made:
            near = f"{condition.name}_bias"
            zero, other = (self.graph.constant(Tensor.of(np.float32(n)), near) for n in (0, low))
            branches = [other, zero] if biased.inverted else [zero, other]
            self.made[blend] = self._node(
                "Where", [condition, *branches], {}, TensorType(DType.FLOAT, condition.shape), before
            )
        return self._fitting_made(blend, biased, query, key, before, bounds)

    def _joined(
        self, biased: Biased, layers: tuple[Biased, Biased], query: Heads, key: Heads, before: Node, bounds: Bounds
    ) -> Value | None:
        """One mask for both layers: the sum, with the number wherever the condition replaces the scores."""
        added, replacing = layers if layers[0].replaced is None else layers[::-1]
        mask, condition, low = added.mask, replacing.mask, replacing.replaced
        if mask is None or condition is None or low is None or mask.dtype is not DType.FLOAT:
            return None
        dims = _common(mask, condition, length(query, 1), length(key, 1))
        if dims is None or condition.graph is not self.graph:
            return None
        name = (mask, condition, low, replacing.inverted, replacing is layers[0])
        if name not in self.made:
            near = f"{condition.name}_bias"
            zero, number = (self.graph.constant(Tensor.of(np.float32(n)), near) for n in (0, low))
            kept, shape = (mask, dims) if replacing is layers[0] else (zero, condition.shape)
            branches = [number, kept] if replacing.inverted else [kept, number]
            where = self._node("Where", [condition, *branches], {}, TensorType(DType.FLOAT, shape), before)
            last = (
                where if kept is mask else self._node("Add", [where, mask], {}, TensorType(DType.FLOAT, dims), before)
            )
            self.made[name] = last
        return self._fitting_made(name, biased, query, key, before, bounds)

    def _fitting_made(
        self, name: tuple[object, ...], biased: Biased, query: Heads, key: Heads, before: Node, bounds: Bounds
    ) -> Value | None:
        """The mask with this name in the form of attention's input. If it does not fit and is unused, it is removed again."""
        mask = self.made[name]
        fitting = self.fitting(Biased(biased.scores, mask, biased.nodes), query, key, before, bounds=bounds)
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
        if self.graph.opset() < UNSQUEEZE_BY_INPUT:
            return self._node("Unsqueeze", [mask], {"axes": Ints(axes)}, type, before)
        return self._node("Unsqueeze", [mask, self._ints(axes, mask)], {}, type, before)

    def _expanded(self, mask: Value, query: Heads, key: Heads, before: Node) -> Value | None:
        """Expand(mask) to (..., queries, keys), created once for all layers of the same lengths."""
        rows, columns = length(query, 1), length(key, 1)
        for value, its_rows, its_columns in self.expanded.get(mask, ()):
            if rows & its_rows and columns & its_columns:
                return value
        if self.graph.opset() < SLICE_BY_INPUTS or mask.graph is not self.graph:
            return None
        height, width = self.size(query, before), self.size(key, before)
        if height is None or width is None:
            return None
        parts = [self._ints((1, 1), mask), height, width]
        shape = self._node("Concat", parts, {"axis": 0}, TensorType(DType.INT64, (4,)), before)
        outer = ((1,) * (4 - (mask.rank or 0)) + (mask.shape or ()))[:2]
        dims = (*outer, *(next((d for d in s if isinstance(d, (int, str))), None) for s in (rows, columns)))
        result = self._node("Expand", [mask, shape], {}, TensorType(DType.FLOAT, dims), before)
        self.expanded.setdefault(mask, []).append((result, rows, columns))
        return result

    def whole(self, bias: Value, query: Heads, earlier: Value, before: Node) -> Value:
        """The bias (1 or batch, 1 or heads, queries, keys), expanded to all batches, which are those of earlier keys,
        and all heads.
        """
        type = whole_type(bias, query)
        if (query.count, bias) not in self.made:
            shape = self._ints((1, query.count, 1, 1), bias)
            if type.shape is not None and type.shape[0] != bias.dim(0):
                parts = [self.extent(earlier, 0, before), self._ints((query.count, 1, 1), bias)]
                shape = self._node("Concat", parts, {"axis": 0}, TensorType(DType.INT64, (4,)), before)
            self.made[query.count, bias] = self._node("Expand", [bias, shape], {}, type, before)
        return self.made[query.count, bias]

    def by_groups(self, bias: Value, key: Heads, before: Node) -> Value:
        """The bias (1 or batch, 1, queries, keys), with one copy of each row for every query head that shares a key."""
        if (key.copies, bias) not in self.made:
            rows, columns = bias.dim(2), bias.dim(3)
            five = TensorType(DType.FLOAT, (bias.dim(0), 1, rows, key.copies, columns))
            apart = self._unsqueezed(bias, (3,), before)
            wide = self._node("Expand", [apart, self._ints((1, 1, 1, key.copies, 1), bias)], {}, five, before)
            keys = self.extent(bias, 3, before)
            shape = self._node(
                "Concat", [self._ints((0, 1, -1), bias), keys], {"axis": 0}, TensorType(DType.INT64, (4,)), before
            )
            type = TensorType(DType.FLOAT, (bias.dim(0), 1, times(rows, key.copies), columns))
            self.made[key.copies, bias] = self._node("Reshape", [wide, shape], {}, type, before)
        return self.made[key.copies, bias]

    def rows_with_a_key(self, bias: Value, before: Node) -> Value:
        """A condition (1 or batch, queries, 1) that is true if a bias, the same for all heads, leaves a key for a row
        of queries.
        """
        if ("rows", bias) not in self.made:
            rows = (bias.dim(0), 1, bias.dim(2))
            axes, attrs = (3,), dict[str, Attribute](keepdims=0)
            inputs = [bias]
            if self.graph.opset() < REDUCE_BY_INPUT:
                attrs["axes"] = Ints(axes)
            else:
                inputs.append(self._ints(axes, bias))
            best = self._node("ReduceMax", inputs, attrs, TensorType(DType.FLOAT, rows), before)
            never = self.graph.constant(Tensor.of(np.float32(-np.inf)), f"{bias.name}_const")
            kept = self._node("Greater", [best, never], {}, TensorType(DType.BOOL, rows), before)
            type = TensorType(DType.BOOL, (rows[0], rows[2], 1))
            self.made["rows", bias] = self._node("Reshape", [kept, self._ints((0, -1, 1), bias)], {}, type, before)
        return self.made["rows", bias]

    def size(self, side: Heads, before: Node) -> Value | None:
        """The number of rows as a tensor of one element."""
        known = next((d for d in length(side, 1) if isinstance(d, int)), None)
        if known is not None:
            return self._ints((known,), side.source)
        if side.source.graph is not self.graph or side.source.rank not in (3, 4):
            return None
        past = joined(side)
        if past is not None and (side.source, ROWS) not in self.extents:
            later = self.size(past.later, before)
            if later is not None:  # attention may compute the concatenated value, and needs this size
                parts = [self.extent(past.earlier, ROWS, before), later]
                total = self._node("Add", parts, {}, TensorType(DType.INT64, (1,)), before)
                self.extents[side.source, ROWS] = total
        if side.source.rank == 4:
            return self.extent(side.source, ROWS, before)
        *_, rows = (v for v in row_sources(side.source) if v.graph is self.graph)
        return self.extent(rows, 1, before)

    def extent(self, value: Value, axis: int, before: Node) -> Value:
        """One dimension of a value, as a tensor of one element."""
        if (value, axis) not in self.extents:
            shape = self._node("Shape", [value], {}, TensorType(DType.INT64, (value.rank,)), before)
            bounds = [self._ints((i,), value) for i in (axis, axis + 1)]
            self.extents[value, axis] = self._node("Slice", [shape, *bounds], {}, TensorType(DType.INT64, (1,)), before)
        return self.extents[value, axis]

    def _ints(self, numbers: tuple[int, ...], near: Value) -> Value:
        return self.graph.constant(Tensor.of(np.array(numbers, np.int64)), f"{near.name}_const")

    def _node(self, op: str, inputs: list[Value], attrs: dict[str, Attribute], type: TensorType, before: Node) -> Value:
        return self.graph.add_node(op, inputs, 1, attrs, types=[type], before=before).out


def whole_type(bias: Value, query: Heads) -> TensorType:
    """The type of a four-dimensional bias expanded to all batches and query heads."""
    batches = {d for d in length(query, 0) if isinstance(d, (int, str))}
    batch = bias.dim(0) if bias.dim(0) in batches else query.source.dim(0)
    return TensorType(DType.FLOAT, (batch, query.count, bias.dim(2), bias.dim(3)))


def leaves_a_key(mask: Value | None) -> bool:
    """True if, after adding the mask, every row of finite scores is still finite for at least one key."""
    if mask is None or mask.constant is None or not mask.constant.rank:
        return is_finite(mask)
    added = mask.constant.numpy()
    return bool(np.all(added < np.inf) and np.all(np.isfinite(added).any(axis=-1)))


def is_finite(mask: Value | None) -> bool:
    """True if no element of a mask can be infinite or NaN."""
    if mask is None:
        return True
    if mask.constant is not None:
        return bool(np.all(np.isfinite(mask.constant.numpy())))
    node = mask.producer
    if node is None or node.domain != "":
        return False
    if node.op == "Where":
        return is_finite(node.inputs[1]) and is_finite(node.inputs[2])
    return traits(node).has(Trait.MOVES) and is_finite(node.inputs[0])


def _common(a: Value, b: Value, rows: set[Element], columns: set[Element]) -> Shape | None:
    """The broadcast shape of two masks of the same scores, with four axes; None if a dimension is uncertain."""
    if a.rank is None or b.rank is None or max(a.rank, b.rank) > 4:
        return None
    shapes = [(*(1,) * (4 - v.rank), *(v.shape or ())) for v in (a, b) if v.rank is not None]
    pairs = zip(*((*s[:2], _row_dim(v, s[2], rows, columns), s[3]) for v, s in zip((a, b), shapes)))
    dims: list[Dim] = []
    for pair, known in zip(pairs, (set[Element](), set[Element](), rows, columns)):
        longer = [d for d in pair if d != 1]
        whole = next((d for d in known if isinstance(d, (int, str))), None)
        if longer and all(_is_one_of(d, known) for d in longer):
            dims.append(whole)
        else:
            dims.append(broadcast_dims([d if isinstance(d, (int, str)) else None for d in pair]))
    return None if None in dims else tuple(dims)


def _broadcasts(dim: Element, known: set[Element]) -> bool:
    """True if a mask dimension broadcasts to scores of one of the known lengths."""
    return dim == 1 or dim in known


def _condition(biased: Biased) -> tuple[Value | None, float | None, bool]:
    """The condition of a mask, the number that replaces scores, and True if it replaces them where the condition is true."""
    where = None if biased.mask is None else biased.mask.producer
    if biased.replaced is not None or where is None or not where.is_op("Where"):
        return biased.mask, biased.replaced, biased.inverted
    condition, *branches = where.inputs
    numbers = [scalar(v) for v in branches]
    inverted = numbers[1] == 0
    return condition, numbers[0 if inverted else 1] if 0 in numbers else None, inverted


def _row_dim(mask: Value, dim: Element, rows: set[Element], columns: set[Element]) -> Element:
    """The number of rows of a mask, which may be sliced from a larger one by the numbers of keys and queries.

    Its columns are also sliced to the number of keys, so the larger one must have at least as many, or it would fit no
    scores.
    """
    query = next((d for d in rows if isinstance(d, str)), None)
    chosen = _unconditional(mask)
    across = None if chosen is None else _cut(chosen, 3)
    along = None if across is None else _cut(across[0], 2)
    if across is None or along is None or query is None or _is_one_of(dim, rows):
        return dim
    (_, first, width), (whole, start, end) = across, along
    ends = [elements(v) for v in (width, end)]
    keys = next((d for d in columns if isinstance(d, str) and ends == [(d,), (d,)]), None)
    if keys is None or query not in keys.split(PLUS) or elements(first) != (0,):
        return dim
    return query if _is_square(whole) and _is_difference(start, keys, query) else dim


def _unconditional(mask: Value) -> Value | None:
    """The condition that selects the elements of a mask, before its casts."""
    value: Value | None = mask
    while value is not None and (node := value.producer) is not None and (node.is_op("Where") or node.is_op("Cast")):
        value = node.inputs[0]
    return value


def _is_square(mask: Value) -> bool:
    """True if a mask has as many rows as columns, and more than one."""
    rows, columns = (mask.dim(axis) for axis in (2, 3))
    return isinstance(rows, int) and rows == columns and rows > 1


def _cut(value: Value, axis: int) -> tuple[Value, Value, Value] | None:
    """The input of a Slice along one axis, and its bounds; None for any other node."""
    node = value.producer
    if node is None or not node.is_op("Slice") or value.rank != 4 or len(node.inputs) < 4:
        return None
    x, start, end, axes = node.inputs[:4]
    step = node.input(4)
    if x is None or start is None or end is None or ints(axes) not in ((axis,), (axis - 4,)):
        return None
    return (x, start, end) if step is None or ints(step) == (1,) else None


def _is_difference(value: Value | None, keys: str, queries: str) -> bool:
    """True if a tensor of one element is the number of keys minus that of queries."""
    while value is not None and (node := value.producer) is not None and node.domain == "":
        if node.op == "Sub":
            return [elements(v) for v in node.inputs] == [(keys,), (queries,)]
        if node.op not in (*RESHAPES, "Cast"):
            return False
        value = node.inputs[0]
    return False


def _is_one_of(dim: Element, known: set[Element]) -> bool:
    return any(stretches_to(dim, d) for d in known)


def _masked_keys(condition: Value, batch: set[Element], columns: set[Element]) -> Value | None:
    """The condition (batch, keys) from which one for scores is computed, if it is the same for every query; else None."""
    node: Node | None
    value: Value | None = condition
    while value is not None and (node := value.producer) is not None and node.domain == "":
        inner = node.inputs[0] if node.inputs else None
        if node.op == "And":
            value = next((a for a, b in (node.inputs, node.inputs[::-1]) if is_true(b)), None)
        elif node.op == "Expand":
            value = inner
        elif node.op in ("Reshape", "Unsqueeze") and inner is not None and inner.rank == 2:
            rows, last = dim_of(inner, 0), dim_of(inner, 1)
            fits = value.shape == (inner.dim(0), 1, 1, inner.dim(1)) and None not in value.shape
            return inner if fits and rows in batch and last in columns else None
        else:
            return None
    return None


def _may_be_scores(value: Value) -> bool:
    node = value.producer
    while node is not None and node.domain == "" and node.op in ("Mul", "Div", "Reshape", "Where"):
        operands = node.inputs[1:] if node.op == "Where" else node.inputs
        inner = next((v for v in operands if v is not None and v.constant is None), None)
        node = None if inner is None else inner.producer
    return node is not None and node.is_op("MatMul")
