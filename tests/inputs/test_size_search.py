"""Sizes that do not follow from the graph are searched: by trial, by repair of contradictions, and not without end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ortconv.inputs.size_search as size_search
from ortconv.errors import BackendError
from ortconv.inputs import budget, candidates
from ortconv.inputs.budget import Budget, Clock, SearchTime
from ortconv.inputs.candidates import first_run
from ortconv.inputs.climb import Reached, climb
from ortconv.inputs.demands import Demand
from ortconv.inputs.feeds import free_problem, sizes_to_try
from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.repair import repair
from ortconv.inputs.sizes import DemandKey, demands_for, is_solved
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.runtime import deadline
from ortconv.runtime.deadline import TimeLimitError, check_limit
from ortconv.runtime.session import Session
from tests.batches import slow_except
from tests.inputs.size_graphs import all_trials, first_trial, graph, ints

CLIMBS = {
    "rows that Range names": "float[N,4] x | r = Range(zero, forty, one) y = Gather(x, r)",
    "a product of three": "float[A,B,C,4] x | t = Abs(s) y = Reshape(x, t)",
}


def climbing(name: str) -> Graph:
    head, body = CLIMBS[name].split(" | ")
    scalars = {"zero": np.array(0), "forty": np.array(40), "one": np.array(1)}
    return graph(body, head, s=ints(30, 4), **scalars)


@pytest.mark.parametrize("name", slow_except(["rows that Range names"], CLIMBS))
def test_sizes_that_nothing_implies_are_found_by_trial(name: str) -> None:
    assert first_trial(climbing(name), Clock(Budget(seconds=200)))


def test_the_last_change_of_a_climb_counts() -> None:
    case = graph("y = Relu(x)", "float[A] x")
    (node,) = case

    def reach(sizes: Sizes) -> Reached:
        return Reached(1, None) if sizes["A"] == 2 else Reached(0, node)

    assert climb(free_problem(case, {}, {}), {"A": 8}, reach, 1) == {"A": 2}


@pytest.mark.parametrize("name", slow_except(["rows that Range names"], CLIMBS))
def test_single_runs_search_by_trial_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "Budget", lambda: Budget(seconds=200))
    feeds, results = first_run(Session(Model(climbing(name)), ["numpy"]))
    assert feeds
    assert len(results) == 1


def test_bodies_of_loops_make_demands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of a carried value is known only from a run."""
    monkeypatch.setattr(size_search, "CLIMBS", ())
    body = (
        "body = b (int64 i, bool d, float[] l) => (bool e, float[] m) { e = Identity(d) r = Reshape(l, s) m = Neg(l) }"
    )
    case = graph(
        f"v = Loop(n, c, x) <{body}> y = Neg(v)", "float[A,B] x", n=np.array(1), c=np.array(True), s=ints(0, 3, 1, 2)
    )
    assert first_trial(case, Clock(Budget(seconds=200))).sizes["B"] == 6


