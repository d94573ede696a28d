"""Shapes as symbolic quantities: elements of computed shapes, and the output shape of a Reshape."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import axes_of, ints, producer_of
from ortconv.ir.shape_rules import squeezed, unsqueezed
from ortconv.ir.slices import axis_slices
from ortconv.ir.symbols import is_anonymous, is_vague, minus, plus, quotient, times
from ortconv.ir.types import Dim, DType


class DimOf(NamedTuple):
    """An unknown dimension of a value."""

    value: Value
    axis: int


Element = int | str | DimOf | None
"""An element of a computed shape: a number, a symbol, a dimension of a value, or unknown."""

DEPTH = 16
"""Maximum number of nodes through which the computation of a shape is followed."""

LONGEST = 64
"""Maximum number of elements of a value that counts as a shape."""

# ---------------------------------------------------------------------- elements


def dim_of(value: Value, axis: int) -> Element:
    """One dimension, with axes counted from the front, in the most exact known form."""
    dim = value.dim(axis)
    return DimOf(value, axis) if dim is None else dim


def _dims(value: Value, rank: int) -> tuple[Element, ...]:
    return tuple(dim_of(value, i) for i in range(rank))


def elements(value: Value | None) -> tuple[Element, ...] | None:
    """The elements of an integer value of rank 0 or 1; None if not even their number is known."""
    return _elements(value, {}, DEPTH)


def _elements(value: Value | None, found: dict[Value, Elements], depth: int) -> Elements:
    """The same, with those found already, and the number of nodes to look back."""
    if value is None:
        return None
    if value not in found:
        found[value] = _look_back(value, lambda v: _elements(v, found, depth - 1) if depth else None)
    return found[value]


def static_elements(node: Node) -> tuple[int, ...] | None:
    """The elements of the only output of a shape computation, if all are known; else None."""
    compute, out = _rule(node), node.output(0)
    if compute is None or out is None or out.dtype not in (DType.INT64, DType.INT32) or (out.rank or 0) > 1:
        return None
    found = compute(node, elements)
    if found is None:
        return None
    known = tuple(e for e in found if isinstance(e, int))
    return known if len(known) == len(found) else None


Elements = tuple[Element, ...] | None
Look = Callable[[Value | None], Elements]
"""Returns the elements of an input."""


def _look_back(value: Value, look: Look) -> Elements:
    known = ints(value)
    if known is not None:
        return known
    node = value.producer
    compute = None if node is None else _rule(node)
    found = None if node is None or compute is None else compute(node, look)
    if found is not None:
        return found
    shape = value.static_shape
    if shape is None or len(shape) > 1 or math.prod(shape) > LONGEST:
        return None
    return (None,) * math.prod(shape)


def _shape(node: Node, look: Look) -> Elements:
    x = node.inputs[0]
    if x is None or x.rank is None:
        return None
    return _dims(x, x.rank)[slice(node.attr("start", 0), node.attr("end", x.rank))]


def _size(node: Node, look: Look) -> Elements:
    x = node.inputs[0]
    shape = None if x is None else x.static_shape
    return None if shape is None else (math.prod(shape),)


def _gather(node: Node, look: Look) -> Elements:
    data, picked = node.inputs[0], ints(node.inputs[1])
    if picked is None:
        return None
    x = _unranked(data)
    if x is not None and min(picked, default=0) >= 0:
        return tuple(DimOf(x, i) for i in picked)
    source = look(data)
    if source is None or not all(-len(source) <= i < len(source) for i in picked):
        return None
    return tuple(source[i] for i in picked)


def _unranked(shape: Value | None) -> Value | None:
    """The value of unknown rank whose whole shape this is; None if there is none."""
    node = producer_of(shape, "Shape")
    x = None if node is None or node.attrs else node.inputs[0]
    return x if x is not None and x.rank is None else None


def _same_elements(node: Node, look: Look) -> Elements:
    rank = node.out.rank
    return look(node.inputs[0]) if rank is None or rank <= 1 else None


def _cast(node: Node, look: Look) -> Elements:
    found = look(node.inputs[0]) if node.out.dtype in (DType.INT64, DType.INT32) else None
    return None if found is None else tuple(_represented(e, node.out) for e in found)


def _represented(element: Element, value: Value) -> Element:
    """An element of an integer value; None for a number that its type cannot represent, which wraps around."""
    bits = 31 if value.dtype is DType.INT32 else 63
    return element if not isinstance(element, int) or -(1 << bits) <= element < 1 << bits else None


def _concat(node: Node, look: Look) -> Elements:
    parts = [look(v) for v in node.inputs]
    if any(p is None for p in parts):
        return None
    return tuple(e for p in parts for e in p or ())


def _slice(node: Node, look: Look) -> Elements:
    source, parts = look(node.inputs[0]), axis_slices(node, ints)
    if source is None or parts is None or len(parts) != 1:
        return None
    start, end, _, step = parts[0]
    return source[start:end:step] if isinstance(start, int) and isinstance(end, int) and step > 0 else None


def side_by_side(parts: Sequence[Elements]) -> Iterable[tuple[Element, ...]] | None:
    """The elements of values that broadcast to each other, place by place; None if they are unknown or do not broadcast."""
    known = [p for p in parts if p is not None]
    sizes = {len(p) for p in known} - {1}
    if len(known) < len(parts) or len(sizes) > 1:
        return None
    size = max(sizes, default=1)
    return zip(*(p * size if len(p) == 1 else p for p in known))


def _arithmetic(node: Node, look: Look) -> Elements:
    pairs = side_by_side([look(v) for v in node.inputs])
    return None if pairs is None else tuple(_represented(_combine(node.op, a, b), node.out) for a, b in pairs)


Arithmetic = tuple[int, Callable[[int, int], int | None], Callable[[Dim, Dim], Dim]]
"""The neutral second operand of an operator, and its results for numbers and for dimensions; None if unknown."""

_ARITHMETIC: dict[str, Arithmetic] = {
    "Add": (0, operator.add, plus),
    "Sub": (0, operator.sub, minus),
    "Mul": (1, operator.mul, times),
    "Div": (1, lambda a, b: a // b if a >= 0 and b > 0 else None, lambda a, b: quotient([a], [b])),
}


def _combine(op: str, a: Element, b: Element) -> Element:
    neutral, of_numbers, of_dims = _ARITHMETIC[op]
    if isinstance(a, int) and isinstance(b, int):
        return of_numbers(a, b)
    if b == neutral:
        return a
    if a == neutral and op in ("Mul", "Add"):
        return b
    if isinstance(a, DimOf) or isinstance(b, DimOf):
        return 0 if op == "Sub" and a == b else None
    return of_dims(a, b)


def _product(node: Node, look: Look) -> Elements:
    found = look(node.inputs[0]) if not axes_of(node) and not node.attr("noop_with_empty_axes", 0) else None
    if found is None or any(isinstance(e, DimOf) for e in found):
        return None
    return (_represented(times(*(e for e in found if not isinstance(e, DimOf))), node.out),)


def _largest(node: Node, look: Look) -> Elements:
    rows = side_by_side([look(v) for v in node.inputs])
    return None if rows is None else tuple(_largest_of(row) for row in rows)


def _largest_of(row: Sequence[Element]) -> Element:
    """The largest of some elements, if they are numbers or equal."""
    numbers = [e for e in row if isinstance(e, int)]
    return max(numbers) if len(numbers) == len(row) else row[0] if len(set(row)) == 1 else None


def _where(node: Node, look: Look) -> Elements:
    condition, *values = node.inputs
    test = producer_of(condition, "Equal")
    if test is None:
        return None
    cases = side_by_side([look(v) for v in (*test.inputs, *values)])
    return None if cases is None else tuple(_chosen(*case) for case in cases)


def _chosen(left: Element, right: Element, then: Element, otherwise: Element) -> Element:
    """The element that Where(left == right, then, otherwise) selects."""
    equal = are_equal(left, right)
    return otherwise if equal is False or then == otherwise else then if equal else None


def are_equal(left: Element, right: Element) -> bool | None:
    """Whether two elements are equal; None if that is unknown. A dimension is never negative."""
    if left is not None and left == right:
        return True
    negative = any(isinstance(e, int) and e < 0 for e in (left, right))
    numbers = isinstance(left, int) and isinstance(right, int)
    return False if numbers or (negative and None not in (left, right)) else None


Compute = Callable[[Node, Look], Elements]
"""Returns the elements of a node's output."""

