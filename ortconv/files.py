"""Writing files so that nothing is ever lost or half written."""

from __future__ import annotations

import glob
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside the target to write to. It takes the target's place when the block ends well and is removed when not.

    The name keeps the target's suffix, so that what is written can be read back under it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_away(target)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    try:
        yield draft
        os.replace(draft, target)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _clear_away(target: Path) -> None:
    """Remove drafts of the same target whose processes were killed."""
    if os.name != "posix":
        return
    for draft in target.parent.glob(f".{glob.escape(target.stem)}.*.tmp{target.suffix}"):
        number = draft.name.removeprefix(f".{target.stem}.").split(".")[0]
        if number.isdecimal() and not _is_running(int(number)):
            with suppress(OSError):
                draft.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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


UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", 1):
    UNITS |= {_prefix: 1024**_power, f"{_prefix}ib": 1024**_power, f"{_prefix}b": 1000**_power}


def byte_count(text: str) -> int:
    """A size as people write it: 4096, 64M or 64MiB (binary), 64MB (decimal), 1.5G. ValueError for anything else."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]*)", text.strip().lower())
    unit = None if parts is None else UNITS.get(parts[2])
    if parts is None or unit is None:
        raise ValueError(f"'{text}' is no size; write 4096, 64M, 64MB or 1.5GiB")
    return int(float(parts[1]) * unit) if "." in parts[1] else int(parts[1]) * unit
