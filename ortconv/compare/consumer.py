"""onnxruntime in validation: opens files and formats its messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ortconv.errors import BackendError
from ortconv.runtime.deadline import TimeLimitError


class Opened(Protocol):
    """A model file that onnxruntime has opened."""

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """All outputs, in the order of the file. BackendError with onnxruntime's message if it does not run."""


AS_STORED = {"session.disable_prepacking": "1"}
"""Session entry: kernels read constants as they are stored, instead of copies in a layout of their own."""


def open_file(file: Path, default: bool, custom_op_library: Path | None, *, light: bool = False) -> Opened:
    """A file opened with the session options of an app, or as it is written. `light`: without copies of its constants, if it can be.

    BackendError with onnxruntime's message if it does not load.
    """
    from ortconv.backends.onnxruntime_cpu import ModelFile
    from ortconv.runtime.backend import get_backend

    get_backend("onnxruntime")
    if light:
        return _Light(file, default, custom_op_library)
    return ModelFile(file, default=default, custom_op_library=custom_op_library)


class _Light:
    """A file opened without copies of its constants. Where it does not load or run so, it is opened again, with copies."""

    def __init__(self, file: Path, default: bool, library: Path | None) -> None:
        self._copies = partial(open_file, file, default, library)
        self._opened: Opened | None = None
        with suppress(BackendError):
            self._opened = _without_copies(file, default, library)
        self._is_light = self._opened is not None
        if self._opened is None:
            self._opened = self._copies()

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        assert self._opened is not None
        try:
            return self._opened.run(feeds)
        except TimeLimitError:
            raise
        except BackendError:
            if not self._is_light:
                raise
        self._opened, self._is_light = None, False
        self._opened = self._copies()
        return self._opened.run(feeds)


def _without_copies(file: Path, default: bool, library: Path | None) -> Opened:
    """onnxruntime maps the external data of an .onnx file; an .ort file is mapped here."""
    from ortconv.backends import onnxruntime_app, onnxruntime_c
    from ortconv.backends.onnxruntime_cpu import ModelFile

    if file.suffix == ".ort" and onnxruntime_app.can_be_direct(library):
        settings = onnxruntime_app.SessionSettings(direct=True)
        return onnxruntime_c.DirectFile(file, {**settings.entries, **AS_STORED})
    return ModelFile(file, default=default, custom_op_library=library, entries=AS_STORED)


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
