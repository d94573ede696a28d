"""The executor of a batch: this process, workers on this machine, a cluster, or an executor of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Any

from ortconv.errors import OrtconvError, UsageError
from ortconv.process import usable_cores, usable_memory
from ortconv.watch import ProcessLimits
from ortconv.workers.pool import LocalPool

TIMEOUT = 3600.0
"""Limit on the time for one model, in seconds."""

WARM = ("ortconv.batch.work:warm_up",)
"""Functions that a new worker calls before its first task. They import the modules that all verbs need."""

WARM_TO_CONVERT = ("ortconv.batch.work:warm_up_to_convert",)
"""The same for conversions without validation, which need fewer modules."""

SHARE = 0.9
"""Share of the machine's memory that all workers together may use."""

LEAST_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Crew:
    """An executor and the number of tasks that it runs at a time. If `is_local`, it sees the files of this machine."""

    executor: Executor
    jobs: int
    is_local: bool


@contextmanager
def crew_of(
    executor: Executor | str | None,
    jobs: int | None,
    timeout: float | None,
    memory: int | None,
    *,
    isolated: bool,
    fresh: bool = False,
    warm: Sequence[str] = WARM,
) -> Iterator[Crew]:
    """Context manager: the executor that does the work within the block. With `isolated`, it uses processes with the limits; with
    `fresh`, a new process for each piece of work. New processes first call the functions named in `warm`.

    UsageError for limits with an executor of the caller, for fewer jobs than one, and for negative limits.
    """
    _check_limits(jobs, timeout, memory, own=isinstance(executor, Executor))
    if isinstance(executor, Executor):
        yield Crew(executor, jobs or getattr(executor, "_max_workers", None) or usable_cores(), is_local=False)
        return
    jobs, timeout = jobs or usable_cores(), TIMEOUT if timeout is None else timeout
    if executor is not None:
        from ortconv.batch.cluster import cluster

        with cluster(executor, timeout, memory, warm) as (far, many):
            yield Crew(far, many, is_local=False)
        return
    if not isolated:
        yield Crew(InlineExecutor(), 1, is_local=True)
        return
    pool = LocalPool(jobs, ProcessLimits(timeout, memory_share(jobs) if memory is None else memory), warm, fresh=fresh)
    try:
        yield Crew(pool, jobs, is_local=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _check_limits(jobs: int | None, timeout: float | None, memory: int | None, *, own: bool) -> None:
    """Raise UsageError for a number out of range, and for limits with the caller's `own` executor."""
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs is {jobs}", hint="it must be 1 or more; None means one for each core")
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"timeout is {timeout}", hint="it must be 0 or more seconds; None means an hour")
    if memory is not None and index(memory) < 0:
        raise UsageError(f"memory is {memory}", hint="it must be 0 or more bytes; None means a share of the machine's")
    if own and not timeout is memory is None:
        hint = "leave the limits out, or leave the work to ortconv's own workers"
        raise UsageError("an executor of your own knows no limits", hint=hint)


def memory_share(jobs: int) -> int | None:
    """Memory limit of each worker in bytes; None if the machine's memory is not known."""
    usable = usable_memory()
    return None if usable is None else max(int(usable * SHARE / jobs), LEAST_MEMORY)


class InlineExecutor(Executor):
    """An executor that runs each task in this thread, at `submit`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **keywords))
        except OrtconvError as error:
            future.set_exception(error)
        return future
