"""The known results of candidates, so that an interrupted reduction continues where it was.

The search is deterministic: after a restart it makes the same candidates, and finds the results of the first ones here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortconv.errors import UsageError
from ortconv.files import LARGEST_TEXT, read_text


class KnownResults:
    """A file with one line of JSON for each candidate: its digest, and whether it fails. The first line names the search."""

    def __init__(self, path: Path | None, search: str) -> None:
        self.path = path
        self.known: dict[str, bool] = {} if path is None else dict(_records(path, search))
        self.continues = bool(self.known)
        """Whether the file is of an earlier run of this search. A file of another search is replaced at the first note."""
        self._head = "" if self.continues else json.dumps({"search": search}) + "\n"

    def note(self, digest: str, fails: bool) -> None:
        """Store the result of a candidate. UsageError if it cannot be written."""
        self.known[digest] = fails
        if self.path is not None:
            try:
                with open(self.path, "w" if self._head else "a", encoding="utf-8") as file:
                    file.write(self._head + json.dumps({"candidate": digest, "fails": fails}) + "\n")
            except OSError as error:
                raise UsageError(f"cannot write: {error.strerror}", file=self.path) from error
            self._head = ""

    def done(self) -> None:
        """Remove the file."""
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)


def _records(path: Path, search: str) -> Iterator[tuple[str, bool]]:
    if not path.is_file():
        return
    lines = read_text(path, LARGEST_TEXT).splitlines()
    with suppress(ValueError, KeyError, TypeError):
        if not lines or json.loads(lines[0])["search"] != search:
            return
        for line in lines[1:]:
            record = json.loads(line)
            yield record["candidate"], bool(record["fails"])
