"""Feeds that a model accepts, for single runs and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ortconv.errors import BackendError, OrtconvError, UnsupportedError, UsageError
from ortconv.inputs.budget import Budget, Clock
from ortconv.inputs.feeds import Choice, Draw, Feeds, fitting, free_problem, make, sizes_to_try
from ortconv.inputs.problem import Problem
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.runtime.session import Session

DRAWS = 4
"""Number of sets of inputs if all sizes are known: elements may be refused, such as two that add up to a divisor of 0."""

MEMORY = Budget().bytes
"""Limit on the bytes that the values of a run may occupy if the sizes are generated."""


def first_run(session: Session, names: Sequence[str] | None = None) -> tuple[Feeds, list[Any]]:
    """The first generated feeds that a model accepts, and the outputs of a session for them."""
    return accepted(session.model.graph, partial(session.run, names))


def accepted(
    graph: Graph,
    run: Callable[[Feeds], list[Any]],
    arrays: Mapping[str, Any] | None = None,
    draws: Mapping[str, Draw] | None = None,
    seed: int = 0,
) -> tuple[Feeds, list[Any]]:
    """The first feeds with which a function runs the model, and its results. Inputs that are not in `arrays` are generated.

    Raises UsageError if there are arrays and an input is neither among them nor among the draws.
    """
    failure: BackendError | None = None
    for feeds in candidates(graph, seed, arrays, draws):
        try:
            return feeds, run(feeds)
        except BackendError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def run_on_first(
    model: Model,
    backends: Sequence[str],
    arrays: Mapping[str, Any] | None = None,
    draws: Mapping[str, Draw] | None = None,
    seed: int = 0,
    custom_op_library: Path | None = None,
) -> tuple[str, Feeds, list[Any]]:
    """The first backend that runs a model, with feeds and outputs as of `accepted`. Raises the first error if none does."""
    failure: OrtconvError | None = None
    for name in backends:
        try:
            session = Session(model, [name], custom_op_library=custom_op_library)
            return name, *accepted(model.graph, partial(session.run, None), arrays, draws, seed)
        except (BackendError, UnsupportedError) as error:
            failure = failure or error
    raise failure or UsageError("there is no backend to run the model")


def candidates(
    graph: Graph, seed: int = 0, arrays: Mapping[str, Any] | None = None, draws: Mapping[str, Draw] | None = None
) -> Iterator[Feeds]:
    """Feeds for the required inputs, one set for each initial size of the free dimensions; DRAWS if none is free and all
    inputs are generated.

    Free dimensions get the sizes that the graph implies; leading dimensions that are free are a batch of 1. The same
    seed gives the same feeds. `arrays` are fed unchanged. Raises UnsupportedError if all sizes need more than MEMORY.
    """
    arrays, draws = arrays or {}, draws or {}
    problem = free_problem(graph, arrays, draws)
    seeds = range(seed, seed + (1 if problem.free or arrays else DRAWS))
    for choice in _choices(problem, seeds, may_search=not (arrays or draws)):
        yield {**arrays, **make(choice.problem, choice.sizes, choice.seed, draws, choice.kind)}


def _choices(problem: Problem, seeds: Sequence[int], *, may_search: bool) -> Iterator[Choice]:
    """Sizes that meet the demands of the graph, with these seeds; then those that only runs of the graph on numpy find."""
    least = yield from fitting(problem, sizes_to_try(problem, batch=1), MEMORY, seeds)
    if may_search:
        from ortconv.inputs.size_search import searched

        yield from searched(problem, Clock(Budget()))
    if least > MEMORY:
        raise UnsupportedError(
            f"the model needs {least / 2**30:.3g} GiB with the sizes that fit it", hint="give inputs of your own"
        )
