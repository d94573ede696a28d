"""Safe access to files: only regular files are opened, and a file is written completely or not at all."""

from __future__ import annotations

import mmap
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet

from ortconv.errors import FormatError, OrtconvError, UsageError, not_written
from ortconv.process import collect_dead_graphs
from ortconv.wording import BYTES, scaled

LARGEST_TEXT = 64 << 20
LARGEST_TOML = 1 << 16
LARGEST_FILE = 2 << 30
"""Limits on the bytes of a file that is read as a whole."""

_DRAFT = r"\.ortconv-[0-9a-f]{16}(\.\w+)?"
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
_OPEN_FILES_STAY = os.name == "nt"
"""Whether the system refuses to rename or remove a file that is open."""


# ------------------------------------------------------------------------------------------------------------------ reading


def opened(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. UsageError for anything else: a pipe or device might never end.

    TypeError for a number, which `open` takes for a file that is open already, and closes.
    """
    path = Path(path)
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read: {_reason(error)}", file=path) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError("cannot read: not a regular file", file=path)
    return file


def read_bytes(path: str | Path, largest: int = LARGEST_FILE) -> bytes:
    """The content of a regular file. UsageError if it cannot be read, FormatError if it is larger than `largest` bytes."""
    with opened(path) as file:
        try:
            data = file.read(largest + 1)
        except OSError as error:
            raise UsageError(f"cannot read: {_reason(error)}", file=path) from error
    if len(data) > largest:
        raise FormatError(f"the file has more than {largest} bytes, which is the limit here", file=path)
    return data


def read_text(path: str | Path, largest: int = LARGEST_TEXT, refusal: type[OrtconvError] = UsageError) -> str:
    """The content of a file of UTF-8 text. UsageError if it cannot be read; `refusal` if it is not UTF-8."""
    try:
        return read_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal(f"not UTF-8 text: {error}", file=path) from error


def digest(path: str | Path) -> str:
    """The SHA-256 of a regular file's content."""
    import hashlib

    found = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def read_toml(path: str | Path) -> Mapping[str, Any]:
    """The tables of a TOML file. UsageError if it cannot be read or is not valid."""
    import tomllib

    try:
        return tomllib.loads(read_text(path, LARGEST_TOML))
    except RecursionError:
        raise UsageError("not a TOML file: its values are nested too deeply", file=path) from None
    except ValueError as error:
        raise UsageError(f"not a TOML file: {error}", file=path) from error


_mappings: WeakSet[mmap.mmap] = WeakSet()
_most_mappings = _MAPPINGS = 64
_LARGEST_READ = 256 << 20
"""Bytes of the largest file that is read and not mapped, where open files cannot be replaced: a mapping keeps its file open."""


def map_file(path: str | Path) -> memoryview:
    """The content of a model's file, as `mapped` returns it. Raises UsageError as `opened` does, FormatError for an empty file."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise FormatError("the file is empty", file=path, hint="export or download it again")
        return mapped(file.fileno())


def mapped(descriptor: int) -> memoryview:
    """The content of a file as a read-only memory mapping, or as bytes.

    A mapping holds a file descriptor until its model is freed. So dead graphs are collected when there are twice as many mappings
    as after the last collection.
    """
    global _most_mappings
    if _OPEN_FILES_STAY and 0 < os.fstat(descriptor).st_size <= _LARGEST_READ:
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return memoryview(file.read())
    if len(_mappings) >= _most_mappings:
        collect_dead_graphs()
        _most_mappings = max(2 * len(_mappings), _MAPPINGS)
    mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    _mappings.add(mapping)
    return memoryview(mapping)


def drop_pages(view: memoryview) -> None:
    """Drop the pages of a mapped file from the process's memory, where the system can. They are read again at the next access.

    Access to a single byte may load megabytes around it.
    """
    if isinstance(view.obj, mmap.mmap):
        with suppress(AttributeError, OSError):
            view.obj.madvise(mmap.MADV_DONTNEED)


# ------------------------------------------------------------------------------------------------------------------ writing


@contextmanager
def replacing(target: Path, suffix: str | None = None) -> Iterator[Path]:
    """An empty draft in the target's folder to write to with `created`. It replaces the target when the block ends well, and
    is removed when not, as are folders that were made for it.

    The draft has a random name with the target's suffix, or another one, so that it can be read back. Mode and owner of a file
    that is replaced are kept; a link is replaced by a file. Raises UsageError, with the target, if it cannot be written.
    """
    draft, done, lock = None, False, ExitStack()
    new_folders: list[Path] = []
    try:
        old = _status_of_old(target)
        new_folders += (folder for folder in target.parents if not folder.exists())
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_drafts_once(target.parent)
        draft, descriptor = _draft(target.parent, target.suffix if suffix is None else suffix, 0o600 if old else 0o666)
        lock.callback(os.close, descriptor)
        yield draft
        if old is not None:
            _keep_mode_and_owner(draft, old)
        if _OPEN_FILES_STAY:
            lock.close()
        _even_if_mapped(partial(os.replace, draft, target))
        done = True
    except OSError as error:
        raise not_written(error, target) from error
    except OrtconvError as error:
        raise error if draft is None else renamed(error, draft, target) from error.__cause__
    finally:
        lock.close()
        if draft is not None and not done:
            with suppress(OSError):
                _even_if_mapped(draft.unlink)
        if not done:
            _remove_empty(new_folders)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # another process may have put a file there
            folder.rmdir()


def _even_if_mapped(change: Callable[[], object]) -> None:
    """Rename or remove a file. Windows refuses it while the file is mapped: try again without the mappings of dead graphs."""
    try:
        change()
    except PermissionError:
        collect_dead_graphs()
        change()


def created(draft: Path) -> BinaryIO:
    """Open a file for writing from its beginning. It is made if it does not exist; a link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK | _FLAGS
    return os.fdopen(os.open(draft, flags, 0o666), "wb")


def write_text(target: Path, text: str) -> None:
    """Write a file of UTF-8 text. Characters without a UTF-8 form, as in damaged names, are escaped."""
    write_bytes(target, text.encode("utf-8", "backslashreplace"))


def write_bytes(target: Path, data: bytes) -> None:
    with replacing(target) as draft, created(draft) as file:
        file.write(data)


def _status_of_old(target: Path) -> os.stat_result | None:
    """The status of the file to replace; None if it does not exist. UsageError for a target that is not a regular file."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise UsageError("cannot write: it is a directory", file=target)
    if not stat.S_ISREG(found.st_mode):
        raise UsageError("cannot write: not a regular file", file=target)
    return None if target.is_symlink() else found


def _draft(folder: Path, suffix: str, mode: int) -> tuple[Path, int]:
    """A new file with a random name, locked while this process has it open."""
    suffix = suffix if re.fullmatch(r"\.\w{1,32}", suffix) else ""
    tries = 100
    while True:
        draft = folder / f".ortconv-{os.urandom(8).hex()}{suffix}"
        try:
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _FLAGS, mode)
        except FileNotFoundError:
            # Another process made the folder, failed, and removed it; or the folder takes no files, as /proc.
            tries -= 1
            if not tries:
                raise
            folder.mkdir(parents=True, exist_ok=True)
            continue
        if lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return draft, descriptor
        os.close(descriptor)  # another process took it for a dead one's before it was locked


def _keep_mode_and_owner(draft: Path, old: os.stat_result) -> None:
    """Give a draft the owner and mode of the file that it replaces, but no rights of others if the owner cannot be the same."""
    mode = stat.S_IMODE(old.st_mode)
    new = draft.stat()
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.chown(draft, old.st_uid, old.st_gid)
        except (AttributeError, OSError):
            mode &= 0o707 if new.st_gid != old.st_gid else 0o777
    with suppress(OSError):  # some file systems have no modes
        draft.chmod(mode)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed with its files when the block ends. Windows keeps files that are still mapped."""
    from tempfile import TemporaryDirectory

    folder = TemporaryDirectory(prefix="ortconv-", ignore_cleanup_errors=_OPEN_FILES_STAY)
    try:
        yield Path(folder.name)
    finally:
        if _OPEN_FILES_STAY:
            collect_dead_graphs()
        folder.cleanup()


def is_draft(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a draft of `replacing`."""
    return re.fullmatch(_DRAFT, Path(path).name) is not None


@cache
def _remove_dead_drafts_once(folder: Path) -> None:
    """Call `remove_dead_drafts` the first time that this process writes to a folder."""
    remove_dead_drafts(folder)


def remove_dead_drafts(folder: Path) -> None:
    """Remove the drafts of processes that were killed. A draft in use is locked, and stays."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(".ortconv-") and is_draft(entry) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(draft: str) -> None:
    if _OPEN_FILES_STAY:
        os.unlink(draft)
        return
    descriptor = os.open(draft, os.O_RDWR | _NO_LINK | _AT_ONCE | _FLAGS)
    try:
        if lock(descriptor):
            os.unlink(draft)
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool | None:
    """Lock a file while this descriptor is open. False if another process locks it, None if the file system has no such locks."""
    try:
        if sys.platform == "win32":
            from ortconv import windows

            return windows.lock(descriptor)
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def renamed(error: OrtconvError, path: Path, shown: str | Path) -> OrtconvError:
    """The same error with the name `shown`, which the user knows, instead of the path of a temporary file."""
    error.file = str(shown) if error.file == str(path) else error.file
    error.message = error.message.replace(str(path), str(shown))
    error.args = (error.message,)
    return error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# ------------------------------------------------------------------------------------------------------------------- sizes


UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", 1):
    UNITS |= {_prefix: 1024**_power, f"{_prefix}ib": 1024**_power, f"{_prefix}b": 1000**_power}


def byte_count(text: str) -> int:
    """A size as people write it: 4096, 64M or 64MiB (binary), 64MB (decimal), 1.5G. ValueError for anything else."""
    parts = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?) *([a-z]*)", text.strip().lower())
    unit = None if parts is None else UNITS.get(parts[2])
    if parts is None or unit is None:
        raise ValueError(f"'{text[:80]}' is not a size; write 4096, 64M, 64MB or 1.5GiB")
    return int(float(parts[1]) * unit) if "." in parts[1] else int(parts[1]) * unit


def size(count: int) -> str:
    """A number of bytes for people."""
    value, unit = scaled(count, BYTES)
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
