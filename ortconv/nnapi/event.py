"""Events, which signal the end of an execution in the background."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context

from ortconv.nnapi.arguments import checked
from ortconv.nnapi.codes import ResultCode
from ortconv.nnapi.errors import NnapiError, bad_data
from ortconv.nnapi.handle import Handle
from ortconv.nnapi.tracing.timing import timed

AS_DRIVERS_SAY = {
    ResultCode.UNEXPECTED_NULL: ResultCode.BAD_DATA,
    ResultCode.OUT_OF_MEMORY: ResultCode.OP_FAILED,
    ResultCode.INCOMPLETE: ResultCode.OP_FAILED,
    ResultCode.BAD_STATE: ResultCode.OP_FAILED,
    ResultCode.UNMAPPABLE: ResultCode.OP_FAILED,
    ResultCode.DEAD_OBJECT: ResultCode.OP_FAILED,
}
"""Result codes as a waiting client receives them: as a driver's error status. Codes without a status of their own become these."""


def as_reported(error: NnapiError) -> NnapiError:
    """The error of an execution in the form in which a waiting client receives it."""
    reported = error.bare()
    reported.code = AS_DRIVERS_SAY.get(error.code, error.code)
    return reported


def _wait_until_readable(fd: int) -> None:
    if sys.platform == "win32":
        os.read(fd, 1)  # Windows has no poll for files; fences are signaled by their end, which remains
        return
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()


class Fence:
    """A file descriptor that becomes readable when it is signaled."""

    def __init__(self) -> None:
        self.fd, self._signal = os.pipe()

    def signal(self) -> None:
        if self._signal >= 0:
            os.close(self._signal)
            self._signal = -1

    def close(self) -> None:
        self.signal()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Event(Handle):
    """A running execution. `wait` returns when it has finished, or raises its error."""

    def __init__(self, work: Callable[[], None] | None = None, *, fence: Fence | None = None) -> None:
        self._error: Exception | None = None
        self._fence = fence
        self._thread: threading.Thread | None = None
        self._waited_fd = -1
        if work is not None:
            self._thread = threading.Thread(target=copy_context().run, args=(self._run, work), daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                raise NnapiError(ResultCode.RESOURCE_EXHAUSTED_TRANSIENT, str(error)) from error

    @classmethod
    @checked
    def from_sync_fence_fd(cls, fd: int) -> Event:
        """An event for a fence of another component. Raises BAD_DATA unless the descriptor is positive."""
        if fd <= 0:
            raise bad_data(f"{fd} is not a file descriptor of a fence")
        event = cls()
        try:
            event._waited_fd = os.dup(fd)
        except (OSError, OverflowError) as error:
            raise bad_data(f"file descriptor {fd}: {error}") from error
        return event

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except NnapiError as error:
            self._error = as_reported(error)
        except Exception as error:
            self._error = error  # a bug in ortconv, raised in `wait`
        finally:
            if self._fence is not None:
                self._fence.signal()

    @timed("PE")
    def wait(self) -> None:
        """Wait until the execution has finished. It may be called repeatedly."""
        if self._waited_fd >= 0:
            _wait_until_readable(self._waited_fd)
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error.bare() if isinstance(self._error, NnapiError) else self._error

    def get_sync_fence_fd(self) -> int:
        """A file descriptor, the caller's, that is readable once the execution has finished. Raises BAD_DATA without a fence."""
        fd = self._waited_fd if self._fence is None else self._fence.fd
        if fd < 0:
            raise bad_data("the event has no fence")
        return os.dup(fd)

    def _free(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._close()

    def _close(self) -> None:
        if self._fence is not None:
            self._fence.close()
        if self._waited_fd >= 0:
            os.close(self._waited_fd)
            self._waited_fd = -1

    __del__ = _close
