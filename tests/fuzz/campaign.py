"""Examines many seeds in worker processes, counts the outcomes, and writes one line for each fault."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from ortconv.errors import OrtconvError
from ortconv.watch import ProcessLimits
from ortconv.workers.pool import LocalPool

SECONDS = 10.0
"""An examination that takes longer is a fault."""

LIMITS = ProcessLimits(60.0, 2 << 30)


class Outcome(NamedTuple):
    """The kind of an outcome, and, for a fault, a text that describes it."""

    kind: str
    fault: str = ""


Examine = Callable[[int], Outcome]


def timed(examine: Examine, seed: int) -> Outcome:
    """The outcome of a seed; a fault if it takes too long."""
    start = time.thread_time()
    found = examine(seed)
    seconds = time.thread_time() - start
    return Outcome("slow", f"{seconds:.1f} s, {found.kind} {found.fault}") if seconds > SECONDS else found


def run(examine: Examine, seeds: Iterable[int], jobs: int, log: Path | None, warm: Sequence[str] = ()) -> Counter[str]:
    """Examine all seeds. A death of the process, or an error of ortconv that `examine` does not expect, is a fault.

    `warm` are functions that new workers call first, MODULE:NAME.
    """
    counts: Counter[str] = Counter()
    waiting: deque[tuple[int, Future[Outcome]]] = deque()
    with LocalPool(jobs, LIMITS, warm) as pool:
        for done, seed in enumerate(seeds):
            waiting.append((seed, pool.submit(timed, examine, seed)))
            if len(waiting) > 4 * jobs:
                _take(*waiting.popleft(), counts, log)
            if done % 1000 == 999:
                print(f"{done + 1} seeds, the last {seed}: {summary(counts)}", file=sys.stderr, flush=True)
        while waiting:
            _take(*waiting.popleft(), counts, log)
    return counts


def summary(counts: Counter[str]) -> str:
    """The outcomes, the most frequent first."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def _take(seed: int, future: Future[Outcome], counts: Counter[str], log: Path | None) -> None:
    try:
        found = future.result()
    except OrtconvError as error:
        found = Outcome(type(error).__name__, str(error))
    counts[found.kind] += 1
    if found.fault:
        print(f"seed {seed}: {found.kind}: {found.fault}", flush=True)
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps({"seed": seed, "kind": found.kind, "fault": found.fault}) + "\n")
