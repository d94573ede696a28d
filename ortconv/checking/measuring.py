"""Measurements of two models side by side, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from ortconv.backends.onnxruntime_app import SessionSettings
from ortconv.batch.crew import Crew, crew_of
from ortconv.batch.engine import Engine
from ortconv.errors import OrtconvError, UnsupportedError
from ortconv.inputs.feeds import Feeds
from ortconv.models import is_ort
from ortconv.tuning.candidate import median_load, median_turn
from ortconv.tuning.intervals import Interval, interval, log_ratio
from ortconv.tuning.measuring import Block, Entrant, measure_block, measure_memory

BLOCKS = 7
"""Number of processes in which both models run in turns. Each gives one ratio."""

MEMORY_RUNS = 3
"""Number of processes in which the memory of each model is measured. The smallest peak counts."""

T = TypeVar("T")
R = TypeVar("R")


class MeasuredRatios(NamedTuple):
    """Ratios of the model's times to the base's, with the base's seconds, by metric; and peak bytes of model and base."""

    ratios: Mapping[str, tuple[Interval, float]]
    memory: tuple[int, int] | None


def measure_both(model: Path, base: Path, feeds: Feeds, library: Path | None = None) -> MeasuredRatios:
    """Run two models on the same inputs. If a run fails, its error is raised."""
    entrants = _entrant(base), _entrant(model)
    blocks = [Block(entrants, number, library) for number in range(BLOCKS)]
    with crew_of(None, 1, None, None, isolated=True, fresh=True) as crew:
        times = _each(partial(measure_block, feeds=feeds), blocks, crew)
        peaks = _each(partial(measure_memory, feeds=feeds, library=library), entrants * MEMORY_RUNS, crew)
    for own in (one for block in times for one in block):
        if own.error is not None:
            raise UnsupportedError(own.error)
    bases = [a for a, _ in times]
    ratios = {
        "latency": (interval([log_ratio(b.turns, a.turns) for a, b in times]), median_turn(bases)),
        "load": (interval([log_ratio([b.load], [a.load]) for a, b in times]), median_load(bases)),
    }
    return MeasuredRatios(ratios, _least(peaks[1::2], peaks[::2]))


def _entrant(path: Path) -> Entrant:
    return Entrant(str(path), SessionSettings(), is_source=not is_ort(path))


def _least(model: Sequence[int | None], base: Sequence[int | None]) -> tuple[int, int] | None:
    """The smallest peaks in bytes; None if the system does not report them."""
    known = [[peak for peak in peaks if peak is not None] for peaks in (model, base)]
    return (min(known[0]), min(known[1])) if all(known) else None


def _each(work: Callable[[T], R], items: Iterable[T], crew: Crew) -> list[R]:
    """The results of some calls, made one after the other. The first error is raised."""
    found = []
    for _, outcome in Engine(work, crew).run(items):
        if isinstance(outcome, OrtconvError):
            raise outcome
        found.append(outcome)
    return found
