"""The process that works on the items of a batch, and on Linux the server that forks such processes with all imports done.

    python -m ortconv.workers.worker fork DESCRIPTOR      the server; it receives the channels of new workers on its socket
    python -m ortconv.workers.worker serve DESCRIPTOR     a worker

Ctrl-C is left to the process that runs the batch: a worker ends when its channel does, or when the server does.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from ortconv import process, watch
from ortconv.errors import InternalError, OrtconvError, UnsupportedError
from ortconv.watch import ProcessLimits

GROWTH = 8
"""A worker whose memory has grown by an eighth of its limit is replaced: leftovers would count against the next model."""


@dataclass(frozen=True, slots=True)
class Task:
    """A call, by reference, with the limits that hold for it and the risky calls that killed it before.

    A worker ends after its call that `is_last`.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    limits: ProcessLimits
    fatal: Mapping[str, str]
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a task: a value or an error. A worker that is `worn` gets no other task."""

    value: Any = None
    error: OrtconvError | None = None
    worn: bool = False


def perform(task: Task) -> Done:
    """Do a task in this process."""
    try:
        with watch.limited(task.limits):
            return Done(task.function(*task.arguments))
    except OrtconvError as error:
        return Done(error=error)
    except MemoryError:
        return Done(error=UnsupportedError("out of memory", hint="try a machine with more memory"))
    except Exception as error:
        if os.environ.get("ORTCONV_DEBUG"):
            traceback.print_exc()
        return Done(error=InternalError(f"{type(error).__name__}: {error}"))


def serve(channel: Connection) -> None:
    """Do the tasks that arrive on a channel, until it is closed."""
    least = process.data_bytes()
    while True:
        try:
            task: Task = channel.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # the function cannot be imported here
            channel.send(Done(error=InternalError(f"{type(error).__name__}: {error}")))
            continue
        watch.begin(channel.send, task.fatal)
        watch.note_stage("")
        done = perform(task)
        grown = task.limits.bytes is not None and process.data_bytes() - least > task.limits.bytes // GROWTH
        worn = task.is_last or grown
        try:
            message = pickle.dumps(Done(done.value, done.error, worn))
        except Exception as error:
            message = pickle.dumps(Done(error=InternalError(f"the result cannot be sent: {error}"), worn=worn))
        with suppress(OSError):
            channel.send_bytes(message)
        if worn:
            return


def fork_workers(control: socket.socket) -> None:
    """Fork a worker for each descriptor that arrives. Report the ids and exit codes of workers as lines of JSON."""
    awake, wake = os.pipe()
    for end in (awake, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake)
    workers: set[int] = set()
    while True:
        ready = select.select([control.fileno(), awake], [], [])[0]
        if awake in ready:
            os.read(awake, 1 << 12)
            _report_ended(control, workers)
        if control.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                break
            workers.add(_fork(control, descriptors[0], (awake, wake)))
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    for worker in workers:  # so that their time counts as this process's
        with suppress(ChildProcessError):
            os.waitpid(worker, 0)


def _fork(control: socket.socket, descriptor: int, others: tuple[int, int]) -> int:
    server = os.getpid()
    worker = os.fork()
    if worker:
        os.close(descriptor)
        _send(control, ["forked", worker])
        return worker
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for other in others:
            os.close(other)
        watch.die_with(server)
        serve(Connection(descriptor))
    finally:
        os._exit(0)


def _report_ended(control: socket.socket, workers: set[int]) -> None:
    with suppress(ChildProcessError):
        while True:
            worker, status = os.waitpid(-1, os.WNOHANG)
            if worker == 0:
                return
            workers.discard(worker)
            _send(control, ["ended", worker, os.waitstatus_to_exitcode(status)])


def _send(control: socket.socket, message: list[Any]) -> None:
    with suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    """Start a process of a command line as above. Further arguments are functions to call first, MODULE:NAME."""
    role, descriptor, *warm = sys.argv[1:]
    process.take_over()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in warm:
        module, _, function = name.partition(":")
        getattr(import_module(module), function)()
    if role == "fork":
        fork_workers(socket.socket(fileno=int(descriptor)))
    elif sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        serve(PipeConnection(int(descriptor)))
    else:
        serve(Connection(int(descriptor)))
    os._exit(0)


if __name__ == "__main__":
    # Tasks are pickled with the names of this module's classes, which are not those of __main__.
    from ortconv.workers.worker import main as run

    run()