_ELEMENTS: dict[str, Compute] = {
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze"), _same_elements),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    "Cast": _cast,
    "Concat": _concat,
    "Gather": _gather,
    "Max": _largest,
    "ReduceProd": _product,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Where": _where,
}

COMPUTES_SHAPES = frozenset(_ELEMENTS)
"""Operators that `elements` can follow."""


def _rule(node: Node) -> Compute | None:
    return _ELEMENTS.get(node.op) if node.domain == "" else None


# ---------------------------------------------------------------------- dimensions of reshaped values


def target(node: Node) -> tuple[Element, ...] | None:
    """The output dimensions, -1 for the rest, of a Reshape, Squeeze, Unsqueeze or Flatten; None if their number is unknown."""
    x = node.inputs[0]
    assert x is not None
    if node.op == "Reshape":
        wanted, copies = elements(node.input(1)), not node.attr("allowzero", 0)
        return wanted and tuple(dim_of(x, i) if e == 0 and copies else e for i, e in enumerate(wanted))
    if node.op == "Flatten":
        axis = node.attr("axis", 1)
        if axis in (0, 1):
            return (dim_of(x, 0) if axis else 1), -1
        return None if x.shape is None else (times(*x.shape[:axis]), times(*x.shape[axis:]))
    axes = axes_of(node)
    if axes is None or x.rank is None:
        return None
    dims = _dims(x, x.rank)
    return unsqueezed(dims, axes) if node.op == "Unsqueeze" else squeezed(dims, axes)


