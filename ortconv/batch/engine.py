"""A batch: independent tasks, an executor of concurrent.futures that runs them, and their results in the order of their ends."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from ortconv.batch.crew import Crew
from ortconv.errors import CrashError, OrtconvError
from ortconv.watch import Activity

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 4
"""Tasks in the queue for each worker. Workers must not be idle, and a batch of a million tasks must not be in memory at once."""


class Engine(Generic[T, R]):
    """Runs `work` on each item with the executor of a crew."""

    def __init__(self, work: Callable[[T], R], crew: Crew) -> None:
        self._work, self.crew = work, crew
        self._running: dict[Future[R], T] = {}

    def run(self, items: Iterable[T]) -> Iterator[tuple[T, R | OrtconvError]]:
        """Yield each item with its result or ortconv error, in the order in which they end. Any other exception ends the batch."""
        ended: queue.SimpleQueue[Future[R]] = queue.SimpleQueue()
        waiting = iter(items)
        try:
            while True:
                for item in islice(waiting, self.crew.jobs * AHEAD - len(self._running)):
                    future = self.crew.executor.submit(self._work, item)
                    self._running[future] = item
                    future.add_done_callback(ended.put)
                if not self._running:
                    return
                future = ended.get()
                yield self._running.pop(future), _outcome(future)
        finally:
            for future in list(self._running):
                future.cancel()

    def busy(self) -> list[tuple[T, Activity, float]]:
        """The items in progress, each with its current activity and the seconds since it began."""
        found = []
        for future, activity, seconds in getattr(self.crew.executor, "busy", list)():
            item = self._running.get(future)
            if item is not None:
                found.append((item, activity, seconds))
        return found


@dataclass(frozen=True, slots=True)
class Failure:
    """An item of a batch that failed, such as a model that could not be converted, and the error."""

    source: str
    error: OrtconvError

    @property
    def kind(self) -> str:
        """The kind of failure, in a word or two."""
        return self.error.kind

    @property
    def reason(self) -> str:
        """The message of the error, with the node if there is one."""
        return f"{self.error.node}: {self.error.message}" if self.error.node else self.error.message

    def to_dict(self) -> dict[str, Any]:
        """The failure as plain data, for JSON."""
        found = {"source": self.source, "kind": self.kind, "error": self.reason, "exit_code": self.error.exit_code}
        return {**found, "hint": self.error.hint}


class Batch(Iterator[tuple[T, R | Failure]]):
    """Each item with the result or failure of `work` on it, in the order in which they end. `name` is the name of an item."""

    def __init__(self, work: Callable[[T], R], items: Iterable[T], crew: Crew, name: Callable[[T], str]) -> None:
        self._engine, self._name = Engine(work, crew), name
        self._outcomes = self._engine.run(items)

    def __next__(self) -> tuple[T, R | Failure]:
        item, outcome = next(self._outcomes)
        return item, Failure(self._name(item), outcome) if isinstance(outcome, OrtconvError) else outcome

    def busy(self) -> list[tuple[str, Activity, float]]:
        """The names of the items in progress, each with its current activity and the seconds since it began."""
        return [(self._name(item), activity, seconds) for item, activity, seconds in self._engine.busy()]


def _outcome(future: Future[Any]) -> Any:
    try:
        return future.result()
    except OrtconvError as error:
        return error
    except Exception as error:
        if type(error).__name__ in ("KilledWorker", "BrokenProcessPool"):
            return CrashError(f"its workers were lost: {error}", hint="look at the workers' logs, then try --resume")
        raise
