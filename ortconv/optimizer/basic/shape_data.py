"""What is known of small integer tensors that hold shapes, element by element.

Exporters compute shapes in the graph: Shape, Gather, Concat, Mul and so on. Where a shape is partly symbolic, single
elements are known all the same, and with them everything computed from those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import Dim, DType

LONGEST = 64
Elements = tuple[Dim, ...]
"""One entry per element in row-major order: a number, a symbol that stands for the same number wherever it occurs, or None."""


class ShapeData:
    """Collects, node after node in topological order, the elements of integer tensors of rank 0 and 1."""

    def __init__(self) -> None:
        self._known: dict[Value, tuple[Elements, int]] = {}

    def elements(self, value: Value | None) -> tuple[Elements, int] | None:
        """The elements of a value and its rank (0 or 1); None if nothing is known of it."""
        if value is None:
            return None
        const = value.constant
        if const is not None:
            if const.dtype not in (DType.INT64, DType.INT32) or const.rank > 1 or const.size > LONGEST:
                return None
            return tuple(const.numpy().ravel().tolist()), const.rank
        return self._known.get(value)

    def visit(self, node: Node) -> None:
        """Note what a node's first output is made of."""
        found = self._compute(node)
        if found is not None:
            self._known[node.out] = found

    def static_result(self, node: Node) -> Tensor | None:
        """The output of a shape computation where every element is known."""
        if (
            node.op not in _RULES
            or all(v is None or v.constant is not None for v in node.inputs)
            or node.output(0) is None
        ):
            return None
        found = self._compute(node)
        if found is None or not all(isinstance(e, int) for e in found[0]):
            return None
        dtype = node.out.dtype or DType.INT64
        if dtype not in (DType.INT64, DType.INT32):
            return None
        elements, rank = found
        return Tensor.of(np.asarray(elements, dtype.numpy).reshape(() if rank == 0 else (len(elements),)), dtype)

    def _compute(self, node: Node) -> tuple[Elements, int] | None:
        rule = _RULES.get(node.op)
        if rule is None or node.domain != "" or len(node.outputs) != 1:
            return None
        found = rule(self, node)
        return found if found is not None and len(found[0]) <= LONGEST else None


Found = tuple[Elements, int] | None


def _shape(data: ShapeData, node: Node) -> Found:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    start: Any = node.attr("start", 0)
    end: Any = node.attrs.get("end")
    return tuple(value.shape[slice(start, end)]), 1


def _size(data: ShapeData, node: Node) -> Found:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return (int(np.prod([d for d in shape if isinstance(d, int)], dtype=np.int64)),), 0


def _gather(data: ShapeData, node: Node) -> Found:
    source = data.elements(node.inputs[0])
    index = node.inputs[1].constant if node.inputs[1] is not None else None
    if source is None or source[1] != 1 or index is None or index.rank > 1:
        return None
    picked = index.numpy().ravel().tolist()
    if any(not -len(source[0]) <= i < len(source[0]) for i in picked):
        return None
    return tuple(source[0][i] for i in picked), index.rank


def _slice(data: ShapeData, node: Node) -> Found:
    source = data.elements(node.inputs[0])
    if source is None or source[1] != 1:
        return None
    start, end, step = (
        _bound(data, node, *where) for where in (("starts", 1, None), ("ends", 2, None), ("steps", 4, 1))
    )
    if start is None or end is None or step is None or step < 1:
        return None
    return source[0][start:end:step], 1


def _bound(data: ShapeData, node: Node, name: str, slot: int, default: int | None) -> int | None:
    """The only entry of an attribute or input of Slice."""
    if node.input(slot) is None:
        stated: Any = node.attrs.get(name, (default,))
        return stated[0] if len(stated) == 1 else None
    found = data.elements(node.input(slot))
    return found[0][0] if found is not None and len(found[0]) == 1 and isinstance(found[0][0], int) else None


def _concat(data: ShapeData, node: Node) -> Found:
    parts = [data.elements(v) for v in node.inputs]
    if any(p is None or p[1] != 1 for p in parts):
        return None
    return tuple(e for p in parts if p is not None for e in p[0]), 1


def _reranked(rank: int) -> Callable[[ShapeData, Node], Found]:
    def rule(data: ShapeData, node: Node) -> Found:
        source = data.elements(node.inputs[0])
        shape = node.out.shape
        if source is None or shape is None or len(shape) != rank or (rank == 0 and len(source[0]) != 1):
            return None
        return source[0], rank

    return rule


def _cast(data: ShapeData, node: Node) -> Found:
    return data.elements(node.inputs[0]) if node.attr("to", 0) in (DType.INT64, DType.INT32) else None


def _reshape(data: ShapeData, node: Node) -> Found:
    source = data.elements(node.inputs[0])
    shape = node.out.static_shape
    return None if source is None or shape is None or len(shape) > 1 else (source[0], len(shape))


def _arithmetic(function: Callable[[int, int], int]) -> Callable[[ShapeData, Node], Found]:
    def rule(data: ShapeData, node: Node) -> Found:
        a, b = data.elements(node.inputs[0]), data.elements(node.inputs[1])
        if a is None or b is None:
            return None
        n = max(len(a[0]), len(b[0]))
        if len(a[0]) not in (1, n) or len(b[0]) not in (1, n):
            return None
        pairs = zip(a[0] * (n // len(a[0])), b[0] * (n // len(b[0])), strict=True) if n and a[0] and b[0] else ()
        return tuple(_combine(function, x, y) for x, y in pairs), max(a[1], b[1])

    return rule


def _combine(function: Callable[[int, int], int], a: Dim, b: Dim) -> Dim:
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    try:
        result = function(a, b)
    except ZeroDivisionError:
        return None
    return result if abs(result) < 1 << 31 else None


def _divide(a: int, b: int) -> int:
    """Integer division as ONNX has it: towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_RULES: dict[str, Callable[[ShapeData, Node], Found]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _reranked(0),
    "Unsqueeze": _reranked(1),
    "Reshape": _reshape,
    "Cast": _cast,
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    "Div": _arithmetic(_divide),
}


def known_elements(values: Sequence[Value]) -> ShapeData:
    """Shape data of the producers of some values and all that those depend on, for rules that look back from a node."""
    data, seen, order = ShapeData(), set[Node](), list[Node]()
    stack = [(v.producer, False) for v in values if v.producer is not None]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen and node.op in _RULES:
            seen.add(node)
            stack.append((node, True))
            if node.op != "Shape":
                stack += [(v.producer, False) for v in node.inputs if v is not None and v.producer is not None]
    for node in order:
        data.visit(node)
    return data
