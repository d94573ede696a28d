"""The known results of candidates, so that an interrupted reduction continues where it was.

The search is deterministic: after a restart it makes the same candidates, and finds the results of the first ones here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ortconv.batch.journal import JournalLine, append
from ortconv.files import read_bytes


@dataclass(frozen=True, slots=True)
class CheckedCandidate(JournalLine):
    """The digest of a candidate of a search, and whether it fails."""

    search: str
    candidate: str
    fails: bool


class KnownResults:
    """The results of a search by digest, in memory and, with a path, in a journal."""

    def __init__(self, path: Path | None, search: str) -> None:
        self._path, self._search = path, search
        lines = read_bytes(path).splitlines() if path is not None and path.is_file() else []
        records = filter(None, map(CheckedCandidate.parse, lines))
        self.known = {record.candidate: record.fails for record in records if record.search == search}
        self.continues = bool(self.known)
        """Whether the journal has results of an earlier run of this search."""

    def note(self, digest: str, fails: bool) -> None:
        """Store the result of a candidate. UsageError if it cannot be written."""
        self.known[digest] = fails
        if self._path is not None:
            append(self._path, CheckedCandidate(self._search, digest, fails))

    def done(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)
