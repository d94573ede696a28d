"""Chooses the inputs on which a validation runs source and result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product, zip_longest
from typing import Any, NamedTuple

from ortconv.compare.budget import SHARE_OF_EXTRAS, SHARE_OF_SOLVING, Budget, Clock, SearchTime
from ortconv.compare.climb import Reached, climb
from ortconv.compare.demands import Numbers, Shapes
from ortconv.compare.feeds import SEEDS, Feeds, free_problem, from_arrays, is_condition, make, sizes_to_try
from ortconv.compare.layers import stream
from ortconv.compare.sizes import Problem, Sizes, can_be_met, footprint, infer_shapes, is_solved, solve
from ortconv.errors import BackendError, OrtconvError
from ortconv.executor.replay.work import Function
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.process import memory_limit
from ortconv.runtime.deadline import TimeLimitError, within

Run = Callable[[Feeds], list[Any]]

CLIMBS = (8, 120, 500)
"""Number of runs to find sizes from one initial state: at first a few runs from each, then more."""

MOST_CONDITIONS = 4
"""Maximum number of boolean conditions among the inputs for which all combinations are tried if the model runs with
none of the sizes.
"""

DRAWS = 8
"""Number of draws of the inputs if the shapes of values depend on their elements, as behind a NonZero."""

PAIRS = (("negative", 1), ("large", 0), ("zeros", 0))
"""The sets after the first one: the kind of elements, and 1 if free dimensions are to be 1."""

COPIES = 4
"""Approximate number of runs of each set of inputs: source and result, on two engines."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A set of inputs, and a description of it for messages."""

    what: str
    feeds: Feeds
    sizes: Sizes

    @property
    def is_large(self) -> bool:
        """True if its elements are generated large numbers."""
        return self.what.startswith("large")


class CannotTryError(Exception):
    """The reason why there are no inputs on which a model can run."""


class BeyondBudgetError(CannotTryError):
    """A run needs more time or memory than the budget has, on any engine."""


class TooLargeError(BeyondBudgetError):
    """The declared inputs need more memory than the budget has."""


class TooSlowError(CannotTryError):
    """A run takes most of the budget's time; another engine may be faster."""


class Choice(NamedTuple):
    """Sizes of the free dimensions of a problem, and a seed of its inputs."""

    problem: Problem
    sizes: Sizes
    seed: int = 0


def choices(graph: Graph, clock: Clock) -> Iterator[Choice]:
    """Choices to try, the most likely first. They are searched while they are read, and are the same for all engines.

    Raises CannotTryError if all need more time or memory than the budget has.
    """
    problem = free_problem(graph, {}, {})
    yield from (Choice(problem, sizes) for sizes in _choices(problem, clock))
    yield from (Choice(problem, *found) for found in _searched_choices(problem, clock))
    yield from SearchTime(clock.budget.seconds * SHARE_OF_SOLVING).spend(_choices_of_other_lengths(problem, clock))


def trials(
    graph: Graph,
    run: Run,
    given: Sequence[Mapping[str, Any]],
    clock: Clock,
    notes: list[str],
    tried: Iterable[Choice] | None = None,
) -> Iterator[tuple[Trial, list[Any]]]:
    """Sets of inputs that the source accepts, each with its outputs. The inputs are the user's, or generated for the first choice
    with which the source runs; by default, of `choices`.

    Raises CannotTryError if there is none. Omissions are appended to `notes`.
    """
    _refuse_endless(graph)
    if given:
        for i, arrays in enumerate(given):
            feeds = from_arrays(graph, arrays)
            yield Trial(f"given inputs {i + 1}", feeds, {}), _timed(run, feeds, clock)
        return
    choice, feeds, results, seconds = _first(choices(graph, clock) if tried is None else tried, run, clock)
    yield Trial(_text("drawn", choice.sizes), feeds, choice.sizes), results
    yield from _others(choice, run, clock, seconds, notes)


def _timed(run: Run, feeds: Feeds, clock: Clock) -> list[Any]:
    with within(clock.left / 2), memory_limit(_most(clock)):
        return run(feeds)


def _most(clock: Clock) -> int:
    """Number of bytes by which a run may increase the memory of the process, with room for shapes that are not known beforehand."""
    return 2 * clock.budget.bytes + (1 << 30)


