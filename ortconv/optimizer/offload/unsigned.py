"""Converts int8 activations to uint8: tensors and zero points increase by 128, which leaves the reals the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, named, traits
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.optimizer.conditions import array_of
from ortconv.optimizer.engine import Context, constant
from ortconv.optimizer.quantizers import OPS

NAME = "SignedToUnsigned"

STEP = 128

PASSING = frozenset((*named(Trait.MOVES, Trait.JOINS), "MaxPool"))
"""Operators whose results are elements of their first input, of any type; for Concat, of all inputs."""


class Edge(NamedTuple):
    """A tensor that a node produces or reads, and the slot of its zero point; None if the node has no such input."""

    value: Value
    zero: int | None


class Shift(NamedTuple):
    """What was changed: the former types of tensors, and the former zero points, by node and slot."""

    types: dict[Value, ValueType | None]
    zeros: dict[tuple[Node, int], Value]


def _edges(node: Node) -> list[Edge] | None:
    """The tensors that must change type together at a node; None if a node does not support the change."""
    if node.op in OPS:
        value = node.out if node.op == "QuantizeLinear" else node.inputs[0]
        return None if value is None or node.attr("output_dtype", 0) else [Edge(value, 2)]
    if node.op in PASSING and node.domain == "":
        return _passing_edges(node)
    return _quantized_edges(node, traits(node).quantized) or None


def _passing_edges(node: Node) -> list[Edge] | None:
    data = node.inputs if node.op == "Concat" else node.inputs[:1]
    if None in data or (len(node.outputs) > 1 and node.op == "MaxPool"):
        return None
    return [Edge(v, None) for v in (*data, *node.outputs) if v is not None]


def _quantized_edges(node: Node, count: int) -> list[Edge]:
    """The result and the `count` operands of an operator with scales and zero points; none for other operators."""
    read = [Edge(v, 3 * i + 2) for i in range(count) if (v := node.inputs[3 * i]) is not None]
    if node.op in ("QLinearConv", "QLinearMatMul") and read[-1].value.const is not None:
        del read[-1]  # weights may be signed although the activations are unsigned
    return [*read, Edge(node.out, 3 * count + 1)] if count else []


def _is_signed(value: Value) -> bool:
    return value.dtype is DType.INT8


def _neighbors(value: Value, graph: Graph) -> Iterator[Node | None]:
    """The nodes at both ends of a tensor; None for an end outside this graph's nodes."""
    yield value.producer
    for user, _ in value.uses:
        yield user if user.graph is graph else None
    if value.is_input or value.is_output:
        yield None


def _edges_around(value: Value, graph: Graph) -> list[tuple[Node, Edge]] | None:
    """The edges of the nodes at both ends of a tensor; None if one of these does not support the change."""
    found: list[tuple[Node, Edge]] = []
    for node in _neighbors(value, graph):
        edges = None if node is None else _edges(node)
        if node is None or edges is None or all(e.value is not value for e in edges):
            return None
        found += [(node, edge) for edge in edges]
    return found if value.const is None and all(map(_may_rise, found)) else None


def _may_rise(end: tuple[Node, Edge]) -> bool:
    """True for an int8 tensor whose zero point at this node is a constant of that type, if it needs one."""
    node, (value, slot) = end
    zero = None if slot is None else node.input(slot)
    has_zero = zero is not None and zero.constant is not None and _is_signed(zero)
    return _is_signed(value) and (slot is None or has_zero)


def _component(start: Value, graph: Graph) -> tuple[list[Value], dict[tuple[Node, int], Value]] | None:
    """The tensors that must change with `start`, and their zero points; None if a node around them forbids it."""
    values, zeros, stack = {start: None}, dict[tuple[Node, int], Value](), [start]
    while stack:
        around = _edges_around(stack.pop(), graph)
        if around is None:
            return None
        for node, (value, slot) in around:
            if slot is not None and (zero := node.input(slot)) is not None:
                zeros[node, slot] = zero
            if value not in values:
                values[value] = None
                stack.append(value)
    return list(values), zeros


def shift(graph: Graph) -> Shift:
    """Change all int8 activations to uint8 that can change. Return what `undo` needs."""
    done = Shift({}, {})
    raised: dict[Value, Value] = {}
    for value in (v for node in graph for v in node.present_outputs):
        if not _is_signed(value) or (found := _component(value, graph)) is None:
            continue
        values, zeros = found
        for v in values:
            done.types[v] = v.type
            v.retype(TensorType(DType.UINT8, v.shape))
        for (reader, slot), zero in zeros.items():
            if zero not in raised:
                moved = array_of(zero).astype(np.int16) + STEP
                raised[zero] = constant(reader, moved.astype(np.uint8))
            done.zeros[reader, slot] = zero
            graph.set_input(reader, slot, raised[zero])
    return done


def undo(done: Shift) -> None:
    """Undo the changes of `shift`."""
    for (node, slot), zero in done.zeros.items():
        if node.graph is not None:
            node.graph.set_input(node, slot, zero)
    for value, type in done.types.items():
        value.retype(type)


def trace_shift(done: Shift, context: Context) -> int:
    """Add each changed tensor to the trace. Return their number."""
    makers = [value.producer for value in done.types if value.producer is not None]
    for node in makers:
        context.record(NAME, node.label, 0)
    return len(makers)


def make_unsigned(graph: Graph, context: Context) -> int:
    """int8 activations  ->  uint8, with zero points increased by 128, if their producers and readers support both

    Counterpart: QDQS8ToU8Transformer
    Differs: tensors between any quantized operators, not only those after constants; weights are unchanged.
    Opt-in: kernels of ARM processors are faster on int8; useful only if an accelerator supports only uint8.
    """
    return 0 if context.exhausted or graph.owner is not None else trace_shift(shift(graph), context)
