"""A process and its watcher: the stage of the process, the limits on its time and memory, and the error if it dies.

Native code may end a process: an assertion, a wrong address, a library's own exit. So work on models runs in a child: that of the
command line (`ortconv.supervisor`), or a worker of a batch. The child notes its stage, and the calls that have killed processes
before (`risky`). After a death in such a call the watcher starts the work again, and the call is refused with an error.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, NoReturn

from ortconv.errors import BackendError, CrashError, LimitError, OrtconvError
from ortconv.process import limit_data, peak_bytes
from ortconv.wording import counted

MOST_ATTEMPTS = 4
"""Maximum number of attempts at work that dies in another risky call each time."""


LONGEST = 1e9
"""The longest time limit in seconds, 30 years. Timers overflow at larger ones."""


class ProcessLimits(NamedTuple):
    """Time limit of a task in seconds, and memory limit of its process in bytes; None for no limit."""

    seconds: float | None = None
    bytes: int | None = None


class Activity(NamedTuple):
    """The state of a process: a file, a stage, the risky calls that have not returned, and its limits."""

    file: str | None = None
    stage: str = ""
    calls: tuple[str, ...] = ()
    limits: ProcessLimits = ProcessLimits()

    def encode(self) -> bytes:
        return json.dumps([self.file, self.stage, [call[:400] for call in self.calls[:4]], self.limits]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Activity:
        file, stage, calls, limits = json.loads(data or '[null, "", [], [null, null]]')
        return cls(file, stage, tuple(calls), ProcessLimits(*limits))


# ---------------------------------------------------------------------- inside the watched process

_lock = threading.Lock()
_activity = Activity()
_calls: dict[object, str] = {}
"""The risky calls of this task that have not returned. Threads of an earlier task may still be in calls of theirs."""
_notify: Callable[[Activity], None] | None = None
_fatal: Mapping[str, str] = {}


def begin(notify: Callable[[Activity], None], fatal: Mapping[str, str]) -> None:
    """Begin a task. `notify` is called with each change of state. `fatal` are calls that killed earlier attempts, and how."""
    global _activity, _notify, _fatal
    with _lock:
        _calls.clear()
        _activity, _notify, _fatal = Activity(), notify, fatal


def is_watched() -> bool:
    """Whether another process reports this one's death."""
    return _notify is not None


def left_out() -> list[str]:
    """A sentence for each risky call that is refused because it killed an earlier attempt."""
    return [f"the process died of {cause}, {call}: this was left out" for call, cause in _fatal.items()]


def note_file(file: str) -> None:
    with _lock:
        _change(_activity._replace(file=file))


def note_stage(stage: str) -> None:
    with _lock:
        _change(_activity._replace(stage=stage))


@contextmanager
def risky(call: str) -> Iterator[None]:
    """A call of native code that may kill the process. `call` identifies it in each attempt. BackendError if it has killed one."""
    if call in _fatal:
        raise BackendError(f"it dies of {_fatal[call]}, {call}", backend="onnxruntime")
    if _notify is None:
        yield
        return
    key = object()
    with _lock:
        _calls[key] = call
        _change(_activity._replace(calls=tuple(_calls.values())))
    try:
        yield
    finally:
        with _lock:
            if _calls.pop(key, None) is not None:
                _change(_activity._replace(calls=tuple(_calls.values())))


def _change(activity: Activity) -> None:
    global _activity
    _activity = activity
    if _notify is not None:
        _notify(activity)


# ---------------------------------------------------------------------- limits


@contextmanager
def limited(limits: ProcessLimits) -> Iterator[None]:
    """Apply limits to this block. When its time is over, the process is killed.

    Beyond the memory limit, an allocation fails with LimitError, or native code dies that does not expect the failure.
    """
    with _lock:
        _change(_activity._replace(limits=limits))
    resets = []
    if limits.seconds is not None:
        resets.append(_limit_seconds(limits.seconds))
    if limits.bytes is not None:
        resets.append(_limit_bytes(limits.bytes))
    try:
        yield
    except (MemoryError, OSError, ImportError) as error:
        if limits.bytes is None or not _lacks_memory(str(error), error):
            raise
        raise _out_of_memory(_activity) from error
    except OrtconvError as error:
        if limits.bytes is None or not _lacks_memory(error.message, error.__cause__):
            raise
        raise _out_of_memory(_activity, f": {error.message}").at(file=error.file, node=error.node) from error
    finally:
        for reset in resets:
            reset()


