"""The reasons why nodes stay on the CPU, counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from ortconv.partition.partitioner import Partitioning, node_name

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Example(NamedTuple):
    node: str
    message: str


class Refusal(NamedTuple):
    """Why nodes of one operator stay on the CPU: a rule, the number of nodes, the first objection, and all different advice."""

    op: str
    rule: str
    nodes: int
    example: Example
    advice: list[str]


def refusals(partitioning: Partitioning) -> list[Refusal]:
    """Every pair of operator and rule, most nodes first. A node with several objections counts for each rule once."""
    verdicts = partitioning.verdicts.items()
    found = grouped(((node.operator, o.rule), (node, o)) for node, verdict in verdicts for o in verdict.objections)
    rows = []
    for (op, rule), own in found.items():
        node, first = own[0]
        advice = list(dict.fromkeys(o.advice for _, o in own if o.advice))
        rows.append(Refusal(op, rule, len({node for node, _ in own}), Example(node_name(node), first.message), advice))
    return sorted(rows, key=lambda row: -row.nodes)


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """The second elements of the pairs by their first elements."""
    found: dict[K, list[T]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return found
