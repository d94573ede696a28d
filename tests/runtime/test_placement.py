"""How the nodes of a graph are grouped by backend."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from ortconv.runtime.placement import group


@st.composite
def graphs(draw: st.DrawFn, backends: str = "ab") -> tuple[list[str], list[list[int]]]:
    names = draw(st.lists(st.sampled_from(backends), min_size=1, max_size=9))
    return names, [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(len(names))]


def fewest(names: list[str], needs: list[list[int]]) -> int:
    """The least number of groups, by trying every order of backends."""
    states = {frozenset[int]()}
    count = 0
    while not any(len(done) == len(names) for done in states):
        count += 1
        states = {closed(done, backend, names, needs) for done in states for backend in set(names)}
    return count


def closed(done: frozenset[int], backend: str, names: list[str], needs: list[list[int]]) -> frozenset[int]:
    grown = set(done)
    for i, name in enumerate(names):
        if name == backend and grown.issuperset(needs[i]):
            grown.add(i)
    return frozenset(grown)


@given(graphs())
def test_two_backends_get_as_few_groups_as_there_can_be(graph: tuple[list[str], list[list[int]]]) -> None:
    names, needs = graph
    groups = group(names, needs)
    check(groups, names, needs)
    assert len(groups) == fewest(names, needs)


@given(graphs("abc"))
def test_more_backends(graph: tuple[list[str], list[list[int]]]) -> None:
    names, needs = graph
    groups = group(names, needs)
    check(groups, names, needs)
    assert len(groups) <= len([*groupby(names)])


def check(groups: list[list[int]], names: list[str], needs: list[list[int]]) -> None:
    assert sorted(i for g in groups for i in g) == [*range(len(names))]
    done: set[int] = set()
    for one in groups:
        assert len({names[i] for i in one}) == 1
        for i in one:
            assert done.issuperset(needs[i])
            done.add(i)


def test_a_node_joins_an_earlier_group_of_its_backend() -> None:
    assert group(["a", "b", "a", "b"], [[], [0], [], [2]]) == [[0, 2], [1, 3]]
    assert group(["b", "a", "b"], [[], [], [1]]) == [[1], [0, 2]]
    assert group(["b", "a", "b", "a"], [[], [0], [1], []]) == [[0], [1, 3], [2]]