IMPOSSIBLE = {
    "a bias that does not fit": graph("y = Conv(x, w, b)", w=(4, 3, 1, 1), b=(5,)),
    "an axis beyond the rank": graph("s = Shape(x) y = Gather(s, i)", i=ints(7)),
    "a condition with three elements": graph(
        "y = If(c) <then_branch = a () => (float[] p) { p = Neg(x) }, else_branch = b () => (float[] q) { q = Abs(x) }>",
        "float[N,C] x, bool[3] c",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_the_search_ends_at_once_where_no_inputs_fit(name: str) -> None:
    case = IMPOSSIBLE[name]
    session, runs = Session(Model(case), ["numpy"]), []

    def run(feeds: dict[str, Any]) -> list[Any]:
        runs.append(feeds)
        return session.run(None, feeds)

    with pytest.raises(BackendError):
        next(all_trials(case, run))
    assert len(runs) == 2  # a batch of 2 and of 1


def test_a_split_into_unequal_parts_is_no_contradiction() -> None:
    """The rows of x follow from computed indices, so they are searched."""
    nodes = "i = Range(a, b, a) y = Gather(x, i) p, q, r, s = Split<num_outputs = 4>(w)"
    head = '<ir_version: 10, opset_import: ["": 18]> g (float[N,3] x, float[7,1] w) => (y, s)'
    case = from_proto(onnx.parser.parse_model(f"{head} <int64 a = {{1}}, int64 b = {{4}}> {{ {nodes} }}")).graph
    assert first_trial(case, Clock(Budget(seconds=200))).sizes["N"] >= 4


def test_smaller_sizes_are_tried_after_a_run_that_is_too_slow() -> None:
    case = graph("y = Neg(x)", "float[N,M] x")
    tried = []

    def run(feeds: dict[str, Any]) -> list[Any]:
        tried.append(feeds["x"].shape)
        if feeds["x"].size > 4:
            raise TimeLimitError("too slow", backend="numpy")
        return [-feeds["x"]]

    assert next(all_trials(case, run)).sizes
    assert tried[:2] == [(2, 8), (2, 1)]


def test_a_length_fits_the_rank_that_readers_need() -> None:
    """The Slice needs two rows, and the Transpose three."""
    case = graph(
        "a = Slice(x, b, e, z) r = Reshape(a, t) y = Transpose<perm = [2, 1, 0]>(r)",
        "float[L,K] x, int64[L] t",
        b=ints(1),
        e=ints(2),
        z=ints(0),
    )
    assert first_trial(case, Clock(Budget())).sizes["L"] == 3


@pytest.mark.parametrize("count", [1, 2])
def test_elements_that_determine_shapes_are_found_by_trial(count: int) -> None:
    case = graph("n = NonZero(x) y = Reshape(n, s)", "int64[3] x", s=ints(1, count))
    assert np.count_nonzero(first_trial(case, Clock(Budget())).feeds["x"]) == count


def test_elements_that_become_sizes_are_drawn_again() -> None:
    """Where a product of the elements is a size too, zeros keep dimensions that are not there."""
    body = "a = Gather(x, i) b = Gather(x, j) n = Mul(a, b) z = ConstantOfShape(n) t = Concat<axis = 0>(o, x) y = Reshape(z, t)"
    case = graph(body, "int64[2] x", i=ints(0), j=ints(1), o=ints(1))
    assert np.all(first_trial(case, Clock(Budget())).feeds["x"] > 0)


def test_every_case_of_the_conditions_comes_before_long_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With d false, there are too few elements for the second Reshape, whatever the target of the first one is."""
    runs: list[tuple[Any, ...]] = []

    def counted(problem: Any, clock: Clock, seed: int, sizes: dict[str, int]) -> Reached:
        runs.append((seed, *sizes.items()))
        return reach(problem, clock, seed, sizes)

    reach = size_search._reach
    monkeypatch.setattr(size_search, "_reach", counted)
    monkeypatch.setattr(size_search, "SHARE_OF_CASES", 0)
    case = graph(
        "v = If(d) <then_branch = a () => (float[] p) { p = Identity(x) }, else_branch = b () => (float[] q)"
        " { q = Gather(x, i) }> r = Reshape(v, t) y = Reshape(r, s)",
        "float[8,8] x, bool d, int64[4] t",
        i=ints(1),
        s=ints(2, 2, 1, 16),
    )
    assert first_trial(case, Clock(Budget(seconds=200))).feeds["d"]
    assert 10 < len(runs) < 100
    assert len({*runs}) == len(runs), "nothing is tried twice"


@pytest.mark.parametrize("case", [False, True])
def test_shapes_are_observed_with_every_case_of_the_conditions(case: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined three times, no rows fit the Expand."""
    monkeypatch.setattr(size_search, "CLIMBS", ())
    branches = ["p () => (float[] u) { u = Concat<axis = 0>(x, x, x) }", "q () => (float[] w) { w = Neg(x) }"]
    then, other = reversed(branches) if case else branches
    found = graph(
        f"v = If(d) <then_branch = {then}, else_branch = {other}> y = Expand(v, s)",
        "float[A,4] x, bool d",
        s=ints(128, 1),
    )
    trial = first_trial(found, Clock(Budget(seconds=200)))
    assert trial.feeds["d"] == case
    assert trial.sizes["A"] in (1, 128)


@pytest.mark.parametrize("name", CLIMBS)
def test_no_sizes_are_tried_when_the_time_for_it_is_over(name: str) -> None:
    clock = Clock(Budget())
    clock.by_trial.seconds = 0
    with pytest.raises(BackendError):
        first_trial(climbing(name), clock)


class Time:
    """A clock that a test sets. Each look at the CPU's takes a millisecond of it."""

    cpu = real = 0.0

    def thread_time(self) -> float:
        self.cpu += 0.001
        return self.cpu

    def perf_counter(self) -> float:
        return self.real


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    for module in (budget, deadline):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.mark.parametrize(("seconds", "share", "later"), [(0.02, 1.0, []), (0.2, 0.5, [2])])
def test_a_search_that_does_not_end_takes_its_share(
    seconds: float, share: float, later: list[int], clock: Time
) -> None:
    def found() -> Iterator[int]:
        yield 1
        while True:
            check_limit()

    time = SearchTime(seconds)
    assert list(time.spend(found(), share)) == [1]
    assert 0 < clock.cpu - seconds * share < 0.01
    assert list(time.spend(iter([2]))) == later


@pytest.mark.parametrize(("pause", "results"), [(0.05, [0, 1, 2]), (0.5, [])])
def test_the_time_of_a_search_is_that_of_the_processor(pause: float, results: list[int], clock: Time) -> None:
    """On a busy machine, a search finds the same sizes, unless it takes several times as long."""

    def found() -> Iterator[int]:
        for number in range(3):
            clock.real += pause
            check_limit()
            yield number

    assert list(SearchTime(0.1).spend(found())) == results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "inputs", "arrays"),
    [
        ("r = Reshape(x, s) y = Reshape(r, k)", "float[2] x, int64[n] s", {"k": ints(0, 0, 2, 1)}),
        ("r = Reshape(x, s) q = Squeeze(r, k) y = Neg(q)", "float[3,4] x, int64[n] s", {"k": ints(0)}),
    ],
)
def test_other_lengths_of_inputs_that_hold_shapes(
    nodes: str, inputs: str, arrays: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length that readers imply is only the least one, or none is implied."""
    monkeypatch.setattr(size_search, "CLIMBS", (8,))
    assert first_trial(graph(nodes, inputs, **arrays), Clock(Budget(seconds=200)))


CONTRADICTIONS = {
    "a product whose factor a later node fixes": (
        graph("r = Reshape(x, s) y = Conv<group = 4>(z, w)", "float[A,B] x, float[N,A,6] z", s=ints(6, 2), w=(4, 1, 3)),
        {"A": 4, "B": 3},
    ),
    "a kernel that is an input": (
        graph(
            "r = Reshape(x, s) q = Reshape(r, t) c = Conv(z, k) y = Add(c, b)",
            "float[A,2,K,D] x, float[1,1,H,4] z, float[1,1,K,K] k",
            s=ints(-1, 12), t=ints(2, 12), b=(1, 1, 3, 2),
        ),
        {"K": 3, "H": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("batch", slow_except([2], [1, 2]))
def test_sizes_that_contradict_are_searched(name: str, batch: int) -> None:
    case, expected = CONTRADICTIONS[name]
    problem = free_problem(case, {}, {})
    *_, (sizes, _) = sizes_to_try(problem, batch)
    assert {n: sizes[n] for n in expected} == expected
    assert is_solved(problem, sizes)


def test_the_search_tries_no_negative_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Sizes] = []

    def noted(problem: Problem, sizes: Sizes) -> Iterator[tuple[DemandKey, Demand]]:
        tried.append(sizes)
        return demands_for(problem, sizes)

    monkeypatch.setattr("ortconv.inputs.repair.demands_for", noted)
    monkeypatch.setattr("ortconv.inputs.repair.MOST_TRIED", 50)
    case = graph("r = Reshape(x, t) y = Reshape(z, s)", "float[0,3] x, int64[2] t, float[1,K] z", s=ints(7, 2))
    *_, (sizes, _) = sizes_to_try(free_problem(case, {}, {}), 2)
    assert sizes["K"] == 14
    assert all(found["K"] > 0 and min(found.values()) >= -1 for found in tried)


def test_the_search_tries_small_sizes() -> None:
    """Sizes between 16 and 9 give no multiple of 7 rows, so no step from one to the next is seen to help."""
    case = graph(
        "c = Concat<axis = 1>(x, z) r = Reshape(c, s) y = Add(r, b)",
        "float[1,K,4] x",
        z=(1, 5, 4),
        s=ints(-1, 4, 7),
        b=(2, 4, 7),
    )
    assert repair(free_problem(case, {}, {}), [{"K": 16}]) == {"K": 9}


@pytest.mark.slow
def test_the_search_ends_where_no_sizes_fit() -> None:
    case = graph("r = Reshape(x, s) y = Conv(x, w)", "float[N,C,1] x", s=ints(5), w=(2, 3, 1))
    assert not any(
        is_solved(free_problem(case, {}, {}), sizes) for sizes, _ in sizes_to_try(free_problem(case, {}, {}), 2)
    )


@pytest.mark.slow
def test_a_sum_and_a_product_that_change_together() -> None:
    """The keys of the past and of this step are five together, the heads of a batch two, and each is a factor of its tensor."""
    case = graph(
        """rows = Reshape(x, to_rows) q = Transpose(rows) queries = Reshape(q, to_queries)
        keys = Reshape(x, to_keys) k = Transpose(keys) c = Concat<axis = 2>(past, k) values = Reshape(c, to_values)
        scores = MatMul(queries, w) s = MatMul(scores, values) y = Reshape(s, to_outputs)""",
        "float[B,S,8] x, float[M,2,P,D] past",
        to_rows=ints(0, 0, 2, 4),
        to_keys=ints(1, -1, 2, 4),
        to_values=ints(-1, 5, 4),
        to_queries=ints(2, -1, 4),
        to_outputs=ints(2, 1, 3, 4),
        w=(2, 4, 5),
    )
    problem = free_problem(case, {}, {})
    assert any(is_solved(problem, sizes) for sizes, _ in sizes_to_try(problem, 2))
