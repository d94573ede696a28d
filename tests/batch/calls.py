"""What workers of the tests do."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from ortconv import watch
from ortconv.errors import BackendError, UsageError


def identity(value: int) -> tuple[int, int]:
    """The value, and the process that returned it."""
    return value, os.getpid()


def segfault(*ignored: object) -> None:
    watch.note_stage("crash")
    ctypes.string_at(0)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def sleep(seconds: float) -> None:
    watch.note_stage("sleep")
    time.sleep(seconds)


def allocate(count: int) -> int:
    watch.note_stage("allocate")
    return len(bytearray(count))


def keep(count: int) -> int:
    """Allocate memory that stays."""
    globals()["kept"] = bytearray(count)
    return os.getpid()


def refuse() -> None:
    raise UsageError("no", file="a.onnx", hint="yes")


def unforeseen() -> None:
    raise ZeroDivisionError("oops")


def survive() -> str:
    """What a risky call that aborts amounts to."""
    try:
        with watch.risky("onnxruntime opening a.onnx"):
            os.abort()
    except BackendError as error:
        return error.message


def unpicklable() -> object:
    return lambda: None


def mark(folder: str, name: str) -> str:
    """Note that a call was begun; it takes a while."""
    with open(os.path.join(folder, name), "a") as file:
        file.write("+")
    time.sleep(0.02)
    return name
