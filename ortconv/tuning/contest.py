"""A contest of candidates: blocks of runs in turns, until one has won or the others do not differ from it significantly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ortconv.documents import read_as
from ortconv.errors import OrtconvError, UnsupportedError
from ortconv.inputs.feeds import Feeds
from ortconv.process import usable_memory
from ortconv.tuning.candidate import Candidate, median_load, median_turn
from ortconv.tuning.measuring import Block, Times, measure_block, measure_memory
from ortconv.tuning.ranking import Goal, beaten, ranked, ratio
from ortconv.tuning.result import ReferenceFigures
from ortconv.tuning.workshop import Job, Workshop, as_it_is, key_of
from ortconv.wording import counted

LEAST_BLOCKS, MOST_BLOCKS = 3, 8

PRECISION = 0.01
"""Half the width of an interval, as a logarithm, that is narrow enough."""


class Contest:
    """Measures candidates against a base, which runs in each block.

    `about` lists the facts other than files and settings that times depend on: model, inputs, machine and versions.
    """

    def __init__(
        self, workshop: Workshop, base: Candidate, what: str, feeds: Feeds, library: Path | None, about: str
    ) -> None:
        self._workshop, self._feeds, self._library, self._about = workshop, feeds, library, about
        self.base, self._what, self._blocks = base, what, 0

    def described(self) -> ReferenceFigures | None:
        """The base and its figures; None before the first block."""
        base = self.base
        if not base.times:
            return None
        return ReferenceFigures(
            self._what, 1e3 * median_turn(base.times), 1e3 * median_load(base.times), base.bytes, base.peak
        )

    def measure_peaks(self, candidates: Sequence[Candidate]) -> None:
        """Measure the peak memory of each candidate in a new process. A candidate that cannot be opened or run gets its error."""
        by_key = {self._key("memory", [c]): c for c in candidates}
        jobs = [Job(key, measure_memory, (c.entrant, self._feeds, self._library)) for key, c in by_key.items()]
        for job, found in self._workshop.each("measuring memory", jobs, as_it_is, fresh=True):
            candidate = by_key[job.key]
            if isinstance(found, OrtconvError):
                candidate.row.error = found.message
            else:
                candidate.peak = found

    def run(self, candidates: Sequence[Candidate], goal: Goal, stage: str, *, exhaustive: bool = False) -> None:
        """Measure in blocks. Candidates that cannot win any more drop out, unless all are to be measured to the end."""
        alive = _sound(candidates)
        for number in range(MOST_BLOCKS):
            if not alive or (number and self._workshop.is_late()):
                return
            left = None if not number else (MOST_BLOCKS - number) * self._workshop.stages[stage] / number
            self._workshop.report(f"{stage}, {counted(len(alive), 'candidate')}, block", number, MOST_BLOCKS, left)
            self._block(alive, stage)
            alive = _sound(alive)
            if exhaustive:
                continue
            alive = _not_beaten(alive, goal)
            if number + 1 >= LEAST_BLOCKS and _is_settled(alive, goal):
                return

    def _block(self, alive: Sequence[Candidate], stage: str) -> None:
        """One block: candidates with one thread in one new process, the others in another one, since their clocks differ."""
        others = [c for c in alive if c is not self.base]
        for has_threads in (False, True):
            group = [c for c in others if (c.entrant.settings.threads > 1) is has_threads]
            for part in parts(group, self.base.peak or 0, usable_memory()):
                self._measure([self.base, *part], stage)
        if not others:
            self._measure([self.base], stage)
        self._blocks += 1

    def _measure(self, entrants: Sequence[Candidate], stage: str) -> None:
        block = Block(tuple(c.entrant for c in entrants), self._blocks, self._library)
        job = Job(self._key("block", entrants, self._blocks), measure_block, (block, self._feeds))
        found = self._workshop.run_alone(stage, job, partial(read_as, list[Times]))
        if found[0].error is not None:
            raise UnsupportedError(f"{self._what}: {found[0].error}")
        for c, own in zip(entrants, found, strict=True):
            c.note(self._blocks, own, found[0])
            c.update_row()

    def _key(self, kind: str, candidates: Sequence[Candidate], *more: Any) -> str:
        return key_of(
            kind, self._about, [(c.digest, str(c.entrant.settings), c.entrant.is_source) for c in candidates], more
        )


def parts(candidates: Sequence[Candidate], base: int, memory: int | None) -> Iterator[list[Candidate]]:
    """The candidates in groups, so that the sessions of a group and the base fit into half of the memory."""
    part: list[Candidate] = []
    used = base
    for c in candidates:
        if part and memory is not None and used + (c.peak or 0) > memory // 2:
            yield part
            part, used = [], base
        part.append(c)
        used += c.peak or 0
    if part:
        yield part


def _not_beaten(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """The candidates that can still win. The others are stopped."""
    lost = beaten(candidates, goal)
    for c in lost:
        c.is_stopped = True
        c.update_row()
    return [c for c in candidates if c not in lost]


def _sound(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [c for c in candidates if c.row.error is None]


def _is_settled(alive: Sequence[Candidate], goal: Goal) -> bool:
    """Whether one candidate is left, or more blocks would hardly change the order."""
    order = ranked(alive, goal)
    return all(ratio(c, order[0], goal).spread <= PRECISION for c in order[1:])
