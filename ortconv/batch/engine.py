"""A batch: independent tasks, an executor of concurrent.futures that runs them, and their results in the order of their ends."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
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


def _outcome(future: Future[Any]) -> Any:
    try:
        return future.result()
    except OrtconvError as error:
        return error
    except Exception as error:
        if type(error).__name__ in ("KilledWorker", "BrokenProcessPool"):
            return CrashError(f"its workers were lost: {error}", hint="look at the workers' logs, then try --resume")
        raise
