"""The costs of a graph: multiply-adds and bytes by operator, and the memory of activations."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from ortconv.compare.footprint import peak
from ortconv.ir.graph import Graph
from ortconv.ir.operators import Trait, traits
from ortconv.partition import cost
from ortconv.partition.profile import DeviceProfile


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator: its number of nodes and types, and its share of the multiply-adds and of the bytes read and written."""

    operator: str
    count: int
    types: list[str]
    multiply_adds: int
    bytes_touched: int
    time_share: float
    """Share of the estimated time on a CPU, from 0 to 1; docs/cost.md has the formula."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The largest number of bytes of activations in use at a time, with nodes in graph order, and the node at that time.

    A value is free after its last consumer. The caller's inputs count until then, too. Unknown dimensions count as 1.
    """

    peak_bytes: int
    peak_node: str
    total_bytes: int
    """All activations together, without reuse of memory."""


@dataclass(slots=True)
class _Totals:
    count: int = 0
    multiply_adds: int = 0
    bytes_touched: int = 0
    seconds: float = 0.0
    types: dict[str, None] = field(default_factory=dict)


def operator_rows(graph: Graph) -> list[OperatorRow]:
    """The operators of a graph and of its subgraphs, those with the longest time first."""
    speed = DeviceProfile().cpu
    sums: dict[str, _Totals] = {}
    for node in graph.walk():
        row = sums.setdefault(node.operator, _Totals())
        row.count += 1
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype is not None:
                row.types[value.dtype.name.lower()] = None
        if not traits(node).has(Trait.ORDERED) and not node.subgraphs:
            row.multiply_adds += cost.multiply_adds(node)
            row.bytes_touched += cost.touched(node)
            row.seconds += cost.seconds(node, speed)
    total = sum(row.seconds for row in sums.values()) or 1.0
    rows = [
        OperatorRow(name, s.count, sorted(s.types), s.multiply_adds, s.bytes_touched, s.seconds / total)
        for name, s in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_share, -row.count, row.operator))


def activation_memory(graph: Graph) -> PeakMemory:
    """The memory that a graph's activations need. The memory of a node's subgraphs counts while the node runs."""
    fed = (v for part in graph.graphs() for v in part.inputs if v.const is None)
    made = (v for node in graph.walk() for v in node.present_outputs)
    most = peak(graph, cost.size)
    return PeakMemory(most.bytes, most.node, sum(map(cost.size, chain(fed, made))))
