"""A Dask cluster as the executor of a batch.

Each thread of a Dask worker has one of ortconv's own workers beside it, in a process that is held to the limits. So a model that
crashes or never ends fails alone, and does not count as a lost machine. Work on a machine that is lost is done again elsewhere.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from ortconv.batch.crew import LEAST_MEMORY
from ortconv.choices import natural
from ortconv.errors import OrtconvError, UsageError
from ortconv.watch import Activity, ProcessLimits
from ortconv.workers.pool import LocalPool

CONNECT = 30
"""Seconds to wait for the scheduler."""


@contextmanager
def cluster(address: str, seconds: float, memory: int | None, warm: Sequence[str]) -> Iterator[tuple[Executor, int]]:
    """An executor on the cluster at an address. For local:N, that is a cluster of N processes, closed at the end of the block."""
    try:
        import distributed
    except ImportError:
        raise UsageError("--cluster needs Dask", hint="pip install 'ortconv[dask]'") from None
    local = address.removeprefix("local:")
    if local != address:
        workers = natural(local)
        if not workers:
            raise UsageError(f"--cluster {address[:80]}: the number of workers is missing", hint="write local:4")
        with _ignoring_interrupts():
            made = distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
            )
    else:
        made = address
    try:
        client = distributed.Client(made, timeout=CONNECT)
    except (OSError, TimeoutError, ValueError) as error:
        hint = "start one with: dask scheduler; and on each machine: dask worker ADDRESS"
        raise UsageError(f"there is no Dask scheduler at {address}: {error}", hint=hint) from None
    try:
        executor = ClusterExecutor(client, ProcessLimits(seconds, memory), tuple(warm))
        yield executor, executor.jobs
    finally:
        client.close()
        if made is not address:
            made.close()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that start in this block leave Ctrl-C to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ClusterExecutor(Executor):
    """An executor of concurrent.futures on a Dask client. The time and memory limits hold for each call."""

    def __init__(self, client: Any, limits: ProcessLimits, warm: tuple[str, ...]) -> None:
        self._client, self._limits, self._warm = client, limits, warm
        self._began: dict[Future[Any], float] = {}
        self.jobs = max(sum(client.nthreads().values()), 1)
        """The number of calls that the cluster can run at a time when the batch begins. It may grow later."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        call = partial(function, *arguments, **keywords)
        far = self._client.submit(_isolated, call, self._limits, self._warm, pure=False)
        self._began[future] = time.monotonic()
        far.add_done_callback(partial(self._end, future))
        return future

    def _end(self, future: Future[Any], far: Any) -> None:
        self._began.pop(future, None)
        try:
            value, error = far.result()
        except Exception as lost:
            future.set_exception(lost)
        else:
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        far.release()

    def busy(self) -> list[tuple[Future[Any], Activity, float]]:
        """The calls that were sent to the cluster and have not ended. Some may still wait for a worker."""
        now = time.monotonic()
        sent = list(self._began.items())[: self.jobs]
        return [(future, Activity(stage="cluster"), now - began) for future, began in sent]


def _isolated(call: Callable[[], Any], limits: ProcessLimits, warm: tuple[str, ...]) -> tuple[Any, OrtconvError | None]:
    """The value of a call, or the ortconv error that it raised, as a value: Dask would repeat a call that raises."""
    from distributed import get_worker

    worker = get_worker()
    threads, room = int(worker.state.nthreads), worker.memory_manager.memory_limit
    if limits.bytes is None and room:
        limits = ProcessLimits(limits.seconds, max(int(room / threads), LEAST_MEMORY))
    try:
        return _pool(limits, warm, threads).submit(call).result(), None
    except OrtconvError as error:
        return None, error


@cache
def _pool(limits: ProcessLimits, warm: tuple[str, ...], jobs: int) -> LocalPool:
    """The pool of workers in this Dask process."""
    return LocalPool(jobs, limits, warm)
