"""Writing files so that nothing is ever lost or half written."""

from __future__ import annotations

import mmap
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


def mapped(descriptor: int) -> memoryview:
    """The content of a file as a read-only view of its pages, which are read when they are looked at."""
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


def let_go(view: memoryview) -> None:
    """Take the pages of a mapped file out of the process's memory, where the system can; a later look reads them again.

    A look at one byte may bring megabytes along.
    """
    if isinstance(view.obj, mmap.mmap):
        with suppress(AttributeError, OSError):
            view.obj.madvise(mmap.MADV_DONTNEED)


def write_text(target: Path, text: str) -> None:
    with replacing(target) as draft:
        draft.write_text(text, encoding="utf-8")
