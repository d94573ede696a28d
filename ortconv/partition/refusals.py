"""The reasons why nodes stay on the CPU, counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ortconv.partition.partitioner import Partitioning, node_name


@dataclass
class Refusal:
    """Why nodes of one operator stay on the CPU: a rule, the number of nodes, the first objection, and all different advice."""

    op: str
    rule: str
    nodes: int = 0
    example: str = ""
    message: str = ""
    advice: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "rule": self.rule,
            "nodes": self.nodes,
            "example": {"node": self.example, "message": self.message},
            "advice": self.advice,
        }


def refusals(partitioning: Partitioning) -> list[Refusal]:
    """Every pair of operator and rule, most nodes first. A node with several objections counts for each rule once."""
    found: dict[tuple[str, str], Refusal] = {}
    for node, verdict in partitioning.verdicts.items():
        seen = set()
        for o in verdict.objections:
            key = node.operator, o.rule
            row = found.setdefault(key, Refusal(*key, 0, node_name(node), o.message))
            if o.rule not in seen:
                row.nodes += 1
                seen.add(o.rule)
            if o.advice and o.advice not in row.advice:
                row.advice.append(o.advice)
    return sorted(found.values(), key=lambda row: -row.nodes)
