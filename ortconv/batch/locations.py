"""Files on file systems of fsspec, such as s3://bucket/models. A location is a Path, or a URL as a string."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from ortconv.errors import UsageError
from ortconv.files import temporary_folder, write_text
from ortconv.models import is_source

Location = Path | str

OWN_MEMORY = "memory"
"""The file system of fsspec that is in the memory of one process."""

STORES = ("abfs", "adl", "az", "gcs", "gs", "s3")
"""File systems where a file appears only when it is complete. On others a file is written under another name, then renamed."""


def location(text: str | os.PathLike[str]) -> Location:
    """The location for a string of the user. file:// is treated as a path."""
    if not isinstance(text, str) or "://" not in text:
        return Path(text)
    return Path(text.removeprefix("file://")) if text.startswith("file://") else text.rstrip("/")


def below(folder: Location, name: str) -> Location:
    """The location of a file, by its path in a folder."""
    return folder / name if isinstance(folder, Path) else f"{folder}/{name}"


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path on it. UsageError if the protocol is not known, or its package is not installed."""
    try:
        import fsspec
    except ImportError:
        raise UsageError(f"{url} needs fsspec", hint="pip install 'ortconv[dask]'") from None
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(
            f"cannot open {url}: {error}", hint="install the package of fsspec for it, such as s3fs"
        ) from None
    return found


def find_urls(url: str) -> tuple[str, list[str]]:
    """The folder and its .onnx files, sorted, or the one file. Hidden files and files that a conversion wrote are left out."""
    system, path = file_system(url)
    try:
        if system.isfile(path):
            return posixpath.dirname(url), [url]
        names = [found[len(path) :].lstrip("/") for found in system.find(path)]
    except OSError as error:
        raise UsageError(f"cannot read: {error}", file=url) from error
    return url, [f"{url}/{name}" for name in sorted(names) if is_source(name)]


def check_reach(locations: Iterable[Location], *, in_process: bool) -> None:
    """UsageError for locations in this process's memory if other processes do the work."""
    for one in locations:
        if isinstance(one, str) and one.startswith(f"{OWN_MEMORY}://") and not in_process:
            hint = "give an executor of threads, or files that all of them reach"
            raise UsageError(f"{one} is in the memory of this process, and workers are others", hint=hint)


def fetch(url: str, target: Path) -> None:
    system, path = file_system(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    system.get_file(path, str(target))


def send(source: Path, url: str) -> None:
    """Upload a file. Where others could see a part of it, it is uploaded under another name, then renamed."""
    system, path = file_system(url)
    system.makedirs(posixpath.dirname(path), exist_ok=True)
    if url.startswith(tuple(f"{name}://" for name in STORES)):
        system.put_file(str(source), path)
        return
    draft = posixpath.join(posixpath.dirname(path), f".ortconv-{os.urandom(8).hex()}")
    try:
        system.put_file(str(source), draft)
        if system.exists(path):
            system.rm_file(path)
        system.mv(draft, path)
    except Exception:
        with suppress(Exception):
            system.rm_file(draft)
        raise


def write_far(url: str, text: str) -> None:
    with temporary_folder() as folder:
        write_text(folder / "text", text)
        send(folder / "text", url)


def common_folder(locations: Sequence[Location]) -> Location:
    """The nearest folder above all of these locations."""
    if all(isinstance(one, Path) for one in locations):
        return Path(os.path.commonpath([Path(one).parent for one in locations]))
    folders = [posixpath.dirname(str(one)).split("/") for one in locations]
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*folders))]
    if len(shared) < 3:
        raise UsageError("the models have no folder in common", hint="convert those of each file system by themselves")
    return "/".join(shared)
