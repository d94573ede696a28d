"""Processes that do their share of recorded steps, in memory that they have in common.

Threads of Python wait for each other at the interpreter's lock between any two calls of a step. Processes share only what was
recorded before they were forked: arrays in memory of `shared_memory`, constants, and the calls themselves.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat, zip_longest
from typing import Any
from weakref import finalize

import numpy as np

from ortconv.executor.lanes import are_worth_workers
from ortconv.executor.work import Call, ChangedError
from ortconv.ir.tensor import Array

_SPINS = 10_000
"""So often a semaphore is tried, for about a millisecond, before a process sleeps: to wake it takes longer than most steps do."""

_PATIENCE = 10.0
"""Seconds after which a worker that has not done its share counts as lost."""

_CHECKED_AFTER = 1.0
"""Seconds after which a sleeping process looks whether the others are still there."""

Semaphore = Any  # multiprocessing's has no type that can be named


def shared_memory(size: int) -> Array:
    """Bytes that this process and those it forks later have in common."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def lanes_for(threads: int) -> int:
    """Among how many processes, this one included, so many threads' work is divided: at most as many as have cores.

    One where processes cannot be forked. On macOS system libraries do not bear it.
    """
    return min(threads, cores()) if sys.platform == "linux" else 1


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


class Workers:
    """A number of lanes of calls: this process does the first, each of the others is done by a process of its own.

    This process does what no other has begun when it is done with its own: all of it until `start`, and where that fails.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes, self._process = lanes, os.getpid()
        self._pieces: list[Sequence[Sequence[Call]]] = []
        self._others: list[_Worker] = []
        # The index of the piece that is being done, and whether there is a run.
        self._state = memoryview(mmap.mmap(-1, 16)).cast("q")
        self._is_busy = False

    def add(self, piece: Sequence[Sequence[Call]]) -> Call:
        """The call that does calls of each lane at the same time."""
        self._pieces.append(piece)
        return self._do, (len(self._pieces) - 1,)

    def start(self) -> None:
        """Fork the processes, if there is enough for them to do."""
        if not are_worth_workers(self._pieces):
            return
        try:
            with warnings.catch_warnings():
                # Python warns of forks beside threads, which may hold locks. Workers take none but those that fork renews.
                warnings.simplefilter("ignore", DeprecationWarning)
                for lane in range(1, self.lanes):
                    self._others.append(_Worker([piece[lane] for piece in self._pieces], self._state))
        except (OSError, ImportError, AssertionError):  # no semaphores, no processes, or one that may not have children
            self.stop()

    @property
    def are_of_this_process(self) -> bool:
        """False in a process that was forked from the one that has the workers: the memory is theirs."""
        return os.getpid() == self._process

    def begin(self) -> None:
        """Wake the processes for a run. ChangedError where the last one broke off while they worked."""
        if self._is_busy:
            self.stop()
            self._is_busy = False
            raise ChangedError
        self._state[1] = True
        for other in self._others:
            other.wake()

    def end(self) -> None:
        """Let the processes sleep until the next run."""
        self._state[1] = False

    def stop(self) -> None:
        """End the processes."""
        for other in self._others:
            other.stop()
        self._others = []

    def _do(self, index: int) -> None:
        own, *rest = self._pieces[index]
        self._state[0], self._is_busy = index, True
        for other in self._others:
            other.go()
        for function, args in own:
            function(*args)
        for calls, worker in zip_longest(rest, self._others):
            if worker is None or worker.has_not_begun(False):
                for function, args in calls:
                    function(*args)
            elif not (worker.is_ready(False) or worker.is_done()):
                self.stop()
                raise ChangedError
        self._is_busy = False


class _Worker:
    """A process that does its calls of one piece after the other."""

    def __init__(self, pieces: Sequence[Sequence[Call]], state: memoryview) -> None:
        context: Any = multiprocessing.get_context("fork")
        self._awake, begun, self._done = (context.Semaphore(0) for _ in range(3))
        self.go: Callable[[], None] = begun.release
        self.has_not_begun: Callable[[bool], bool] = begun.acquire
        """Given False, takes back what it has not begun."""
        self.is_ready: Callable[[bool], bool] = self._done.acquire
        semaphores = self._awake, begun, self._done
        process = context.Process(target=_work, args=(pieces, state, *semaphores), name="ortconv worker", daemon=True)
        process.start()
        self._process = process
        self.stop = finalize(self, _end, process, os.getpid())

    def wake(self) -> None:
        self._awake.acquire(False)  # what it slept through, or never slept
        self._awake.release()

    def is_done(self) -> bool:
        """Wait for the process. False if it has ended, or takes too long."""
        if _soon(self._done):
            return True
        for _ in range(round(_PATIENCE / _CHECKED_AFTER)):
            if self._done.acquire(True, _CHECKED_AFTER):
                return True
            if not self._process.is_alive():
                return bool(self._done.acquire(False))
        return False


def _end(process: Any, parent: int) -> None:
    if os.getpid() == parent:  # not in another process that was forked from it
        process.kill()
        process.join()


def _work(
    pieces: Sequence[Sequence[Call]], state: memoryview, awake: Semaphore, begun: Semaphore, done: Semaphore
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid()
    with suppress(Exception):
        while os.getppid() == parent:
            if _soon(begun) or (state[1] and begun.acquire(True, _CHECKED_AFTER)):
                for function, args in pieces[state[0]]:
                    function(*args)
                done.release()
            elif not state[1]:
                awake.acquire(True, _CHECKED_AFTER)
    os._exit(1)


def _soon(semaphore: Semaphore) -> bool:
    """Wait for a semaphore without sleeping."""
    acquire = semaphore.acquire
    return any(acquire(False) for _ in repeat(None, _SPINS))
