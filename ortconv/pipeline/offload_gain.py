"""What rewriting a model for an accelerator gains, and the advice to do it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from ortconv.ir.types import DType
from ortconv.optimizer.passes import by_root
from ortconv.optimizer.recipe import make
from ortconv.partition import Partitioning
from ortconv.partition.checks import TYPE_ADVICE
from ortconv.partition.nnapi.checks import SIGNED
from ortconv.partition.partitioner import Verdict
from ortconv.wording import fix_dim_options

ANSWERED = (SIGNED, TYPE_ADVICE["nnapi"][DType.FLOAT16])
"""Advice that `maximize` follows itself."""

HINT = "--maximize-offload rewrites it if that puts more nodes in partitions"


class Count(NamedTuple):
    """Counts of a graph: all nodes, nodes assigned to a target (`taken`), partitions, and multiply-adds in them."""

    nodes: int
    taken: int
    partitions: int
    multiply_adds: int

    @property
    def refused(self) -> int:
        return self.nodes - self.taken


class Gain(NamedTuple):
    """Counts before and after rewriting, and the number of rewrites by rule.

    `dims` lists the symbolic dimensions of the graph's inputs if more nodes could be assigned to the target with static shapes.
    """

    before: Count
    after: Count
    rewrites: dict[str, int]
    dims: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """Advice for assigning more nodes to the target; empty if there is none."""
        if not self.dims:
            return ""
        return f"give the inputs fixed shapes: {fix_dim_options(self.dims, 'N')}"

    def to_dict(self) -> dict[str, Any]:
        before, after = (count._asdict() | {"refused": count.refused} for count in (self.before, self.after))
        return {"before": before, "after": after, "rewrites": self.rewrites, "advice": self.advice}


@cache
def rewritable() -> frozenset[tuple[str, str]]:
    """(domain, operator) of the nodes for which rewrites exist."""
    return frozenset(by_root(r for p in make("basic", offload=True).offload for r in p.rules))


def hinted(partitioning: Partitioning) -> Partitioning:
    """Add the advice to try `maximize` to objections that a rewrite can answer: against int8, or an operator that the target lacks,
    or has only in float.
    """
    verdicts = {node: _hinted(verdict) for node, verdict in partitioning.verdicts.items()}
    return replace(partitioning, verdicts=verdicts)


def _hinted(verdict: Verdict) -> Verdict:
    if verdict.taken:
        return verdict
    rules = {"operator", "qdq"} if (verdict.node.domain, verdict.node.op) in rewritable() else {"qdq"}
    objections = (
        o._replace(advice=f"{o.advice}; {HINT}" if o.advice else HINT) if o.rule in rules or o.advice in ANSWERED else o
        for o in verdict.objections
    )
    return replace(verdict, objections=tuple(objections))