def _lacks_memory(message: str, cause: BaseException | None) -> bool:
    """Whether an allocation failed: in Python, in C++, that of a thread's stack, or that of a library."""
    texts = ("std::bad_alloc", "MemoryError", "can't start new thread", "failed to map segment")
    is_known = isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM
    return is_known or any(text in message for text in texts)


def _limit_seconds(seconds: float) -> Callable[[], object]:
    seconds = min(seconds, LONGEST)
    if is_watched() and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
        return partial(signal.setitimer, signal.ITIMER_REAL, 0)
    timer = threading.Timer(seconds, _end, (_LATE,))
    timer.daemon = True
    timer.start()
    return timer.cancel


def _limit_bytes(allowed: int) -> Callable[[], object]:
    if sys.platform == "linux":
        return limit_data(allowed)
    ended = threading.Event()
    threading.Thread(target=_watch_memory, args=(allowed, ended), daemon=True).start()
    return ended.set


def _watch_memory(allowed: int, ended: threading.Event) -> None:
    """Kill the process when it has grown beyond its limit, on systems without such a limit."""
    while not ended.wait(0.1):
        if (peak_bytes() or 0) > allowed:
            _end(_LARGE)


def _end(code: int) -> NoReturn:
    """End a process that is beyond a limit. If no watcher reports it, print the error first."""
    if not is_watched():
        error = Death(code, _activity).error()
        os.write(2, f"error: {error}\nhint: {error.hint}\n".encode())
        code = error.exit_code
    os._exit(code)


_LATE, _LARGE = 124, 125
"""Exit codes of watched processes that found themselves beyond a limit."""


# ---------------------------------------------------------------------- deaths


class Death(NamedTuple):
    """The end of a watched process: its exit code, or minus the signal, and its last state."""

    code: int
    activity: Activity

    @property
    def cause(self) -> str:
        """The cause, such as SIGSEGV or exit code 3."""
        with suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"

    @property
    def is_final(self) -> bool:
        """Whether another attempt would end in the same way."""
        return self.cause in ("SIGALRM", "SIGKILL") or self.code in (_LATE, _LARGE)

    def error(self) -> OrtconvError:
        """The error with the limit that was exceeded or the cause of death, and the stage."""
        return self._error().at(file=self.activity.file)

    def _error(self) -> OrtconvError:
        stage, limits = self.activity.stage, self.activity.limits
        if limits.seconds is not None and (self.code == _LATE or self.cause == "SIGALRM"):
            return LimitError(
                f"not done after {limits.seconds:g} s, the time limit{_in_stage(stage)}",
                hint="--timeout SECONDS gives it more time",
            )
        if limits.bytes is not None and self.code == _LARGE:
            return _out_of_memory(self.activity)
        calls = "".join(f", {call}" for call in self.activity.calls)
        verb = "died of" if self.code < 0 else "ended with"
        return CrashError(f"the process {verb} {self.cause}{_in_stage(stage)}{calls}", hint=self._hint())

    def _hint(self) -> str:
        allowed = self.activity.limits.bytes
        if self.cause == "SIGKILL":
            return "a system kills processes so when memory runs out: try fewer --jobs, or a smaller --memory"
        limit = "" if allowed is None else f"a larger --memory than {_size(allowed)}, or "
        return f"native code crashed: try {limit}another release of onnxruntime, or leave out custom operators"


def _out_of_memory(activity: Activity, what: str = "") -> LimitError:
    assert activity.limits.bytes is not None
    return LimitError(
        f"more memory needed than {_size(activity.limits.bytes)}, the memory limit{_in_stage(activity.stage)}{what}",
        hint="--memory SIZE gives it more",
    )


def _in_stage(stage: str) -> str:
    return f", in stage {stage}" if stage else ""


def _size(count: int) -> str:
    for bits, unit in ((30, "GiB"), (20, "MiB")):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.3g} {unit}"
    return counted(count, "byte")


# ---------------------------------------------------------------------- of a child


def die_with(parent: int) -> None:
    """Let the system kill this process when the thread that started it ends. Does nothing except on Linux."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
