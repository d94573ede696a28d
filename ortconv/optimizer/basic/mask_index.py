"""Simplifies lookups of masks at every position, which exporters write for functions of indices, to the masks themselves."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.operands import constant_of, producer_of, scalar
from ortconv.ir.operators import Trait, traits
from ortconv.ir.symbols import as_dim, times
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, Shape
from ortconv.optimizer.basic.broadcast import from_operand, keeps_shape
from ortconv.optimizer.conditions import EXPAND, RESHAPES, equal_shapes, numbers, same_dim, uniform
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.insertion import LISTS_BY_INPUT
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.shapes import Element, dim_of, elements, expressed

Strides = tuple[Element, ...]
"""Difference between consecutive elements along each axis, for a tensor whose first element is zero."""

DEPTH = 12
LARGEST = 1 << 20
"""Maximum number of elements of a constant that is examined."""


def strides(value: Value | None, depth: int = DEPTH) -> Strides | None:
    """The strides of an integer tensor whose elements are linear in their position; None if it is not known to be one."""
    if value is None or value.rank is None or not depth:
        return None
    if value.constant is not None:
        return _of_constant(value.constant)
    node = producer_of(value, *_STRIDES)
    return None if node is None else _STRIDES[node.op](node, depth - 1)


def _of_constant(const: Tensor) -> Strides | None:
    if const.dtype not in (DType.INT64, DType.INT32) or not 0 < const.size <= LARGEST:
        return None
    array: Array = const.numpy().astype(np.int64)
    seconds = [tuple(int(i == axis) for i in range(array.ndim)) for axis in range(array.ndim)]
    steps = tuple(int(array[at]) if n > 1 else 0 for at, n in zip(seconds, array.shape))
    places = np.ix_(*map(np.arange, array.shape))
    total = sum((step * place for step, place in zip(steps, places)), np.int64(0))
    return steps if np.array_equal(array, total) else None


def _of_range(node: Node, depth: int) -> Strides | None:
    start, _, step = map(scalar, node.inputs)
    return (1,) if start == 0 and step == 1 and node.out.dtype in (DType.INT64, DType.INT32) else None


def _of_reshape(node: Node, depth: int) -> Strides | None:
    x, out = node.inputs[0], node.out
    inner = strides(x, depth)
    if x is None or inner is None or x.shape is None or out.shape is None:
        return None
    rest = iter([s for s, d in zip(inner, x.shape) if d != 1])
    same = equal_shapes(_without_ones(x.shape), _without_ones(out.shape))
    return tuple(0 if d == 1 else next(rest) for d in out.shape) if same else None


def _without_ones(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def _of_sum(node: Node, depth: int) -> Strides | None:
    parts = [_aligned(v, node.out, depth) for v in node.inputs]
    if any(p is None for p in parts):
        return None
    pairs = list(zip(*(p for p in parts if p is not None)))
    return tuple(a if b == 0 else b for a, b in pairs) if all(0 in pair for pair in pairs) else None


def _of_product(node: Node, depth: int) -> Strides | None:
    for x, factor in (node.inputs, node.inputs[::-1]):
        number = elements(factor)
        inner = _aligned(x, node.out, depth) if number is not None and len(number) == 1 else None
        if inner is not None and number is not None:
            scaled = [0 if s == 0 else times(as_dim(s), as_dim(number[0])) for s in inner]
            return None if None in scaled else tuple(scaled)
    return None


def _aligned(x: Value | None, out: Value, depth: int) -> Strides | None:
    """The strides of x after it is broadcast to the shape of out."""
    inner = strides(x, depth)
    if x is None or inner is None or x.shape is None or out.rank is None or len(inner) > out.rank:
        return None
    return (0,) * (out.rank - len(inner)) + tuple(0 if d == 1 else s for d, s in zip(x.shape, inner))


_STRIDES = {
    **dict.fromkeys(RESHAPES, _of_reshape),
    "Range": _of_range,
    "Expand": lambda node, depth: _aligned(node.inputs[0], node.out, depth),
    "Add": _of_sum,
    "Mul": _of_product,
}


def is_natural(value: Value | None) -> bool:
    """True if no element of an integer tensor can be negative: all are linear in their position, or constant."""
    const, steps = constant_of(value), strides(value)
    if const is not None and const.size <= LARGEST:
        return not (const.numpy() < 0).any()
    return steps is not None and not any(s is None or (isinstance(s, int) and s < 0) for s in steps)


def is_true(value: Value | None, depth: int = DEPTH) -> bool:
    """True if all elements of a boolean tensor are known to be true."""
    if value is None or not depth:
        return False
    node, element = value.producer, uniform(value)
    if node is None or element is not None:
        return element is not None and value.dtype is DType.BOOL and bool(element)
    if node.is_op("GreaterOrEqual"):
        limit = scalar(node.inputs[1])
        return limit is not None and limit <= 0 and is_natural(node.inputs[0])
    if node.is_op("And"):
        return all(is_true(v, depth - 1) for v in node.inputs)
    return traits(node).has(Trait.MOVES) and is_true(node.inputs[0], depth - 1)


@rule("AttentionMaskElimination", P("Attention", "q", "k", "v", "mask"))
def eliminate_mask(m: Match) -> Replacement:
    """Attention(q, k, v, true)  ->  Attention(q, k, v), also with zeros, for a mask of all keys"""
    if m.root.present_outputs != [m.root.out] or m.k.rank != 4 or not same_dim(m.mask.dim(-1), m.k.dim(2)):
        return None
    hides_nothing = is_true(m.mask) if m.mask.dtype is DType.BOOL else uniform(m.mask) == 0
    return New("Attention", [m.q, m.k, m.v], like=m.root) if hides_nothing else None


@rule("IndexedMaskFusion", P("Gather", P(("Flatten", "Reshape"), "x", ..., name="flat", shared=True), "index"))
def fuse_flat_lookup(m: Match) -> Replacement:
    """Gather(Flatten(x), positions in x, row by row)  ->  Reshape(x)"""
    x = m.x
    found, size = strides(m.index), None if x.shape is None else times(*x.shape)
    if found is None or size is None or m.root.attr("axis", 0) != 0:
        return None
    if m.node("flat").out.shape not in ((size,), (size, 1)):
        return None
    dims = m.index.shape or ()
    return _reshaped(m) if _runs_row_by_row(found, dims) and times(*dims) == size else None


def _runs_row_by_row(found: Strides, dims: Shape) -> bool:
    return all(d == 1 or s == times(*dims[i + 1 :]) for i, (s, d) in enumerate(zip(found, dims)))


@rule("IndexedMaskFusion", P("GatherND", "x", "index"))
def fuse_lookup(m: Match) -> Replacement:
    """GatherND(x, Concat of positions along the axes of x)  ->  Reshape(x)"""
    parts = _components(m.index)
    if parts is None or m.x.rank != len(parts) or m.root.attr("batch_dims", 0):
        return None
    shape, dims = m.x.shape or (), (m.index.shape or ())[:-1]
    if not equal_shapes(_without_ones(shape), _without_ones(dims)):
        return None
    longer = iter([i for i, d in enumerate(dims) if d != 1])
    along = [None if d == 1 else next(longer) for d in shape]
    return _reshaped(m) if all(runs_along(i, found, dims) for i, found in zip(along, parts)) else None


def runs_along(axis: int | None, found: Strides, dims: Shape) -> bool:
    """True if positions increase by 1 along this axis, and by 0 along the others. Axes of size 1 do not matter."""
    return all(d == 1 or s == (1 if i == axis else 0) for i, (s, d) in enumerate(zip(found, dims)))


def _components(index: Value) -> list[Strides] | None:
    """The strides of each of the indices along the last axis."""
    const, node, rank = index.constant, index.producer, index.rank
    found: list[Strides | None] = []
    if const is not None and const.rank and 0 < const.size <= LARGEST:
        columns = np.moveaxis(const.numpy(), -1, 0)
        found = [_of_constant(Tensor.of(np.ascontiguousarray(column))) for column in columns]
    elif node is not None and node.is_op("Concat") and rank and node.attr("axis", 0) in (-1, rank - 1):
        parts = [strides(v) if v.dim(-1) == 1 else None for v in node.present_inputs]
        found = [part and part[:-1] for part in parts]
    known = [s for s in found if s is not None]
    return known if known and len(known) == len(found) else None


def _reshaped(m: Match) -> Replacement:
    """x reshaped to the shape of the lookup."""
    out = m.root.out
    dims = out.shape or ()
    ones = Ints(i for i, d in enumerate(dims) if d == 1)
    if m.graph.opset() >= LISTS_BY_INPUT["Unsqueeze"] and equal_shapes(m.x.shape, _without_ones(dims)):
        return New("Unsqueeze", [m.x, np.array(ones, np.int64)], {})
    spec = None if out.rank is None else expressed([dim_of(out, i) for i in range(out.rank)], m.x)
    return None if spec is None else New("Reshape", [m.x, np.array(spec, np.int64)], {})


@rule("AndElimination", P("And", "x", "true", commutative=True))
def eliminate_and(m: Match) -> Replacement:
    """And(x, true)  ->  x, or Expand(x) if the constant has more elements

    Counterpart: none: beyond ONNX Runtime, which knows the constants of sums and products only
    """
    if not is_true(m.true):
        return None
    if equal_shapes(m.x.shape, m.root.out.shape):
        return m.x
    shape = numbers(*(m.root.out.shape or ()))
    if m.true.constant is None or not shape or m.graph.opset() < EXPAND:
        return None
    return New("Expand", [m.x, np.array(shape, np.int64)])


_TRUTH = C("true", one=True, where=is_true)


@rule("AndElimination", P("And", "x", P("Expand", _TRUTH, "shape", name="expand"), commutative=True))
def expand_other_condition(m: Match) -> Replacement:
    """And(x, Expand(true, shape))  ->  Expand(x, shape), if that is the shape of the result"""
    expanded, shape = m.node("expand").out.shape, m.root.out.shape or ()
    return New("Expand", [m.x, m.shape]) if equal_shapes(expanded, shape) and m.shape.dim(0) == len(shape) else None


@rule("WhereElimination", P("Where", "true", "x", "y"))
def eliminate_where(m: Match) -> Replacement:
    """Where(true, x, y)  ->  x, unless it is broadcast

    Counterpart: none: beyond ONNX Runtime, as for AndElimination
    """
    return m.x if equal_shapes(m.x.shape, m.root.out.shape) and is_true(m.true) else None


@rule("WhereElimination", *from_operand(P("Where", "true", "x", "y", name="select", shared=True)))
def eliminate_selected_operand(m: Match) -> Replacement:
    """op(Where(true, x, y), z)  ->  op(x, z), where op broadcasts x to the same shape by itself"""
    selected = m.node("select").out
    if not keeps_shape(m.root, [selected], m.x.shape) or not is_true(m.true):
        return None
    return New(m.root.op, [m.x if v is selected else v for v in m.root.inputs], like=m.root)