def _first(tried: Iterable[Choice], run: Run, clock: Clock) -> tuple[Choice, Feeds, list[Any], float]:
    """The first choice with which the source runs, with its feeds, results and time in seconds. Batches are 2, since 1 hides
    wrong shapes. After a run that takes too long or too much memory, only smaller sizes are tried, until a second one does.
    """
    failure: OrtconvError | None = None
    beyond: tuple[Sizes, CannotTryError] | None = None
    for choice in tried:
        problem, sizes, seed = choice
        if beyond is not None and not _are_smaller(sizes, beyond[0]):
            continue
        feeds = make(problem, sizes, seed)
        began = time.monotonic()
        try:
            return choice, feeds, _timed(run, feeds, clock), time.monotonic() - began
        except (TimeLimitError, MemoryError) as error:
            reason = _too_much(problem, clock, error)
            if beyond is not None or not problem.free or isinstance(reason, BeyondBudgetError):
                raise reason from error
            beyond = sizes, reason
        except BackendError as error:
            failure = failure or error
    if beyond is not None:
        raise beyond[1]
    raise failure or CannotTryError("no sizes of the free dimensions fit the model")


def _are_smaller(sizes: Sizes, limits: Sizes) -> bool:
    """True if a run with these sizes needs much less time and memory."""
    least, most = (math.prod(max(1, size) for size in some.values()) for some in (sizes, limits))
    return 4 * least <= most


def _too_much(problem: Problem, clock: Clock, error: Exception) -> CannotTryError:
    """The reason why inputs cannot be tried, for a run that exceeds a limit. A Loop may not end, on any engine."""
    if isinstance(error, MemoryError):
        return CannotTryError(f"a run needs more memory than there is: {error}")
    may_not_end = any(node.is_op("Loop") for node in problem.graph.walk())
    kind = BeyondBudgetError if may_not_end else TooSlowError
    return kind(f"one run takes longer than half of {clock.budget.seconds:g} s")


def searched(problem: Problem) -> Iterator[Feeds]:
    """Inputs of sizes that only runs of the graph on numpy find. The search takes its share of the default budget."""
    for sizes, seed in _searched_choices(problem, Clock(Budget())):
        yield make(problem, sizes, seed)


def _choices_of_other_lengths(problem: Problem, clock: Clock) -> Iterator[Choice]:
    for other in problem.with_other_lengths():
        solved = [sizes for sizes, needed in _sized(other, clock) if needed <= clock.budget.bytes]
        chosen = (sizes | elements for sizes in solved[:1] for elements in other.other_targets())
        yield from (Choice(other, sizes) for sizes in chain(solved, chosen))


def _searched_choices(problem: Problem, clock: Clock) -> Iterator[tuple[Sizes, int]]:
    """Sizes that are found by running the model, and seeds of its inputs."""
    if not can_be_met(problem):
        return
    for sizes in clock.by_trial.spend(_observed_choices(problem, clock)):
        yield sizes, 0
    yield from clock.by_trial.spend(_climbed_choices(problem, clock))


def _observed_choices(problem: Problem, clock: Clock) -> Iterator[Sizes]:
    """Sizes for models whose shapes inference cannot determine: the model runs as far as possible, and its shapes are observed."""
    if not problem.free:
        return
    observing = replace(problem, observe=partial(_observed, problem, clock))
    for size, batch in product((32, 64), (2, 1)):
        solution = solve(observing, problem.first(size, batch))
        if footprint(problem.graph, solution.shapes).bytes <= clock.budget.bytes:
            yield solution.sizes


def _observed(problem: Problem, clock: Clock, sizes: Sizes, inferred: Shapes) -> Shapes:
    computed = _computed(problem, clock, sizes, inferred)
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
            note(node.outputs, results if type(results) is tuple else (results,))
            return results

        return run

    if footprint(problem.graph, inferred).bytes > clock.budget.bytes // 4:
        return found
    feeds = make(problem, sizes, seed)
    try:
        with memory_limit(_most(clock)):
            for value, result in stream(problem.graph, [Numpy(watch=watch)], feeds, piece_size=1):
                found[value] = getattr(result, "shape", None)
    except TimeLimitError:
        raise
    except (OrtconvError, MemoryError):
        pass
    return found


def _climbed_choices(problem: Problem, clock: Clock) -> Iterator[tuple[Sizes, int]]:
    """Sizes for models with unknown demands, such as computed targets of a Reshape, and seeds of their inputs."""
    seeds = [n * SEEDS for n in range(_draws(problem))]
    plain = [problem.first(size, batch) for size, batch in ((2, 2), (8, 1))]
    plain += [met for start in plain if (met := solve(problem, start).sizes) not in plain]
    starts = [*plain, *(start | chosen for chosen in problem.other_targets() for start in plain)]
    for runs, start, seed in product(CLIMBS if problem.free else (1,), starts, seeds):
        sizes = climb(problem, start, partial(_reach, problem, clock, seed), runs)
        if sizes is not None:
            yield sizes, seed


def _draws(problem: Problem) -> int:
    """Number of draws of the inputs: one at random, and one for each case of the conditions; more if shapes depend on elements."""
    count = sum(map(is_condition, problem.made))
    cases = 1 + 2 ** min(count, MOST_CONDITIONS) if count else 1
    nodes = (node for node in problem.graph.walk() if not node.subgraphs)
    return max(cases, DRAWS) if any(traits(node).has(Trait.SHAPED_BY_DATA) for node in nodes) else cases


