"""Counts the memory that the values of a run need at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node, Value


class Footprint(NamedTuple):
    """The maximum memory of values that are live at one time, and the node at which it occurs; empty if before the first."""

    bytes: int
    node: str


def footprint(graph: Graph, shapes: Mapping[Value, tuple[int | None, ...]]) -> Footprint:
    """The memory of a run, without constants and values of unknown shape."""
    return peak(graph, lambda value: size_of(value, shapes[value]) if value in shapes else 0)


def peak(graph: Graph, size: Callable[[Value], int]) -> Footprint:
    """The memory of a run in which values have these sizes, without constants. A value is free after its last reader."""
    last = _last_uses(graph)
    live = sum(size(v) for v in graph.inputs if v.const is None)
    most = Footprint(live, "")
    for i, node in enumerate(graph):
        inner = max((peak(sub, size).bytes for sub in node.subgraphs), default=0)
        live += sum(map(size, node.present_outputs))
        if live + inner > most.bytes:
            most = Footprint(live + inner, node.label)
        live -= sum(size(v) for v in _own(node) if last.get(v, -1) <= i)
    return most


def _own(node: Node) -> set[Value]:
    """The values of a node's graph that it reads or computes, without constants."""
    return {v for v in (*node.present_reads, *node.present_outputs) if v.const is None and v.graph is node.graph}


def _last_uses(graph: Graph) -> dict[Value | None, int]:
    """The position of the last node that reads each value; outputs are kept to the end."""
    reads = {value: i for i, node in enumerate(graph) for value in node.reads}
    return reads | dict.fromkeys(graph.outputs, len(graph))


def size_of(value: Value, shape: tuple[int | None, ...]) -> int:
    """Size in bytes of a value with this shape. Unknown dimensions count as 1, a string as 8 bytes."""
    dtype = value.dtype
    bits = 64 if dtype is None or not dtype.bits else dtype.bits
    return math.prod(1 if d is None else d for d in shape) * max(bits, 8) // 8
