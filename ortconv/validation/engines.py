"""onnxruntime in validation: opens files and formats its messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ortconv.errors import BackendError, OrtconvError
from ortconv.files import drop_pages
from ortconv.ir.tensor import Tensor
from ortconv.process import repeatedly
from ortconv.runtime.backend import get_backend
from ortconv.runtime.deadline import TimeLimitError, deadline
from ortconv.runtime.session import Session


class Opened(Protocol):
    """A model file that onnxruntime has opened."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on how it runs."""

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """All outputs, in the order of the file. BackendError with onnxruntime's message if it does not run."""


AS_STORED = {"session.disable_prepacking": "1"}
"""Session entry: kernels read constants as they are stored, instead of copies in a layout of their own."""


def open_file(
    file: Path, default: bool, custom_op_library: Path | None, *, light: bool = False, external: Collection[Path] = (),
    afresh: bool = False,
) -> Opened:  # fmt: skip
    """A file opened with the session options of an app, or without optimizations.

    `light`: without copies of its constants if it loads and runs so; `external` are the files they are in. `afresh`: each run has a
    session of its own. Raises BackendError with onnxruntime's message if it does not load.
    """
    if afresh:
        return _OpenedAfresh(partial(open_file, file, default, custom_op_library, light=light, external=external))
    from ortconv.backends.onnxruntime_cpu import ModelFile

    get_backend("onnxruntime")
    with_copies = partial(ModelFile, file, default=default, custom_op_library=custom_op_library)
    if not light:
        return with_copies()
    return _FirstThatRuns(partial(_without_copies, file, default, custom_op_library, external), with_copies)


class _OpenedAfresh:
    """A file that is opened again for each run, with copies of the inputs: onnxruntime may write over constants and inputs."""

    def __init__(self, open: Callable[[], Opened]) -> None:
        self._open = open
        first = open()
        self.notes = first.notes
        self._next: Opened | None = first

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        opened, self._next = self._next or self._open(), None
        return opened.run(deepcopy(dict(feeds)))


class _FirstThatRuns:
    """A file that can be opened in several ways. The first way in which it loads is used until a run fails, then the next one."""

    def __init__(self, *ways: Callable[[], Opened]) -> None:
        self._ways = deque(ways)
        self._opened = self._open()

    @property
    def notes(self) -> tuple[str, ...]:
        return self._opened.notes

    def _open(self) -> Opened:
        while len(self._ways) > 1:
            with suppress(BackendError):
                return self._ways.popleft()()
        return self._ways.popleft()()

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        try:
            return self._opened.run(feeds)
        except TimeLimitError:
            raise
        except BackendError:
            if not self._ways:
                raise
        del self._opened  # its memory is free before the file is opened again
        self._opened = self._open()
        return self.run(feeds)


def _without_copies(file: Path, default: bool, library: Path | None, external: Collection[Path]) -> Opened:
    """onnxruntime maps the external data of an .onnx file; an .ort file is mapped here."""
    from ortconv.backends import onnxruntime_app, onnxruntime_c
    from ortconv.backends.onnxruntime_cpu import ModelFile
    from ortconv.backends.onnxruntime_overflow import may_overflow

    if file.suffix == ".ort" and onnxruntime_app.can_be_direct(library) and not may_overflow(str(file)):
        settings = onnxruntime_app.SessionSettings(direct=True)
        return onnxruntime_c.DirectFile(file, {**settings.entries, **AS_STORED})
    return ModelFile(file, default=default, custom_op_library=library, entries=AS_STORED, external=external)


def run_in_process(open: Callable[[], Opened], feeds: Sequence[Mapping[str, Any]]) -> list[list[Any] | None]:
    """For each set of inputs, all outputs of a file that is opened and run in a process of its own; None if it does not run.

    A crash there is a BackendError or CrashError here.
    """
    from ortconv.watch import ProcessLimits
    from ortconv.workers.pool import LocalPool

    end = deadline()
    seconds = None if end is None else max(0.0, end.real - time.perf_counter())
    with LocalPool(1, ProcessLimits(seconds)) as pool:
        return pool.submit(_run_all, open, feeds).result()  # type: ignore[no-any-return]


def _run_all(open: Callable[[], Opened], feeds: Sequence[Mapping[str, Any]]) -> list[list[Any] | None]:
    opened = open()

    def run(one: Mapping[str, Any]) -> list[Any] | None:
        with suppress(OrtconvError):
            return opened.run(one)
        return None

    return [run(one) for one in feeds]


def runner_of(session: Session, *, light: bool = False) -> Callable[[Mapping[str, Any]], list[Any]]:
    """The function that runs a session for all outputs. `light`: pages of mapped constants leave the process's memory meanwhile."""
    if not light:
        return partial(session.run, None)
    tensors = (v.const for graph in session.model.graph.graphs() for v in graph.initializers.values())
    views = {id(t.data.obj): t.data for t in tensors if isinstance(t, Tensor) and isinstance(t.data, memoryview)}

    def drop_all_pages() -> None:
        for view in views.values():
            drop_pages(view)

    def run(feeds: Mapping[str, Any]) -> list[Any]:
        with repeatedly(drop_all_pages):
            return session.run(None, feeds)

    return run


def runtime_name() -> str:
    try:
        from ortconv.backends.onnxruntime_cpu import version

        return f"onnxruntime {version()}"
    except ImportError:
        return "onnxruntime"


def message_of(error: BackendError, file: Path | None = None) -> str:
    """onnxruntime's message, without the name of a draft file."""
    text = error.message.removeprefix("backend onnxruntime: ")
    return text if file is None else text.replace(str(file), "the file")
