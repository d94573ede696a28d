"""The jobs of a tuning: they run in processes of their own, once for each key, until the time is up.

Results are kept by keys that name everything they depend on. So an interrupted tuning continues.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ortconv.batch.crew import Crew, crew_of, memory_share
from ortconv.batch.engine import Engine
from ortconv.batch.journal import BatchJournal, JournalLine
from ortconv.errors import CrashError, LimitError, OrtconvError

R = TypeVar("R")

MEMO_NAME = ".ortconv-tuning.jsonl"


@dataclass(frozen=True, slots=True)
class MemoLine(JournalLine):
    """A line of the journal of a Memo."""

    key: str
    value: Any


class Memo:
    """JSON values by key, in memory and, with a folder, in a journal there. UsageError if another process has it open."""

    def __init__(self, folder: Path | None) -> None:
        self._journal = None if folder is None else BatchJournal(folder, MEMO_NAME)
        self._known: dict[str, Any] = {}
        if self._journal is not None:
            with open(self._journal.path, "rb") as file:
                entries = filter(None, map(MemoLine.parse, file))
                self._known = {entry.key: entry.value for entry in entries}

    def get(self, key: str) -> Any:
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        self._known[key] = value
        if self._journal is not None:
            self._journal.append(MemoLine(key, value))

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._journal is not None:
            self._journal.close()


def key_of(*parts: object) -> str:
    """A digest of the facts that a value depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Progress(NamedTuple):
    """The progress of a stage: finished jobs and all jobs, and the seconds that are left, None if not known yet."""

    stage: str
    done: int
    total: int
    seconds_left: float | None


Notify = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A call whose result depends on the key alone. Without a key, the result is not stored."""

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def as_it_is(value: Any) -> Any:
    """The decoder of results that are values of JSON."""
    return value


def perform(job: Job) -> Any:
    return job.function(*job.arguments)


@dataclass
class Workshop:
    """Workers, their stored results, and their time limit.

    `seconds` is the budget, None for no limit. A worker may use `timeout` seconds and `memory` bytes for each job. `stages` has the
    seconds of each stage.
    """

    memo: Memo
    jobs: int
    seconds: float | None = None
    timeout: float | None = None
    memory: int | None = None
    notify: Notify | None = None
    stages: dict[str, float] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)
    _crews: dict[bool, tuple[Crew, ExitStack]] = field(default_factory=dict)

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *exception: object) -> None:
        for fresh in list(self._crews):
            self._dismiss(fresh)
        self.memo.close()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    def is_late(self, share: float = 1.0) -> bool:
        """Whether this share of the time is over."""
        return self.seconds is not None and self.elapsed > share * self.seconds

    def report(self, stage: str, done: int, total: int, seconds_left: float | None) -> None:
        if self.notify is not None:
            if self.seconds is not None and seconds_left is not None:
                seconds_left = min(seconds_left, max(self.seconds - self.elapsed, 0.0))
            self.notify(Progress(stage, done, total, seconds_left))

    def each(
        self, stage: str, jobs: Sequence[Job], decode: Callable[[Any], R], *, fresh: bool = False, share: float = 1.0
    ) -> Iterator[tuple[Job, R | OrtconvError]]:
        """Each job with its result or error, as it ends. Once this share of the time is over, the other jobs are dropped.

        `decode` makes a result from its JSON value. With `fresh`, each job has a new process.
        """
        begun = time.monotonic()
        self.report(stage, 0, len(jobs), None)
        with self._timed(stage):
            for done, (job, found) in enumerate(self._found(jobs, decode, fresh), 1):
                left = (time.monotonic() - begun) / done * (len(jobs) - done)
                self.report(stage, done, len(jobs), left)
                yield job, found
                if self.is_late(share):
                    self._dismiss(fresh)
                    return

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to that of a stage."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.stages[stage] = self.stages.get(stage, 0.0) + time.monotonic() - begun

    def run_alone(self, stage: str, job: Job, decode: Callable[[Any], R]) -> R:
        """The result of one job, run in a new process. Its error is raised."""
        with self._timed(stage):
            ((_, found),) = self._found([job], decode, fresh=True)
            if isinstance(found, OrtconvError):
                raise found
            return found

    def _found(
        self, jobs: Sequence[Job], decode: Callable[[Any], R], fresh: bool
    ) -> Iterator[tuple[Job, R | OrtconvError]]:
        unknown = []
        for job in jobs:
            known = self.memo.get(job.key)
            if known is None:
                unknown.append(job)
            else:
                yield job, OrtconvError(known["error"]) if "error" in known else decode(known["value"])
        if not unknown:
            return
        for job, found in Engine(perform, self._crew(fresh)).run(unknown):
            if isinstance(found, CrashError | LimitError):
                yield job, found
                continue
            if job.key:
                is_error = isinstance(found, OrtconvError)
                self.memo.put(job.key, {"error": found.message} if is_error else {"value": _plain(found)})
            yield job, found

    def _crew(self, fresh: bool) -> Crew:
        if fresh not in self._crews:
            memory = memory_share(1) if fresh and self.memory is None else self.memory  # measurements run alone
            resources = ExitStack()
            crew = crew_of(None, self.jobs, self.timeout, memory, isolated=True, fresh=fresh)
            self._crews[fresh] = resources.enter_context(crew), resources
        return self._crews[fresh][0]

    def _dismiss(self, fresh: bool) -> None:
        """Kill the workers, which would disturb the next measurement."""
        if fresh in self._crews:
            self._crews.pop(fresh)[1].close()


def _plain(value: Any) -> Any:
    """A result as values of JSON."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
