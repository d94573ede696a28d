"""Grouping on abstract graphs: ONNX Runtime's published cases, and its algorithm on random graphs."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from graphlib import TopologicalSorter

import pytest

from ortconv.ir.order import readers_of
from ortconv.partition.regions import Eligible, group_by_wave


def group_by_queue(producers: Sequence[Sequence[int]], eligible: Eligible) -> list[list[int]]:
    """The groups, grown one unit at a time as ONNX Runtime does. Units are in the order in which they join."""
    consumers = readers_of(producers)
    missing = [len(before) for before in producers]
    postponed = deque(u for u, n in enumerate(missing) if n == 0)
    answers: dict[int, bool] = {}
    groups: list[dict[int, None]] = []
    while postponed:
        ready, postponed = postponed, deque()
        group: dict[int, None] = {}
        groups.append(group)
        border: set[int] = set()
        while ready:
            u = ready.popleft()
            if u not in answers:
                answers[u] = eligible(u, group.__contains__)
            if answers[u]:
                group[u] = None
                border.update(consumers[u])
            elif u in border:
                postponed.append(u)
                continue
            for v in consumers[u]:
                missing[v] -= 1
                if missing[v] == 0:
                    ready.append(v)
    return [list(group) for group in groups if group]


def number(order: str, edges: str) -> tuple[list[str], list[list[int]]]:
    names = order.split()
    producers: list[list[int]] = [[] for _ in names]
    for edge in edges.split():
        source, sink = edge.split(">")
        producers[names.index(sink)].append(names.index(source))
    return names, producers


GRAPH_1 = number("A1 S1 A2 S2 A3 A4", "S1>A2 S1>S2 A1>A3 S2>A3")
GRAPH_2 = number("S1 A1 A2 S2 A3 A4 A5 A6 A7", "S1>A1 A1>A2 A1>S2 A2>A3 A2>A4 S2>A4 A3>A5 A4>A6 A5>A7 A6>A7")


@pytest.mark.parametrize(
    ("graph", "supported", "expected"),
    [
        (GRAPH_1, "A", [{"A1", "A2", "A3", "A4"}]),
        (GRAPH_1, "S", [{"S1", "S2"}]),
        (GRAPH_2, "A", [{"A1", "A2", "A3", "A5"}, {"A4", "A6", "A7"}]),
        (GRAPH_2, "AS", [{"S1", "A1", "A2", "S2", "A3", "A4", "A5", "A6", "A7"}]),
        (GRAPH_2, "", []),
        (number("A1 S1 A2 S2 A3", "A1>S1 S1>A2 A2>S2 S2>A3"), "A", [{"A1"}, {"A2"}, {"A3"}]),
        (number("S1 A1", "S1>A1"), "A", [{"A1"}]),
        (number("A1 S1 A2 A3", "A1>S1 S1>A2"), "A", [{"A1", "A3"}, {"A2"}]),
        (number("A1 S1 S2 A2", "A1>S1 S1>S2 S2>A2"), "A", [{"A1"}, {"A2"}]),
        (number("A1 S1 A2", "A1>S1 A1>A2 S1>A2"), "A", [{"A1"}, {"A2"}]),
        (([], []), "A", []),
    ],
)
def test_known_graphs(graph, supported, expected):
    names, producers = graph

    def eligible(u, in_group):
        return names[u][0] in supported

    assert [{names[u] for u in g} for g in group_by_wave(producers, eligible)] == expected
    assert [{names[u] for u in g} for g in group_by_queue(producers, eligible)] == expected


def random_graph(rng: random.Random) -> list[list[int]]:
    count = rng.randint(1, 24)
    return [[rng.randrange(u) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))] if u else [] for u in range(count)]


def compare(seed: int, cases: int) -> int:
    """Check the groups, and that no partition depends on itself. Return the number of graphs with several groups."""
    rng = random.Random(seed)
    seen = 0
    for _ in range(cases):
        producers = random_graph(rng)
        share = rng.random()
        supported = [rng.random() < share for _ in producers]
        # Some units ask, like raw uint8 operators, that a producer is in the growing group.
        demands = [rng.choice(p) if p and rng.random() < 0.3 else None for p in producers]

        def eligible(u, in_group, supported=supported, demands=demands):
            return supported[u] and (demands[u] is None or in_group(demands[u]))

        groups = group_by_wave(producers, eligible)
        assert [sorted(g) for g in group_by_queue(producers, eligible)] == groups, (producers, supported, demands)
        assert all(groups)
        part = {u: f"group {w}" for w, g in enumerate(groups) for u in g}
        contracted: dict[object, set[object]] = {}
        for u, before in enumerate(producers):
            own = part.get(u, u)
            contracted.setdefault(own, set()).update(part.get(p, p) for p in before if part.get(p, p) != own)
        assert len(list(TopologicalSorter(contracted).static_order())) == len(contracted)
        seen += len(groups) > 1
    return seen


@pytest.mark.slow
def test_groups_are_those_of_onnxruntime():
    assert compare(seed=1, cases=4_000) > 1_000


@pytest.mark.slow
def test_groups_are_those_of_onnxruntime_on_many_graphs():
    assert compare(seed=2, cases=100_000) > 25_000


def test_membership_does_not_depend_on_the_topological_order():
    rng = random.Random(3)
    for _ in range(2_000):
        producers = random_graph(rng)
        supported = [rng.random() < 0.6 for _ in producers]
        order = list(range(len(producers)))
        rng.shuffle(order)
        dependencies = {u: set(producers[u]) for u in order}
        order = list(TopologicalSorter(dependencies).static_order())
        place = {u: i for i, u in enumerate(order)}
        renumbered = [[place[p] for p in producers[u]] for u in order]
        groups = group_by_wave(producers, lambda u, _, s=supported: s[u])
        others = group_by_wave(renumbered, lambda i, _, s=supported, o=order: s[o[i]])
        assert [set(g) for g in groups] == [{order[i] for i in g} for g in others]
