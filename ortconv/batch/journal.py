"""The journal of an output folder: one line of JSON for each model that was converted into it.

A line is appended by one write, before its files are put in place, and holds their digests. So a process may be killed at any
moment: files that are in place and equal their line are done, and all else is not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ortconv.documents import Document, read_version
from ortconv.errors import UsageError
from ortconv.files import digest, lock
from ortconv.pipeline.kinds import plain
from ortconv.pipeline.manifest import versions
from ortconv.pipeline.options import OPTIONS, Options

NAME = ".ortconv-journal.jsonl"


class JournalLine(Document):
    """A dataclass that is a line of a journal."""

    __slots__ = ()

    def line(self) -> bytes:
        """The record as one line of JSON, with the line break."""
        return json.dumps(self.to_dict()).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """The record of a line; None if the line is not a record, such as the truncated last line of a full disk."""
        try:
            return read_version(cls, json.loads(line))
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class FinishedModel(JournalLine):
    """A finished model. `key` is a digest of its content, options and versions; `files` are digests by path below the folder."""

    output: str
    source: str
    key: str
    external: tuple[str, ...]
    """The files with weights of the model, relative to it."""
    files: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the Result that summaries show."""
    operators: str = ""
    """The lines of the operator config."""


def last_records(lines: Iterable[bytes]) -> dict[str, FinishedModel]:
    """The last record of each output."""
    return {record.output: record for line in lines if (record := FinishedModel.parse(line)) is not None}


class BatchJournal:
    """The journal of a folder. Only one process can have it open: UsageError if another one does."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = _opened(self.path)
        except OSError as error:
            raise UsageError(f"cannot write: {error.strerror}", file=error.filename or folder) from error
        if lock(self._descriptor) is False:
            os.close(self._descriptor)
            raise UsageError(
                "another batch is writing to this folder",
                file=folder,
                hint="wait until it has ended, or write to another folder",
            )
        _complete_last_line(self._descriptor)

    def records(self) -> dict[str, FinishedModel]:
        """The last record of each output."""
        with open(self.path, "rb") as file:
            return last_records(file)

    def append(self, record: JournalLine) -> None:
        """Append a line. UsageError if it cannot be written."""
        _write(self._descriptor, record, self.path)

    def close(self) -> None:
        """Let other batches write to the folder."""
        os.close(self._descriptor)


def append(path: Path, record: JournalLine) -> None:
    """Append a line. Lines of several processes do not mix. UsageError if it cannot be written."""
    try:
        descriptor = _opened(path)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", file=path) from error
    try:
        _complete_last_line(descriptor)
        _write(descriptor, record, path)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW"):
        flags |= getattr(os, name, 0)
    return os.open(path, flags, 0o666)


def _complete_last_line(descriptor: int) -> None:
    """Add the line break that the last line lacks if its process was killed."""
    size = os.fstat(descriptor).st_size
    os.lseek(descriptor, max(size - 1, 0), os.SEEK_SET)  # Windows has no os.pread
    if os.read(descriptor, 1) not in (b"", b"\n"):
        os.write(descriptor, b"\n")


def _write(descriptor: int, record: JournalLine, path: Path) -> None:
    line = record.line()
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", file=path) from error


def is_current(record: FinishedModel, source: Path, folder: Path, options: Options) -> bool:
    """Whether a record has this source, these options and versions, and files that are in place unchanged."""
    try:
        return record.key == key(source, record.external, options) and all(
            digest(folder / name) == wanted for name, wanted in record.files.items()
        )
    except (OSError, UsageError):
        return False


def key(source: Path, external: Iterable[str], options: Options) -> str:
    """A digest of everything that determines the result: the source, options and versions."""
    files = [digest(source), *(f"{name} {digest(source.parent / name)}" for name in sorted(external))]
    return _digest_of([fingerprint(options), *files])


def fingerprint(options: Options) -> str:
    """A digest of the options and of the versions that results depend on."""
    values = {o.name: plain(getattr(options, o.name)) for o in OPTIONS.values() if o.flag is not None and o.in_key}
    return _digest_of([json.dumps(values, sort_keys=True, default=str), *map(" ".join, versions().items())])


def _digest_of(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