def refined(wanted: Sequence[Element], out: Value) -> tuple[Element, ...]:
    """The dimensions of a value: each from its type or from `wanted`, whichever is more exact."""
    if out.rank != len(wanted):
        return tuple(wanted)
    return tuple(
        d if isinstance(d, int) or (d is not None and (e is None or (is_anonymous(e) and not is_anonymous(d)))) else e
        for e, d in zip(wanted, out.shape or ())
    )


def keeps_dim(node: Node, wanted: Sequence[Element], axis: int) -> bool:
    """True if a Reshape to the dimensions `wanted` is known to keep the dimension of this axis."""
    x, found = node.present_inputs[0], {wanted[axis], node.out.dim(axis)} - {None}
    others = [e for i, e in enumerate(wanted) if i != axis and isinstance(e, (int, str))]
    if wanted[axis] == -1 and x.shape is not None and len(others) == len(wanted) - 1:
        found.add(quotient(x.shape, others))
    return not found.isdisjoint({dim_of(x, axis), x.dim(axis)} - {None})


def output_dims(node: Node | None) -> list[set[Element]]:
    """For each output dimension of a Reshape, Squeeze, Unsqueeze or Flatten, the elements that it is known to equal; -1
    is the remaining dimension. [] if not even the rank is known, or without a node.
    """
    wanted = None if node is None else target(node)
    if node is None or wanted is None:
        return []
    return [{w, d} - {None} for w, d in zip(wanted, refined(wanted, node.out))]


def expressed(wanted: Sequence[Element], x: Value) -> tuple[int, ...] | None:
    """A constant shape with which Reshape gives x these dimensions: numbers, 0 to copy a dimension, and at most one -1.
    None if there is none.

    A -1 assumes that x has elements.
    """
    if any(e == 0 and x.dim(i) != 0 for i, e in enumerate(wanted)):
        return None
    spec = tuple(_stated(e, dim_of(x, i)) for i, e in enumerate(wanted))
    return spec if -1 not in spec or (spec.count(-1) == 1 and not may_be_empty(x)) else None


def _stated(wanted: Element, dim: Element) -> int:
    """A dimension in the shape of a Reshape, in which 0 copies the input's dimension `dim`, and -1 means unknown."""
    if isinstance(wanted, int):
        return wanted
    return 0 if wanted is not None and wanted == dim else -1


SOURCES = 32
"""How many values `may_be_empty` looks at."""


def may_be_empty(value: Value) -> bool:
    """True if a value has a dimension of 0, or dimensions without a name and a source with one of 0.

    Constants do not count as sources: an empty one may represent an absent input.
    """
    return any(0 in (v.shape or ()) and (v is value or v.const is None) for v in _sources(value))


def _sources(value: Value) -> Iterator[Value]:
    """A value and, if its shape is vague, the values that it is computed from, with their sources in turn."""
    seen = [value]
    for current in seen:
        yield current
        node = current.producer
        if node is not None and is_vague(current.shape) and len(seen) <= SOURCES:
            inner = [v for graph in node.subgraphs for v in graph.outputs]
            seen += dict.fromkeys(v for v in (*node.inputs, *inner) if v is not None and v not in seen)


def has_dims(x: Value, wanted: Sequence[Element]) -> bool:
    """True if x already has these dimensions."""
    return x.rank == len(wanted) and all(e is not None and e == dim_of(x, i) for i, e in enumerate(wanted))
