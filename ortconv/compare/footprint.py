"""Counts the memory that the values of a run need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ortconv.compare.demands import Numbers
from ortconv.ir.graph import Graph, Value


@dataclass(frozen=True, slots=True)
class Footprint:
    """The maximum memory of values that are live at one time, and the node at which it occurs."""

    bytes: int
    node: str


def footprint(graph: Graph, shapes: Mapping[Value, Numbers]) -> Footprint:
    """The memory of a run, without constants and values of unknown shape."""
    last = _last_uses(graph)
    live = _total((v for v in graph.inputs if v.const is None), shapes)
    most = Footprint(live, graph.inputs[0].name if graph.inputs else "")
    for i, node in enumerate(graph):
        inner = max((footprint(sub, shapes).bytes for sub in node.subgraphs), default=0)
        live += _total(node.outputs, shapes)
        if live + inner > most.bytes:
            most = Footprint(live + inner, node.label)
        dead = {v for v in (*node.reads, *node.outputs) if last.get(v, -1) <= i}
        live -= _total((v for v in dead if _is_counted(v, graph)), shapes)
    return most


def _last_uses(graph: Graph) -> dict[Value | None, int]:
    """The position of the last node that reads each value; outputs are kept to the end."""
    reads = {value: i for i, node in enumerate(graph) for value in node.reads}
    return reads | dict.fromkeys(graph.outputs, len(graph))


def _is_counted(value: Value | None, graph: Graph) -> bool:
    """True for a value of this graph that is no constant."""
    return value is not None and value.const is None and value.graph is graph


def _total(values: Iterable[Value | None], shapes: Mapping[Value, Numbers]) -> int:
    """Total bytes of the values with a known shape."""
    return sum(size_of(v, shapes[v]) for v in values if v is not None and v in shapes)


def size_of(value: Value, shape: Numbers) -> int:
    """Size in bytes of a value with this shape. Unknown dimensions count as 1, a string as 8 bytes."""
    dtype = value.dtype
    bits = 64 if dtype is None or not dtype.bits else dtype.bits
    return math.prod(1 if d is None else d for d in shape) * max(bits, 8) // 8
