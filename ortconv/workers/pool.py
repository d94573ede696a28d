"""Workers on this machine, as an executor of concurrent.futures.

If a worker dies or exceeds the time or memory limit, only its task fails: the future gets the error, and another worker runs the
next task.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from ortconv.errors import CrashError, InternalError, OrtconvError
from ortconv.watch import MOST_ATTEMPTS, Activity, Death, ProcessLimits
from ortconv.workers.worker import Done, Task

NONE = ProcessLimits()

MOST_SERVERS = 4
"""Number of restarts of the fork server after it died."""


class ServerDiedError(Exception):
    """The fork server died, and its workers with it."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process, its channel, and its current task."""

    id: int
    channel: Connection
    task: Task | None = None
    future: Future[Any] | None = None
    activity: Activity | None = None
    """None until the worker has begun the task."""
    since: float = 0.0


class ForkServer:
    """Starts workers as forks of a process that has done all imports (Linux)."""

    def __init__(self, warm: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = _python("fork", theirs.fileno(), warm)
        self._lines = self._control.makefile("rb")
        self._ended: dict[int, int] = {}

    def start(self) -> Worker:
        ours, theirs = Pipe()
        with theirs:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError:
                raise ServerDiedError from None
        while (message := self._read())[0] != "forked":
            pass
        return Worker(message[1], ours)

    def exit_code(self, worker: Worker) -> int:
        while worker.id not in self._ended:
            self._read()
        return self._ended.pop(worker.id)

    def _read(self) -> list[Any]:
        line = b""
        with suppress(ConnectionError):  # it died without having read all requests
            line = self._lines.readline()
        if not line:
            raise ServerDiedError
        message: list[Any] = json.loads(line)
        if message[0] == "ended":
            self._ended[message[1]] = message[2]
        return message

    def close(self) -> None:
        """Kill all workers."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._control.close()
        self._process.wait()


class Spawner:
    """Starts workers as separate processes, each of which does its own imports (macOS, Windows)."""

    def __init__(self, warm: Sequence[str]) -> None:
        self._warm = warm
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> Worker:
        ours, theirs = Pipe()
        with theirs:
            process = _python("serve", theirs.fileno(), self._warm)
        self._processes[process.pid] = process
        return Worker(process.pid, ours)

    def exit_code(self, worker: Worker) -> int:
        return self._processes.pop(worker.id).wait()

    def close(self) -> None:
        """Kill all workers."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


Starter = ForkServer | Spawner
"""Starts workers and reports their exit codes."""


def _python(role: str, descriptor: int, warm: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process of `ortconv.workers.worker` that inherits the descriptor and has this process's module search path."""
    command = [sys.executable, "-P", "-m", "ortconv.workers.worker", role, str(descriptor), *warm]
    shown = None if os.environ.get("ORTCONV_DEBUG") else subprocess.DEVNULL
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    more: dict[str, Any] = {}
    if sys.platform == "win32":
        os.set_handle_inheritable(descriptor, True)
        more["startupinfo"] = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [descriptor]})
    else:
        more["pass_fds"] = [descriptor]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown, env=environment, **more)


