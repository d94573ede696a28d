"""Shapes as symbolic quantities: elements of computed shapes, and the output shape of a Reshape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.types import Dim, DType
from ortconv.optimizer.conditions import axes_of, ints
from ortconv.optimizer.symbols import is_anonymous, minus, plus, quotient, times


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


def elements(value: Value | None) -> tuple[Element, ...] | None:
    """The elements of an integer value of rank 0 or 1; None if not even their number is known."""
    found: dict[Value, tuple[Element, ...] | None] = {}

    def look(value: Value | None, depth: int) -> tuple[Element, ...] | None:
        if value is None:
            return None
        if value not in found:
            found[value] = _look_back(value, lambda v: look(v, depth - 1) if depth else None)
        return found[value]

    return look(value, DEPTH)


def static_elements(node: Node) -> tuple[int, ...] | None:
    """The elements of the only output of a shape computation, if all are known; else None."""
    out = node.output(0)
    if node.op not in _ELEMENTS or node.domain != "" or len(node.outputs) != 1 or out is None:
        return None
    if out.dtype not in (DType.INT64, DType.INT32) or (out.rank or 0) > 1:
        return None
    found = _ELEMENTS[node.op](node, elements)
    known = tuple(e for e in found or () if isinstance(e, int))
    return known if found is not None and len(known) == len(found) else None


Elements = tuple[Element, ...] | None
Look = Callable[[Value | None], Elements]
"""Returns the elements of an input."""


def _look_back(value: Value, look: Look) -> Elements:
    known = ints(value)
    if known is not None:
        return known
    node = value.producer
    if node is not None and node.op in _ELEMENTS and node.domain == "":
        found = _ELEMENTS[node.op](node, look)
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
    return tuple(dim_of(x, i) for i in range(x.rank))[slice(node.attr("start", 0), node.attr("end", x.rank))]


def _size(node: Node, look: Look) -> Elements:
    x = node.inputs[0]
    shape = None if x is None else x.static_shape
    return None if shape is None else (math.prod(shape),)


def _gather(node: Node, look: Look) -> Elements:
    data, index = node.inputs
    picked = ints(index)
    if data is None or picked is None:
        return None
    if data.producer is not None and data.producer.is_op("Shape") and not data.producer.attrs:
        x = data.producer.inputs[0]
        if x is not None and x.rank is None and min(picked, default=0) >= 0:
            return tuple(DimOf(x, i) for i in picked)
    source = look(data)
    if source is None or not all(-len(source) <= i < len(source) for i in picked):
        return None
    return tuple(source[i] for i in picked)


def _same_elements(node: Node, look: Look) -> Elements:
    rank = node.out.rank
    return look(node.inputs[0]) if rank is None or rank <= 1 else None


def _cast(node: Node, look: Look) -> Elements:
    return look(node.inputs[0]) if node.out.dtype in (DType.INT64, DType.INT32) else None


def _concat(node: Node, look: Look) -> Elements:
    parts = [look(v) for v in node.inputs]
    if any(p is None for p in parts):
        return None
    return tuple(e for p in parts for e in p or ())


def _slice(node: Node, look: Look) -> Elements:
    source = look(node.inputs[0])
    if source is None:
        return None
    if "starts" in node.attrs:
        parts: list[tuple[int, ...] | None] = [node.attr("starts", Ints()), node.attr("ends", Ints()), (1,)]
    else:
        parts = [(1,) if i == 4 and node.input(i) is None else ints(node.input(i)) for i in (1, 2, 4)]
    bounds = [part[0] for part in parts if part is not None and len(part) == 1]
    if len(bounds) < 3 or bounds[2] <= 0:
        return None
    return source[slice(*bounds)]


def _arithmetic(node: Node, look: Look) -> Elements:
    left, right = (look(v) for v in node.inputs)
    if left is None or right is None or len({len(left), len(right)} - {1}) > 1:
        return None
    size = 0 if 0 in (len(left), len(right)) else max(len(left), len(right))
    pairs = zip(*(e * size if len(e) == 1 else e for e in (left, right)))
    return tuple(_combine(node.op, a, b) for a, b in pairs)


def _combine(op: str, a: Element, b: Element) -> Element:
    if isinstance(a, int) and isinstance(b, int):
        if op == "Div":
            return a // b if a >= 0 and b > 0 else None
        return a * b if op == "Mul" else a + b if op == "Add" else a - b
    if b == (1 if op in ("Mul", "Div") else 0):
        return a
    if op == "Sub" and a is not None and a == b:
        return 0
    if op in ("Mul", "Add") and a == (1 if op == "Mul" else 0):
        return b
    if not isinstance(a, (int, str)) or not isinstance(b, (int, str)):
        return None
    return _SYMBOLIC[op](a, b)


_SYMBOLIC: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Add": plus,
    "Sub": minus,
    "Mul": times,
    "Div": lambda a, b: quotient([a], [b]),
}


def _where(node: Node, look: Look) -> Elements:
    condition, *values = node.inputs
    test = None if condition is None else condition.producer
    if test is None or not test.is_op("Equal"):
        return None
    parts = [look(v) for v in (*test.inputs, *values)]
    known = [p for p in parts if p is not None]
    size = max(map(len, known), default=0)
    if len(known) < len(parts) or any(len(p) not in (1, size) for p in known):
        return None
    return tuple(_chosen(*(p[i if len(p) > 1 else 0] for p in known)) for i in range(size))


def _chosen(left: Element, right: Element, then: Element, otherwise: Element) -> Element:
    """The element that Where(left == right, then, otherwise) selects. A dimension is never negative."""
    if left is not None and left == right:
        return then
    if isinstance(left, int) and isinstance(right, int):
        return otherwise
    negative = any(isinstance(e, int) and e < 0 for e in (left, right))
    return otherwise if (negative and None not in (left, right)) or then == otherwise else None


_ELEMENTS: dict[str, Callable[[Node, Look], Elements]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Unsqueeze": _same_elements,
    "Squeeze": _same_elements,
    "Reshape": _same_elements,
    "Identity": _same_elements,
    "Cast": _cast,
    "Concat": _concat,
    "Slice": _slice,
    "Mul": _arithmetic,
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Div": _arithmetic,
    "Where": _where,
}

COMPUTES_SHAPES = frozenset(_ELEMENTS)
"""Operators that `elements` can follow."""

# ---------------------------------------------------------------------- what Reshape and its kin return


def target(node: Node) -> tuple[Element, ...] | None:
    """The output dimensions of a Reshape, Squeeze, Unsqueeze or Flatten; -1 is the remaining dimension.

    None if not even their number is known.
    """
    x = node.inputs[0]
    assert x is not None
    if node.op == "Reshape":
        return _reshaped(node, x)
    if node.op == "Flatten":
        axis = node.attr("axis", 1)
        return (1, -1) if axis == 0 else (dim_of(x, 0), -1) if axis == 1 else _flattened(x, axis)
    axes = axes_of(node)
    if axes is None or x.rank is None:
        return None
    return _unsqueezed(x, axes, x.rank) if node.op == "Unsqueeze" else _squeezed(x, axes, x.rank)


def _reshaped(node: Node, x: Value) -> tuple[Element, ...] | None:
    wanted = elements(node.input(1))
    if wanted is None:
        return None
    copies = not node.attr("allowzero", 0)
    return tuple(dim_of(x, i) if e == 0 and copies else e for i, e in enumerate(wanted))


def _unsqueezed(x: Value, axes: Sequence[int], rank: int) -> tuple[Element, ...]:
    inserted = {a % (rank + len(axes)) for a in axes}
    rest = iter(range(rank))
    return tuple(1 if i in inserted else dim_of(x, next(rest)) for i in range(rank + len(axes)))


def _squeezed(x: Value, axes: Sequence[int], rank: int) -> tuple[Element, ...] | None:
    shape = x.shape or ()
    if not axes and any(not isinstance(d, int) for d in shape):
        return None
    dropped = {a % rank for a in axes} if axes else {i for i, d in enumerate(shape) if d == 1}
    return tuple(dim_of(x, i) for i in range(rank) if i not in dropped)


def _flattened(x: Value, axis: int) -> tuple[Element, ...] | None:
    shape = x.shape
    if shape is None:
        return None
    return times(*shape[:axis]), times(*shape[axis:])


def refined(wanted: Sequence[Element], out: Value) -> tuple[Element, ...]:
    """The dimensions of a value: each from its type or from `wanted`, whichever is more exact."""
    if out.rank != len(wanted):
        return tuple(wanted)
    return tuple(
        d if isinstance(d, int) or (d is not None and (e is None or (is_anonymous(e) and not is_anonymous(d)))) else e
        for e, d in zip(wanted, out.shape or ())
    )


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
    spec: list[int] = []
    for i, e in enumerate(wanted):
        if e is not None and (e == dim_of(x, i) if not isinstance(e, int) else False):
            spec.append(0)
        elif isinstance(e, int) and e != 0:
            spec.append(e)
        elif e == 0 and x.dim(i) == 0:
            spec.append(0)
        elif e == 0 or -1 in spec:
            return None
        else:
            spec.append(-1)
    return tuple(spec) if -1 not in spec or (spec.count(-1) == 1 and not may_be_empty(x)) else None


SOURCES = 32
"""How many values `may_be_empty` looks at."""


def may_be_empty(value: Value) -> bool:
    """True if a value has a dimension of 0, or dimensions without a name and a source with one of 0.

    Constants do not count as sources: an empty one may represent an absent input.
    """
    seen = [value]
    for current in seen:
        shape, node = current.shape, current.producer
        if shape is not None and 0 in shape and (current is value or current.const is None):
            return True
        is_vague = shape is None or any(d is None or is_anonymous(d) for d in shape)
        if node is None or not is_vague or len(seen) > SOURCES:
            continue
        inner = [v for graph in node.subgraphs for v in graph.outputs] if node.attrs else []
        seen += dict.fromkeys(v for v in (*node.inputs, *inner) if v is not None and v not in seen)
    return False


def keeps_shape(wanted: Sequence[Element], x: Value) -> bool:
    """True if x already has these dimensions."""
    return x.rank == len(wanted) and all(e is not None and e == dim_of(x, i) for i, e in enumerate(wanted))
