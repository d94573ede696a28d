"""The memory of a tuning: results by keys that name everything they depend on. An interrupted tuning continues from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortconv.batch.journal import BatchJournal, JournalLine

NAME = ".ortconv-tuning.jsonl"


@dataclass(frozen=True, slots=True)
class MemoLine(JournalLine):
    """A line of the file."""

    key: str
    value: Any


class Memo:
    """JSON values by key, in memory and, with a folder, in a journal there. UsageError if another process has it open."""

    def __init__(self, folder: Path | None) -> None:
        self._journal = None if folder is None else BatchJournal(folder, NAME)
        self._known: dict[str, Any] = {}
        if self._journal is not None:
            with open(self._journal.path, "rb") as file:
                entries = filter(None, map(MemoLine.parse, file))
                self._known = {entry.key: entry.value for entry in entries}

    def get(self, key: str) -> Any:
        """The value of a key; None if there is none."""
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._known[key] = value
        if self._journal is not None:
            self._journal.append(MemoLine(key, value))

    def forget(self, key: str) -> None:
        """Forget the value of a key."""
        self._known.pop(key, None)

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._journal is not None:
            self._journal.close()


def key_of(*parts: object) -> str:
    """A digest of the facts that a value depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
