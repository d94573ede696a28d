"""Chooses the inputs on which a validation runs source and result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ortconv.errors import BackendError, OrtconvError, UsageError
from ortconv.inputs.budget import SHARE_OF_EXTRAS, BeyondBudgetError, CannotTryError, Clock, TooSlowError
from ortconv.inputs.feeds import Choice, Feeds, from_arrays, make
from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.sizes import is_solved
from ortconv.ir.graph import Graph, Node, Value
from ortconv.process import memory_limit
from ortconv.runtime.deadline import TimeLimitError, within

Run = Callable[[Feeds], list[Any]]

FURTHER_SETS = (("negative", True), ("large", False), ("zeros", False))
"""The sets after the first one: the kind of elements, and whether free dimensions are to be 1."""

LIMIT, QUICK = 1 / 2, 1 / 20
"""Shares of the remaining time for one run, and for one of a loop without a limit on its turns while there are other elements."""

OTHER_ELEMENTS = (("fraction", 0), ("negative", 0), ("drawn", 1), ("drawn", 2))
"""Kinds of elements with which a loop may end, and what is added to the seed."""

COPIES = 4
"""Approximate number of runs of each set of inputs: source and result, on two engines."""


class Trial(NamedTuple):
    """A set of inputs, and a description of it for messages."""

    what: str
    feeds: Feeds
    sizes: Sizes
    is_large: bool = False
    """True if its elements are generated large numbers."""


def trials(
    graph: Graph, run: Run, given: Sequence[Mapping[str, Any]], clock: Clock, notes: list[str], tried: Iterable[Choice]
) -> Iterator[tuple[Trial, list[Any]]]:
    """Sets of inputs that the source accepts, each with its outputs. The inputs are the user's, or generated for the first of the
    choices in `tried` with which the source runs.

    Raises CannotTryError if there is none. Omissions are appended to `notes`.
    """
    endless = next((node for node in graph.walk() if node.is_op("Loop") and _is_endless(node)), None)
    if endless is not None:
        raise BeyondBudgetError(f"{endless.label} has more than 2^31 turns")
    if given:
        for i, arrays in enumerate(given):
            try:
                feeds = from_arrays(graph, arrays)
                results = _timed(run, feeds, clock)
            except UsageError as error:
                error.at(node=f"given inputs {i + 1}")
                raise
            yield Trial(f"given inputs {i + 1}", feeds, {}), results
        return
    first = _first(tried, run, clock)
    sizes = first.choice.sizes
    yield Trial(_text(first.choice.kind, sizes), first.feeds, sizes), first.results
    yield from _others(first.choice, run, clock, first.seconds, notes)


def _timed(run: Run, feeds: Feeds, clock: Clock, share: float = LIMIT) -> list[Any]:
    """Run within a share of the remaining time, and within the memory of the budget."""
    with within(clock.left * share, cpu=True), memory_limit(clock.memory_of_run):
        return run(feeds)


class _FirstRun(NamedTuple):
    """A run of the source with a choice of sizes, and its CPU time in seconds."""

    choice: Choice
    feeds: Feeds
    results: list[Any]
    seconds: float


def _first(tried: Iterable[Choice], run: Run, clock: Clock) -> _FirstRun:
    """The run with the first choice with which the source runs. Batches are 2, since 1 hides wrong shapes.

    After a run that takes too long or too much memory, only smaller sizes are tried, until a second one does.
    """
    failure: OrtconvError | None = None
    beyond: tuple[Sizes, CannotTryError] | None = None
    for choice, share in chain.from_iterable(map(_attempts, tried)):
        problem, sizes, seed, kind = choice
        if beyond is not None and not _are_smaller(sizes, beyond[0]):
            continue
        feeds = make(problem, sizes, seed, kind=kind)
        began = time.process_time()
        try:
            return _FirstRun(choice, feeds, _timed(run, feeds, clock, share), time.process_time() - began)
        except (TimeLimitError, MemoryError) as error:
            if share < LIMIT and isinstance(error, TimeLimitError):
                continue
            reason = _too_much(problem, clock, error)
            if beyond is not None or not problem.free or isinstance(reason, BeyondBudgetError):
                raise reason from error
            beyond = sizes, reason
        except BackendError as error:
            failure = failure or error
    if beyond is not None:
        raise beyond[1]
    raise failure or CannotTryError("no sizes of the free dimensions fit the model")


def _attempts(choice: Choice) -> Iterator[tuple[Choice, float]]:
    """A choice, and its share of the remaining time. Before it, short runs with other elements too, if a loop has no limit on its
    turns: with some elements it may not end.
    """
    if any(node.is_op("Loop") and _has_no_limit(node) for node in choice.problem.graph.walk()):
        yield choice, QUICK
        for kind, more in OTHER_ELEMENTS:
            yield choice._replace(kind=kind, seed=choice.seed + more), QUICK
    yield choice, LIMIT


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


def _others(
    choice: Choice, run: Run, clock: Clock, seconds: float, notes: list[str]
) -> Iterator[tuple[Trial, list[Any]]]:
    """The sets after the first, as far as time allows: with other sizes, and with unusual elements.

    CPU time counts: a busy machine leaves out none of them.
    """
    problem, first, seed, _ = choice
    room = clock.budget.seconds * SHARE_OF_EXTRAS
    left_out: list[str] = []
    for kind, wants_ones in FURTHER_SETS:
        if seconds * COPIES > room:
            left_out.append(kind)
            continue
        for sizes in _smaller(problem, first) if wants_ones else (first,):
            began = time.process_time()
            feeds = make(problem, sizes, seed + 1 + wants_ones, kind=kind)
            try:
                with within(room, cpu=True):
                    results = _timed(run, feeds, clock)
            except TimeLimitError:  # the turns of a Loop depend on the elements
                left_out.append(kind)
                break
            except (BackendError, MemoryError):
                continue
            room -= (time.process_time() - began) * COPIES
            yield Trial(_text(kind, sizes), feeds, sizes, kind == "large"), results
            break
    if left_out:
        needed = clock.budget.seconds + (seconds * COPIES * len(left_out) - room) / SHARE_OF_EXTRAS
        minutes = math.ceil(max(needed, 2 * clock.budget.seconds) / 60)
        notes.append(
            f"{', '.join(left_out)} inputs were left out for time; --validate-budget {minutes}min may have room for them"
        )


def _smaller(problem: Problem, first: Sizes) -> Iterator[Sizes]:
    """Sizes that differ from the first ones, if the model allows it: 1 for all, or 1 for batches; at last the first sizes again."""
    for names in (problem.free, [n for n in problem.free if n in problem.batches]):
        sizes = problem.with_stated({**first, **dict.fromkeys(names, 1)})
        if sizes != first and is_solved(problem, sizes):
            yield sizes
    yield first


def _text(kind: str, sizes: Sizes) -> str:
    return f"{kind} inputs" + (f" with {', '.join(f'{n}={s}' for n, s in list(sizes.items())[:4])}" if sizes else "")


MOST_TURNS = 1 << 31
"""Loops with at least this number of turns count as endless."""


def _is_endless(node: Node) -> bool:
    """True if a Loop has a constant number of turns that counts as endless, and no condition that ends it earlier."""
    going, body = node.input(1), node.subgraphs[0]
    if node.input(0) is None or not _has_no_limit(node):
        return False
    if going is not None and not _is_true(going):
        return False
    value = body.outputs[0].original
    return value in body.inputs[1:2] or _is_true(value)


def _has_no_limit(node: Node) -> bool:
    """True if a Loop has no number of turns, or a constant one that counts as endless."""
    turns = node.constant(0)
    if turns is None:
        return node.input(0) is None
    return turns.size == 1 and int(turns.item()) >= MOST_TURNS


def _is_true(value: Value) -> bool:
    return value.constant is not None and value.constant.size == 1 and bool(value.constant.item())
