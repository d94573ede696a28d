"""What `ortconv bundle` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.files import size
from ortconv.reduction.bundle import Bundle
from ortconv.report.sections import Fact
from ortconv.wording import counted


def facts(found: Bundle) -> Iterator[Fact]:
    yield "files", ", ".join(f"{name} {size(count)}" for name, count in found.files.items())
    if found.stripped:
        yield "weights", f"{counted(found.stripped, 'constant')} replaced"
    if found.exit_code is not None:
        yield "command", f"exit code {found.exit_code}"
    yield from (("note", note) for note in found.notes)
