"""Measurements in a worker: a block of alternating runs of several files, and the memory of one session in a new process."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortconv import process
from ortconv.backends.onnxruntime_app import AppSession, SessionSettings, prepare
from ortconv.errors import OrtconvError

MOST_TURNS, LEAST_TURNS = 21, 5
BLOCK_SECONDS = 1.0
"""A block has fewer turns if those of the slowest entrant would last longer than this, in seconds."""

TURN_SECONDS = 0.003
MOST_RUNS = 100
"""A turn repeats a run for this time, up to a maximum number."""

COLD = 0.05
"""Seconds from which on a turn has no warm-up run: the effect of cold caches is then small."""

REST = 0.002
MOST_RESTS = 50
"""Threads of a session spin for some time after a run. The next entrant waits in such steps until they sleep."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A file and how it is opened. `is_source`: an .onnx file, which onnxruntime optimizes at level extended."""

    file: str
    settings: SessionSettings
    is_source: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Entrants that run in turns, in an order drawn with the seed. `library` holds custom operators."""

    entrants: tuple[Entrant, ...]
    seed: int
    library: Path | None = None


@dataclass(slots=True)
class Times:
    """The times of an entrant in a block: seconds to open the file, and seconds of a run in each turn. `error`: it failed."""

    load: float = 0.0
    turns: list[float] = field(default_factory=list)
    error: str | None = None


def clock_for(entrants: Sequence[Entrant]) -> Callable[[], float]:
    """A clock: the thread's CPU time if all entrants have one thread, so that other processes do not count; else wall time."""
    # Windows states a fine resolution, and has one of 1/64 s.
    is_fine = sys.platform != "win32" and time.get_clock_info("thread_time").resolution < 1e-6
    return time.thread_time if is_fine and all(e.settings.threads == 1 for e in entrants) else time.perf_counter


def measure_block(block: Block, feeds: Mapping[str, Any]) -> list[Times]:
    """The times of each entrant. They are opened in one process, and each round of turns has another order."""
    found = [Times() for _ in block.entrants]
    order, clock = random.Random(block.seed), clock_for(block.entrants)
    _open(block.entrants[0], feeds, block.library)  # the first load is not measured: it includes the import
    sessions: dict[int, _WarmSession] = {}
    for k in order.sample(range(len(found)), len(found)):
        try:
            start = time.perf_counter()
            session = _open(block.entrants[k], feeds, block.library)
            found[k].load = time.perf_counter() - start
            sessions[k] = _WarmSession(session, clock, block.entrants[k].settings.threads > 1)
        except OrtconvError as error:
            found[k].error = error.message
    turns = min((runner.turns for runner in sessions.values()), default=0)
    for _ in range(turns):
        for k in order.sample(sorted(sessions), len(sessions)):
            found[k].turns.append(sessions[k].turn())
    return found


class _WarmSession:
    """A session after its warm-up run, and the number of runs in a turn."""

    def __init__(self, session: AppSession, clock: Callable[[], float], has_threads: bool) -> None:
        self._session, self._clock, self._has_threads = session, clock, has_threads
        session.run_first()
        start = clock()
        session.run()
        seconds = max(clock() - start, 1e-9)
        self._runs = min(max(math.ceil(TURN_SECONDS / seconds), 1), MOST_RUNS)
        self._is_short = seconds < COLD
        self.turns = min(max(int(BLOCK_SECONDS / seconds), LEAST_TURNS), MOST_TURNS)
        self._rest()

    def turn(self) -> float:
        """Seconds of a run in one turn."""
        run, clock = self._session.run, self._clock
        if self._is_short:
            run()
        start = clock()
        for _ in range(self._runs):
            run()
        seconds = (clock() - start) / self._runs
        self._rest()
        return seconds

    def _rest(self) -> None:
        """Wait until the session's threads sleep."""
        for _ in range(MOST_RESTS if self._has_threads else 0):
            before = time.process_time()
            time.sleep(REST)
            if time.process_time() - before < REST / 4:
                return


def _open(entrant: Entrant, feeds: Mapping[str, Any], library: Path | None) -> AppSession:
    return AppSession(Path(entrant.file), entrant.settings, feeds, library, is_source=entrant.is_source)


def measure_memory(entrant: Entrant, feeds: Mapping[str, Any], library: Path | None) -> int | None:
    """By how many bytes the peak of this process grows while it opens a file and runs it twice; None if peaks cannot be reset.

    The process must be new: a session would reuse the memory of an earlier one.
    """
    prepare()
    if not process.reset_peak():
        return None
    before = process.peak_bytes()
    session = _open(entrant, feeds, library)
    session.run_first()
    session.run()
    after = process.peak_bytes()
    return None if before is None or after is None else after - before
