"""Every error that ortconv raises on purpose, and the exit code with which each one ends the process.

    OrtconvError            1   something in ortconv itself is wrong: please report it
    ├── InternalError       1   an exception that no part of the model explains
    ├── UsageError          2   an option or argument is wrong, or a file cannot be read or written
    ├── ModelError          3   the model is invalid, or uses what ortconv does not support
    │   ├── FormatError     3     the bytes of the file are damaged
    │   ├── GraphError      3     the graph breaks the rules of its operators or of SSA form
    │   ├── UnsupportedError 3    valid, but beyond what ortconv can do
    │   ├── LimitError      3     more time or memory needed than the user allows
    │   ├── CrashError      3     the process that worked on the model died
    │   └── BackendError    3     a backend refused or failed; carries the backend's name
    ├── MismatchError       4   the numbers differ
    ├── GateError           5   a --fail-on condition failed
    ├── UnsafeInputError    6   the input tries to read or write files that it must not
    └── BatchError          7   part of a batch failed

An error is one message for a person: what, where (file, node), the limit and the actual value, and a hint for what to try.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EFBIG)
"""Errors of files that cannot grow."""

MAKE_ROOM = "make room, or write to another place"


class OrtconvError(Exception):
    """Base of the tree. `hint` is advice; `file` and `node` are the location. `kind` says what is wrong, in a word or two."""

    exit_code = 1
    kind = "invalid model"

    def __init__(
        self, message: str, *, file: str | Path | None = None, node: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = None if file is None else str(file)
        self.node = node
        self.hint = hint

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.file, self.node) if part).replace("\n", "\\n")
        return f"{where}{self.message}"

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.args, self.__dict__)

    def at(self, *, file: str | Path | None = None, node: str | None = None) -> OrtconvError:
        """Fill in the parts of the location that are not known yet, and return the error.

        A handler then writes a plain `raise`, which keeps the cause of the error.
        """
        self.file = self.file or (None if file is None else str(file))
        self.node = self.node or node
        return self


@contextmanager
def located(file: str | Path) -> Iterator[None]:
    """An error of this block names the file, unless it names one already."""
    try:
        yield
    except OrtconvError as error:
        error.at(file=file)
        raise


def _restored(kind: type[OrtconvError], args: tuple[Any, ...], state: dict[str, Any]) -> OrtconvError:
    """An error that another process raised."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InternalError(OrtconvError):
    """An unexpected exception during work on a model that seems valid."""

    kind = "bug in ortconv"


class UsageError(OrtconvError):
    exit_code = 2
    kind = "file or option"


class ModelError(OrtconvError):
    exit_code = 3


class FormatError(ModelError):
    kind = "damaged file"


class GraphError(ModelError):
    pass


class UnsupportedError(ModelError):
    kind = "unsupported"


class LimitError(ModelError):
    """The work took more time or memory than the user allows."""

    kind = "limit"


class CrashError(ModelError):
    """The process that worked on the model died."""

    kind = "crash"


class BackendError(ModelError):
    """A backend refused or failed. `backend` is its name."""

    kind = "backend"

    def __init__(self, message: str, *, backend: str, hint: str | None = None) -> None:
        super().__init__(f"backend {backend}: {message}", hint=hint)
        self.backend = backend


class MismatchError(OrtconvError):
    exit_code = 4
    kind = "numbers differ"


class GateError(OrtconvError):
    exit_code = 5
    kind = "gate"


class UnsafeInputError(OrtconvError):
    exit_code = 6
    kind = "unsafe input"


class BatchError(OrtconvError):
    exit_code = 7


def not_written(error: OSError, target: str | Path) -> UsageError:
    """The error for a file that the system does not write."""
    hint = MAKE_ROOM if error.errno in FULL else None
    return UsageError(f"cannot write: {error.strerror or error}", file=target, hint=hint)


def nearest(name: str, known: Iterable[str], most: int = 3, likeness: float = 0.6, prefix: str = "") -> str | None:
    """A hint with the known names that are nearest to a misspelled one, at most `most` of them; None if none is near.

    `likeness` is the least similarity of a name that counts as near, from 0 to 1. A part of a name, of three letters or more, is
    near, too. `prefix` is written before each name.
    """
    from difflib import get_close_matches

    names = list(known)
    wholes = (one for one in names if len(name) >= 3 and name.lower() in one.lower())
    found = list(dict.fromkeys([*get_close_matches(name[:100], names, most, likeness), *wholes]))[:most]
    return f"did you mean {', '.join(f'{prefix}{one}' for one in found)}?" if found else None


def known_names(name: str, known: Collection[str]) -> str:
    """A hint for a name that is not known: the nearest names, or all if none is near."""
    return nearest(name, known) or f"choose from {', '.join(known) or 'none'}"