def _reach(problem: Problem, clock: Clock, seed: int, sizes: Sizes) -> Reached:
    made = _computed(problem, clock, sizes, infer_shapes(problem, sizes), seed)
    return Reached(len(made), next((n for n in problem.graph if made.keys().isdisjoint(n.outputs)), None))


def _choices(problem: Problem, clock: Clock) -> Iterator[Sizes]:
    if not problem.free:
        _check_room(problem, problem.fixed, clock)
        yield problem.fixed
        return
    seen: list[Sizes] = []
    most = 0
    for sizes, needed in _sized(problem, clock):
        if needed > clock.budget.bytes:
            most = max(most, needed)
        elif sizes not in seen:
            seen.append(sizes)
            yield sizes
    if not seen and most:
        raise BeyondBudgetError(f"a run needs {most / 2**30:.3g} GiB, and the budget is {clock.budget}")


def _sized(problem: Problem, clock: Clock) -> Iterator[tuple[Sizes, int]]:
    """Sizes that meet the graph's demands, with their bytes. If a batch would be 1, 2 is tried first."""
    pairs = zip_longest(sizes_to_try(problem, 2), sizes_to_try(problem, 1) if problem.batches else ())
    tried = filter(None, chain.from_iterable(pairs))
    first = next(tried)
    if any(first[0][name] == 1 for name in problem.batches):
        yield from islice(sizes_to_try(problem, 2, keep_batch=True), 1)
    yield first
    yield from SearchTime(clock.budget.seconds * SHARE_OF_SOLVING).spend(tried)


def _check_room(problem: Problem, sizes: Sizes, clock: Clock) -> None:
    found = footprint(problem.graph, infer_shapes(problem, sizes))
    if found.bytes > clock.budget.bytes:
        raise TooLargeError(
            f"a run needs {found.bytes / 2**30:.4g} GiB at {found.node}, and the budget is {clock.budget}"
        )


def _others(
    choice: Choice, run: Run, clock: Clock, seconds: float, notes: list[str]
) -> Iterator[tuple[Trial, list[Any]]]:
    """The sets after the first, as far as time allows: with other sizes, and with unusual elements."""
    problem, first, seed = choice
    room = clock.budget.seconds * SHARE_OF_EXTRAS
    left_out: list[str] = []
    for kind, wants_ones in PAIRS:
        if seconds * COPIES > room:
            left_out.append(kind)
            continue
        for sizes in _smaller(problem, first) if wants_ones else (first,):
            began = time.monotonic()
            feeds = make(problem, sizes, seed + 1 + wants_ones, kind=kind)
            try:
                results = _timed(run, feeds, clock)
            except (BackendError, MemoryError):
                continue
            room -= (time.monotonic() - began) * COPIES
            yield Trial(_text(kind, sizes), feeds, sizes), results
            break
    if left_out:
        notes.append(f"{', '.join(left_out)} inputs were left out for time; --validate-budget gives more")


def _smaller(problem: Problem, first: Sizes) -> Iterator[Sizes]:
    """Sizes that differ from the first ones, if the model allows it: 1 for all, or 1 for batches; at last the first sizes again."""
    for names in (problem.free, [n for n in problem.free if n in problem.batches]):
        sizes = {**first, **dict.fromkeys(names, 1)}
        if sizes != first and is_solved(problem, sizes):
            yield sizes
    yield first


def _text(kind: str, sizes: Sizes) -> str:
    return f"{kind} inputs" + (f" with {', '.join(f'{n}={s}' for n, s in list(sizes.items())[:4])}" if sizes else "")


MOST_TURNS = 1 << 31
"""Loops with at least this number of turns count as endless."""


def _refuse_endless(graph: Graph) -> None:
    for node in graph.walk():
        if node.op == "Loop" and node.domain == "" and _is_endless(node):
            raise BeyondBudgetError(f"{node.label} has more than 2^31 turns")


def _is_endless(node: Node) -> bool:
    """True if a Loop has a constant number of turns that counts as endless, and no condition that ends it earlier."""
    count, going, body = node.input(0), node.input(1), node.subgraphs[0]
    turns = None if count is None else count.constant
    if turns is None or turns.size != 1 or int(turns.numpy().reshape(())) < MOST_TURNS:
        return False
    if going is not None and not _is_true(going):
        return False
    value = _copied(body.outputs[0])
    return value in body.inputs[1:2] or _is_true(value)


def _copied(value: Value) -> Value:
    """The value that Identity nodes copy to this one."""
    while value.producer is not None and value.producer.op == "Identity" and value.producer.inputs[0] is not None:
        value = value.producer.inputs[0]
    return value


def _is_true(value: Value) -> bool:
    return value.constant is not None and bool(value.constant.numpy().reshape(()))
