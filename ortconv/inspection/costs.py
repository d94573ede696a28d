"""The costs of a graph: multiply-adds and bytes by operator, and the memory of activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from math import fsum

from ortconv.ir.footprint import peak
from ortconv.ir.graph import Graph, Node, Value
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


def operator_rows(graph: Graph) -> list[OperatorRow]:
    """The operators of a graph and of its subgraphs, those with the longest time first."""
    speed = DeviceProfile().cpu
    groups: dict[str, list[Node]] = {}
    for node in graph.walk():
        groups.setdefault(node.operator, []).append(node)
    costly = {name: list(filter(_has_cost, nodes)) for name, nodes in groups.items()}
    # fsum: Python 3.12 adds floats in another way, which would change the order of rows that take equally long
    seconds = {name: fsum(cost.seconds(node, speed) for node in nodes) for name, nodes in costly.items()}
    total = fsum(seconds.values()) or 1.0
    rows = []
    for name, nodes in groups.items():
        sums = sum(map(cost.multiply_adds, costly[name])), sum(map(cost.touched, costly[name]))
        types = type_names(v for node in nodes for v in (*node.inputs, *node.outputs))
        rows.append(OperatorRow(name, len(nodes), types, *sums, seconds[name] / total))
    return sorted(rows, key=lambda row: (-row.time_share, -row.count, row.operator))


def type_names(values: Iterable[Value | None]) -> list[str]:
    """The element types of values, in alphabetical order."""
    return sorted({value.dtype.name.lower() for value in values if value is not None and value.dtype is not None})


def _has_cost(node: Node) -> bool:
    return not traits(node).has(Trait.ORDERED) and not node.subgraphs


def activation_memory(graph: Graph) -> PeakMemory:
    """The memory that a graph's activations need. The memory of a node's subgraphs counts while the node runs."""
    fed = (v for part in graph.graphs() for v in part.inputs if v.const is None)
    made = (v for node in graph.walk() for v in node.present_outputs)
    most = peak(graph, cost.size)
    return PeakMemory(most.bytes, most.node, sum(map(cost.size, chain(fed, made))))