class LocalPool(Executor):
    """An executor of `jobs` workers. Functions and arguments are pickled; the limits hold for each call.

    `warm` are functions to call in a new process, MODULE:NAME; they import the modules that the work needs. With `fresh`, each call
    has a new worker.
    """

    starter: Callable[[Sequence[str]], Starter] = ForkServer if sys.platform == "linux" else Spawner

    def __init__(
        self, jobs: int, limits: ProcessLimits = NONE, warm: Sequence[str] = (), *, fresh: bool = False
    ) -> None:
        self.jobs, self.limits, self._warm, self._fresh = jobs, limits, warm, fresh
        self._waiting: deque[tuple[Task, Future[Any]]] = deque()
        self._unfinished: dict[Future[Any], None] = {}  # in the order of submission
        self._workers: list[Worker] = []
        self._is_closing = self._is_aborted = False
        self._failure: OrtconvError | None = None
        self._awake, self._wake = Pipe(duplex=False)
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        if self._is_closing:
            raise RuntimeError("the pool is closed")
        future: Future[Any] = Future()
        self._unfinished[future] = None
        future.add_done_callback(lambda done: self._unfinished.pop(done, None))
        self._waiting.append((Task(partial(function, **keywords), arguments, self.limits, {}, self._fresh), future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._manage, name="ortconv batch", daemon=True)
            self._thread.start()
        self._wake.send_bytes(b"+")
        if self._failure is not None:
            self._give_up(self._failure)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers: at once with `cancel_futures`, else after the last task."""
        self._is_closing, self._is_aborted = True, self._is_aborted or cancel_futures
        self._wake.send_bytes(b"+")
        if wait and self._thread is not None:
            self._thread.join()

    def busy(self) -> list[tuple[Future[Any], Activity, float]]:
        """The running tasks: future, activity, and seconds since the task began."""
        now = time.monotonic()
        workers = list(self._workers)
        return [(w.future, w.activity or Activity(), now - w.since) for w in workers if w.future is not None]

    # ------------------------------------------------------------------ the thread that manages the workers

    def _manage(self) -> None:
        failure: OrtconvError = CrashError("the workers ended before this was done", hint="try --resume")
        try:
            self._serve()
        except OSError as error:
            failure = CrashError(f"the workers ended before this was done: {error}", hint="try --resume")
        except Exception as error:
            failure = InternalError(f"the workers cannot be managed: {error!r}")
            failure.__cause__ = error
        finally:
            self._requeue()
            self._give_up(failure)

    def _serve(self) -> None:
        """Run tasks until none is needed, or until the last server died."""
        for _ in range(MOST_SERVERS):
            starter = self.starter(self._warm)
            try:
                while self._is_needed():
                    self._step(starter)
                return
            except ServerDiedError:
                self._requeue()
            finally:
                starter.close()

    def _give_up(self, failure: OrtconvError) -> None:
        """Fail all tasks without a result; cancel those that wait if `shutdown` was called to do so."""
        self._failure = failure
        for future in list(self._unfinished):
            if not (self._is_aborted and future.cancel()) and not future.done():
                future.set_exception(copy(failure))  # each gets the name of its model

    def _is_needed(self) -> bool:
        if self._is_closing and (self._is_aborted or not self._waiting):
            return not self._is_aborted and any(w.future is not None for w in self._workers)
        return True

    def _requeue(self) -> None:
        """Put the tasks of the workers back into the queue after their server died."""
        for worker in self._workers:
            worker.channel.close()
            if worker.task is not None and worker.future is not None:
                self._waiting.appendleft((worker.task, worker.future))
        self._workers = []

    def _step(self, starter: Starter) -> None:
        """Hand waiting tasks to idle workers, and receive the next messages."""
        while self._waiting and (worker := self._idle(starter)) is not None:
            self._send(worker, starter)
        workers: dict[object, Worker] = {worker.channel: worker for worker in self._workers}
        for ready in wait([self._awake, *(worker.channel for worker in self._workers)]):
            if ready is self._awake:
                self._awake.recv_bytes()
            else:  # on Windows a PipeConnection, which is no Connection
                self._receive(workers[ready], starter)

    def _idle(self, starter: Starter) -> Worker | None:
        """A worker without a task; it is started if there are fewer than `jobs`."""
        idle = next((worker for worker in self._workers if worker.future is None), None)
        if idle is None and len(self._workers) < self.jobs:
            self._workers.append(idle := starter.start())
        return idle

    def _send(self, worker: Worker, starter: Starter) -> None:
        task, future = self._waiting.popleft()
        if not (future.running() or future.set_running_or_notify_cancel()):
            return
        try:
            worker.channel.send(task)
        except OSError:  # it died while it had nothing to do
            self._waiting.appendleft((task, future))
            self._remove(worker, starter)
        except Exception as error:
            future.set_exception(InternalError(f"the task cannot be sent: {error}"))
        else:
            worker.task, worker.future, worker.since = task, future, time.monotonic()
            worker.activity = None

    def _receive(self, worker: Worker, starter: Starter) -> None:
        try:
            message = worker.channel.recv()
        except Exception:  # the channel ends with the worker, perhaps within a message
            self._on_death(worker, starter)
            return
        if isinstance(message, Activity):
            worker.activity = message
        elif isinstance(message, Done) and worker.future is not None:
            future, worker.task, worker.future = worker.future, None, None
            try:
                if message.worn:
                    self._remove(worker, starter)
            finally:  # even if the server is found dead
                if message.error is None:
                    future.set_result(message.value)
                else:
                    future.set_exception(message.error)

    def _remove(self, worker: Worker, starter: Starter) -> int:
        worker.channel.close()
        code = starter.exit_code(worker)  # the death of the server shows here, and takes all workers back
        self._workers.remove(worker)
        return code

    def _on_death(self, worker: Worker, starter: Starter) -> None:
        """Fail the task of a worker that died. If a risky call killed it, start the task again without that call."""
        death = Death(self._remove(worker, starter), worker.activity or Activity())
        task, future = worker.task, worker.future
        if task is None or future is None:
            return
        new = set(death.activity.calls if worker.activity else ("starting",)) - task.fatal.keys()
        if new and len(task.fatal) < MOST_ATTEMPTS and not (worker.activity and death.is_final):
            fatal = {**task.fatal, **dict.fromkeys(new, death.cause)}
            self._waiting.appendleft((replace(task, fatal=fatal), future))
        else:
            future.set_exception(death.error())
