"""Advice: the smallest sets of nodes whose support would merge partitions, each tested by grouping the graph again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import combinations
from typing import Any, NamedTuple

from ortconv.ir.graph import Graph, Node
from ortconv.partition.partitioner import Grouping, node_name
from ortconv.partition.policy import Target, gate
from ortconv.wording import counted

OUTSIDE = {
    "static-shape": "give static shapes to",
    "feature-level": "raise the feature level for",
    "stop-op": "remove from the stop operators",
    "assigned": "hand over",
}
"""Rules with a cause outside the operator, and the verb of their advice. One change helps nodes of every operator type."""

WORK_LIMIT = 800_000
"""Most units that a search groups, over all attempts. A count bounds the search in the same way on every machine."""

REWRITE = "rewrite"
SHOWN = 5
SHOWN_OPS = 4


class Merge(NamedTuple):
    """Refused nodes, and the partitions if the target supported them. `steps` are pairs of a verb and the nodes that it is for."""

    steps: tuple[tuple[str, tuple[Node, ...]], ...]
    rules: tuple[str, ...]
    partitions_before: int
    partitions_after: int
    taken_before: int
    taken_after: int

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for _, nodes in self.steps for node in nodes)

    def __str__(self) -> str:
        if self.partitions_before == self.partitions_after:
            effect = f"the number of partitions stays {self.partitions_after}"
        else:
            effect = f"{counted(self.partitions_before, 'partition')} become {self.partitions_after}"
        steps = ", ".join(f"{verb} {_counted(nodes)}" for verb, nodes in self.steps)
        return f"{steps} ({', '.join(self.rules)}): {effect}, {counted(self.gained, 'more node')} in partitions"

    @property
    def saved(self) -> int:
        """By how many the number of partitions falls."""
        return self.partitions_before - self.partitions_after

    @property
    def gained(self) -> int:
        """The number of nodes that the target then supports in addition."""
        return self.taken_after - self.taken_before

    def to_dict(self) -> dict[str, Any]:
        return {
            "nodes": [node_name(n) for n in self.nodes],
            "ops": dict(sorted(Counter(n.op for n in self.nodes).items())),
            "rules": list(self.rules),
            "partitions_before": self.partitions_before,
            "partitions_after": self.partitions_after,
            "nodes_taken_before": self.taken_before,
            "nodes_taken_after": self.taken_after,
            "text": str(self),
        }


def _counted(nodes: tuple[Node, ...]) -> str:
    """Nodes counted by operator, as text; QDQ groups count under their target operator."""
    inner = [n for n in nodes if n.op not in ("DequantizeLinear", "QuantizeLinear")]
    ops = Counter(n.op for n in inner or nodes).most_common()
    rest = sum(count for _, count in ops[SHOWN_OPS:])
    shown = [counted(count, f"{op} node") for op, count in ops[:SHOWN_OPS]]
    return ", ".join(shown) + (f" and {counted(rest, 'other')}" if rest else "")


def advise(graph: Graph, target: Target | None = None) -> list[Merge]:
    """Find sets of refused nodes whose support would leave fewer partitions or more nodes on the target. The best set comes first.

    If few units are refused, all sets are tried, which finds the smallest set for every number of partitions. Otherwise units are
    grouped into classes by operator and rules. Each class is tried alone. Classes are then combined greedily while that merges
    partitions, and units are removed from a set until no unit can be left out.
    """
    target = target or Target()
    if any(gate(graph, target)):
        return []
    search = _MergeSearch(Grouping(graph, target))
    if not search.work.against:
        return []
    sets = [*(search.smallest() if search.is_small else ()), *search.candidates()]
    found = [m for m in map(search.merge, dict.fromkeys(sets)) if m.gained > 0]
    if search.present[0] == 0:
        return sorted(found, key=lambda m: -m.gained)[:1]
    best = _undominated([m for m in found if m.saved > 0]) or [m for m in found if m.saved == 0]
    # first the partitions saved per changed node, then the nodes gained
    return sorted(best, key=lambda m: (-m.saved / len(m.nodes), -m.gained, len(m.nodes)))[:SHOWN]


def _undominated(merges: list[Merge]) -> list[Merge]:
    """The Pareto front: no other merge has as few nodes to change and fewer partitions, or fewer nodes and as few partitions."""
    front: list[Merge] = []
    for merge in sorted(merges, key=lambda m: (len(m.nodes), m.partitions_after, -m.taken_after)):
        if not front or merge.partitions_after < front[-1].partitions_after:
            front.append(merge)
    return front


Effect = tuple[int, int]
"""(number of partitions, number of nodes in them)."""


class _MergeSearch:
    """A search for sets of refused units, limited by the number of units that its attempts group."""

    def __init__(self, work: Grouping) -> None:
        self.work = work
        self.spent = 0
        self.present = self.effect(())

    def effect(self, supposed: Collection[int]) -> Effect:
        """The partitions and their nodes if these units were supported."""
        self.spent += len(self.work.units)
        kept = [group for group in self.work.groups(supposed) if self.work.refusal(group) is None]
        return len(kept), sum(len(self.work.units[u].nodes) for group in kept for u in group)

    @property
    def exhausted(self) -> bool:
        return self.spent > WORK_LIMIT

    @property
    def is_small(self) -> bool:
        """True if there are few enough refused units to try all sets of them."""
        refused = len(self.work.against)
        return refused < 20 and len(self.work.units) << refused <= WORK_LIMIT

    def smallest(self) -> list[frozenset[int]]:
        """For every reachable number of partitions, the smallest set of refused units that leads to it."""
        refused = sorted(self.work.against)
        found: dict[int, frozenset[int]] = {}
        for size in range(1, len(refused) + 1):
            for chosen in combinations(refused, size):
                found.setdefault(self.effect(frozenset(chosen))[0], frozenset(chosen))
        return list(found.values())

    def classes(self) -> list[frozenset[int]]:
        """The refused units by operator and rules. Units whose rules are all in OUTSIDE are classed by rules alone."""
        found: dict[tuple[str, frozenset[str]], set[int]] = {}
        for u, reasons in self.work.against.items():
            rules = frozenset(o.rule for o in reasons)
            op = "" if rules <= OUTSIDE.keys() else self.work.units[u].op
            found.setdefault((op, rules), set()).add(u)
        return [frozenset(units) for units in found.values()]

    def candidates(self) -> list[frozenset[int]]:
        """Single classes, and unions of them from a greedy search. Those that merge partitions are reduced to the units needed."""
        classes = self.classes()
        alone = {c: self.effect(c) for c in classes if not self.exhausted}
        tried = alone | self.unions(alone)
        best = sorted(tried, key=lambda c: (tried[c][0], len(c), -tried[c][1]))
        merging = [c for c in best if tried[c][0] < self.present[0]]
        reduced = [self.minimal(c, tried[c][0]) for c in merging[: 2 * SHOWN]]
        return [*reduced, *(c for c in best if c not in merging)]

    def unions(self, alone: dict[frozenset[int], Effect]) -> dict[frozenset[int], Effect]:
        """Unions of classes: each step adds the class that leaves the fewest partitions. `alone` has the classes as keys."""
        found: dict[frozenset[int], Effect] = {}
        total: frozenset[int] = frozenset()
        rest = set(alone)
        count = self.present[0]
        while rest and count > 1 and not self.exhausted:
            effects = {c: self.effect(total | c) for c in sorted(rest, key=min)}
            c = min(effects, key=lambda c: (effects[c][0], len(c), -effects[c][1]))
            if effects[c][0] >= count and len(total) > 0 and effects[c][1] <= self.present[1]:
                break
            total |= c
            rest.discard(c)
            count = min(count, effects[c][0])
            found[total] = effects[c]
        return found

    def minimal(self, units: frozenset[int], partitions: int) -> frozenset[int]:
        """A subset of `units` from which no unit can be removed without more than `partitions` partitions. If the work limit is
        reached, the set as reduced so far.
        """
        kept = sorted(units)
        size = len(kept) // 2
        while size and not self.exhausted:
            at = 0
            while at < len(kept) and not self.exhausted:
                fewer = kept[:at] + kept[at + size :]
                if fewer and self.effect(frozenset(fewer))[0] <= partitions:
                    kept = fewer
                else:
                    at += size
            size //= 2
        return frozenset(kept)

    def merge(self, units: Iterable[int]) -> Merge:
        """The merge that the support of these units would lead to, with a step for each kind of change."""
        chosen = sorted(units)
        partitions, taken = self.effect(frozenset(chosen))
        steps: dict[str, list[int]] = {}
        for u in chosen:
            rules = {o.rule for o in self.work.against[u]}
            steps.setdefault(OUTSIDE.get(min(rules), REWRITE) if len(rules) == 1 else REWRITE, []).append(u)
        todo = tuple((verb, self.work.nodes(group)) for verb, group in steps.items())
        why = dict.fromkeys(o.rule for u in chosen for o in self.work.against[u])
        return Merge(todo, tuple(why), self.present[0], partitions, self.present[1], taken)
