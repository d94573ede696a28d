"""Writing files so that nothing is ever lost or half written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside the target to write to. It takes the target's place when the block ends well and is removed when not.

    The name keeps the target's suffix, so that what is written can be read back under it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    try:
        yield draft
        os.replace(draft, target)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def write_text(target: Path, text: str) -> None:
    with replacing(target) as draft:
        draft.write_text(text, encoding="utf-8")
