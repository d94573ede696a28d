"""Searches for sizes of free dimensions with which a model runs: first without running it, then by trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product, zip_longest
from typing import Any

from ortconv.errors import OrtconvError
from ortconv.executor.replay.work import Function, as_tuple
from ortconv.inputs.budget import SHARE_OF_SOLVING, BeyondBudgetError, Clock, SearchTime, TooLargeError
from ortconv.inputs.climb import Reached, climb
from ortconv.inputs.demands import Numbers, Shapes
from ortconv.inputs.feeds import SEEDS, Choice, fitting, free_problem, make, sizes_to_try
from ortconv.inputs.operand_roles import is_condition, is_size
from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.shapes import infer_shapes
from ortconv.inputs.sizes import can_be_met, solve
from ortconv.ir.footprint import footprint
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.process import memory_limit
from ortconv.runtime.deadline import TimeLimitError
from ortconv.stream import stream

CLIMBS = (8, 120, 500)
"""Number of runs to find sizes from one initial state: at first a few runs from each, then more."""

MOST_CONDITIONS = 4
"""Maximum number of boolean conditions among the inputs for which all combinations are tried if the model runs with
none of the sizes.
"""

SHARE_OF_CASES = 0.5
"""Share of the remaining time for sizes that are found by running the model with each case of its conditions."""

DRAWS = 8
"""Number of draws of the inputs if the shapes of values depend on their elements, as behind a NonZero."""


def choices(graph: Graph, clock: Clock) -> Iterator[Choice]:
    """Choices to try, the most likely first. They are searched while they are read, and are the same for all engines.

    Raises CannotTryError if all need more time or memory than the budget has.
    """
    problem = free_problem(graph, {}, {})
    if not problem.free:
        _check_room(problem, clock)
    least = yield from fitting(problem, _sizes_with_bytes(problem, clock), clock.budget.bytes)
    if least > clock.budget.bytes:
        raise BeyondBudgetError(f"a run needs {least / 2**30:.3g} GiB, and the budget is {clock.budget}")
    yield from searched(problem, clock)
    yield from SearchTime(clock.budget.seconds * SHARE_OF_SOLVING).spend(_choices_of_other_lengths(problem, clock))


def searched(problem: Problem, clock: Clock) -> Iterator[Choice]:
    """Sizes that are found by running the graph on numpy, and seeds of its inputs. The last choice has numbers from 0 to 1: a model
    may make indices of pixels.
    """
    if not can_be_met(problem):
        return
    starts = [(problem.first(size, batch), 0) for size, batch in product((32, 64), (2, 1))]
    yield from clock.by_trial.spend(_observed_choices(problem, clock, starts))
    cases = [(problem.first(32, 2), n * SEEDS) for n in range(1, _cases(problem))]
    yield from clock.by_trial.spend(_observed_choices(problem, clock, cases), SHARE_OF_CASES)
    yield from clock.by_trial.spend(_climbed_choices(problem, clock))
    first = next(fitting(problem, _sizes_with_bytes(problem, clock), clock.budget.bytes), None)
    if first is not None:
        yield first._replace(kind="fraction")


def _choices_of_other_lengths(problem: Problem, clock: Clock) -> Iterator[Choice]:
    """Choices in which inputs that hold shapes have other lengths than their readers imply."""
    for other in problem.with_other_lengths():
        solved = [sizes for sizes, needed in _sizes_with_bytes(other, clock) if needed <= clock.budget.bytes]
        chosen = (sizes | elements for sizes in solved[:1] for elements in other.other_targets())
        yield from (Choice(other, sizes) for sizes in chain(solved, chosen))


def _observed_choices(problem: Problem, clock: Clock, starts: Iterable[tuple[Sizes, int]]) -> Iterator[Choice]:
    """Sizes for models whose shapes inference cannot determine: the model runs as far as possible, and its shapes are observed.

    `starts` are initial sizes, and seeds of the inputs.
    """
    for start, seed in starts if problem.free else ():
        solution = solve(replace(problem, observe=partial(_observed, problem, clock, seed)), start)
        if footprint(problem.graph, solution.shapes).bytes <= clock.budget.bytes:
            yield Choice(problem, solution.sizes, seed)


def _observed(problem: Problem, clock: Clock, seed: int, sizes: Sizes, inferred: Shapes) -> Shapes:
    """The known shapes of a run with these sizes."""
    computed = _computed(problem, clock, sizes, inferred, seed)
    return {value: shape for value, shape in computed.items() if shape is not None}


def _computed(
    problem: Problem, clock: Clock, sizes: Sizes, inferred: Shapes, seed: int = 0
) -> dict[Value, Numbers | None]:
    """The shapes of all values that a run reads or computes before a node fails, those of subgraphs too; None for a value that is
    no array. Empty if the sizes need too much memory.
    """
    from ortconv.backends.numpy_cpu import Numpy

    found: dict[Value, Numbers | None] = {}

    def note(values: Iterable[Value | None], results: Iterable[Any]) -> None:
        found.update((v, getattr(result, "shape", None)) for v, result in zip(values, results) if v is not None)

    def watch(node: Node, function: Function) -> Function:
        def run(*operands: Any) -> Any:
            note(node.inputs, operands)
            results = function(*operands)
            note(node.outputs, as_tuple(results))
            return results

        return run

    if footprint(problem.graph, inferred).bytes > clock.budget.bytes // 4:
        return found
    feeds = make(problem, sizes, seed)
    try:
        with memory_limit(clock.memory_of_run):
            for value, result in stream(problem.graph, [Numpy(watch=watch)], feeds, piece_size=1):
                found[value] = getattr(result, "shape", None)
    except TimeLimitError:
        raise
    except (OrtconvError, MemoryError):
        pass
    return found


def _climbed_choices(problem: Problem, clock: Clock) -> Iterator[Choice]:
    """Sizes for models with unknown demands, such as computed targets of a Reshape, and seeds of their inputs."""
    seeds = [n * SEEDS for n in range(_draws(problem))]
    plain = [problem.first(size, batch) for size, batch in ((2, 2), (8, 1))]
    plain = [met for start in plain if (met := solve(problem, start).sizes) not in plain] + plain
    starts: list[Sizes] = []
    for start in (*plain, *(start | chosen for chosen in problem.other_targets() for start in plain)):
        if start not in starts:
            starts.append(start)
    known: dict[tuple[int, ...], Reached] = {}

    def reach(seed: int, sizes: Sizes) -> Reached:
        key = (seed, *map(sizes.__getitem__, problem.free))
        if key not in known:
            known[key] = _reach(problem, clock, seed, sizes)
        return known[key]

    for runs, start, seed in product(CLIMBS if problem.free else (1,), starts, seeds):
        sizes = climb(problem, start, partial(reach, seed), runs)
        if sizes is not None:
            yield Choice(problem, sizes, seed)


def _draws(problem: Problem) -> int:
    """Number of draws of the inputs: those of the cases; more if shapes depend on elements."""
    cases = _cases(problem)
    nodes = (node for node in problem.graph.walk() if not node.subgraphs)
    by_data = any(traits(node).has(Trait.SHAPED_BY_DATA) for node in nodes) or any(map(is_size, problem.made))
    return max(cases, DRAWS) if by_data else cases


def _cases(problem: Problem) -> int:
    """Number of draws of the conditions: one at random, and one for each of their cases, if there are any."""
    count = sum(map(is_condition, problem.made))
    return 1 + 2 ** min(count, MOST_CONDITIONS) if count else 1


def _reach(problem: Problem, clock: Clock, seed: int, sizes: Sizes) -> Reached:
    """How many values a run with these sizes computes, and where it fails."""
    made = _computed(problem, clock, sizes, infer_shapes(problem, sizes), seed)
    return Reached(len(made), next((n for n in problem.graph if made.keys().isdisjoint(n.outputs)), None))


def _sizes_with_bytes(problem: Problem, clock: Clock) -> Iterator[tuple[Sizes, int]]:
    """Sizes that meet the graph's demands, with their bytes. If a batch would be 1, 2 is tried first."""
    pairs = zip_longest(sizes_to_try(problem, 2), sizes_to_try(problem, 1) if problem.batches else ())
    tried = filter(None, chain.from_iterable(pairs))
    first = next(tried)
    if any(first[0][name] == 1 for name in problem.batches):
        yield from islice(sizes_to_try(problem, 2, keep_batch=True), 1)
    yield first
    yield from SearchTime(clock.budget.seconds * SHARE_OF_SOLVING).spend(tried)


def _check_room(problem: Problem, clock: Clock) -> None:
    found = footprint(problem.graph, infer_shapes(problem, problem.fixed))
    if found.bytes > clock.budget.bytes:
        raise TooLargeError(
            f"a run needs {found.bytes / 2**30:.4g} GiB at {found.node or 'its inputs'}, and the budget is {clock.budget}"
        )
