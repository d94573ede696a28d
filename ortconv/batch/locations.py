"""Models and results on file systems of fsspec, such as s3://bucket/models. A location is a Path, or a URL as a string.

A remote model and its weights are downloaded to a temporary folder. The conversion works there, and the results are uploaded.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortconv.batch.journal import NAME, Record
from ortconv.batch.work import Conversion, Outcome, convert_one
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import renamed
from ortconv.onnxio.external import components
from ortconv.onnxio.load import names_in
from ortconv.pipeline.result import Result

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
    return url, [f"{url}/{name}" for name in sorted(names) if _is_source(name)]


def _is_source(name: str) -> bool:
    last = posixpath.basename(name).lower()
    return last.endswith(".onnx") and not last.startswith(".") and not last.endswith(".optimized.onnx")


def check_reach(locations: Iterable[Location], *, in_process: bool) -> None:
    """UsageError for locations in this process's memory if other processes do the work."""
    for one in locations:
        if isinstance(one, str) and one.startswith(f"{OWN_MEMORY}://") and not in_process:
            hint = "give an executor of threads, or files that all of them reach"
            raise UsageError(f"{one} is in the memory of this process, and workers are others", hint=hint)


def convert_far(item: Conversion) -> Outcome:
    """Call `convert_one` on local copies if the source or the folder is a URL."""
    with TemporaryDirectory(prefix="ortconv-") as name:
        folder = Path(name)
        source = folder / "in" / posixpath.basename(item.source) if isinstance(item.source, str) else item.source
        try:
            if isinstance(item.source, str):
                _fetch_model(item.source, source)
            if isinstance(item.folder, str):
                near = folder / "out"
                _fetch_results(item.known, item.folder, near)
                result, record = convert_one(replace(item, source=source, folder=near))
                _send_results(result, near, item.folder)
            else:
                result, record = convert_one(replace(item, source=source))
        except OrtconvError as error:
            raise renamed(error.at(file=source), source, str(item.source)) from error.__cause__
        except OSError as error:
            raise UsageError(f"cannot copy: {error}", file=str(item.source)) from error
        result.source = str(item.source)
        return result, None if record is None else replace(record, source=str(item.source))


def _send_results(result: Result, near: Path, folder: str) -> None:
    """Upload the files of a result, the .ort file last, and list them at their URLs."""
    paths = [Path(file).relative_to(near).as_posix() for file in result.files]
    if not result.unchanged:
        for path in reversed(paths):
            _send(near / path, f"{folder}/{path}")
    result.files = [f"{folder}/{path}" for path in paths]


def _fetch_model(url: str, target: Path) -> None:
    """Download a model and the files with its weights."""
    fetch(url, target)
    for name in names_in(target)[2]:
        path = "/".join(components(name))
        fetch(f"{posixpath.dirname(url)}/{path}", target.parent / path)


def _fetch_results(known: Record | None, folder: str, near: Path) -> None:
    """Download the files that an earlier batch recorded, as far as they exist."""
    near.mkdir()
    for name in known.files if known is not None else ():
        with suppress(FileNotFoundError):
            fetch(f"{folder}/{name}", near / "/".join(components(name)))


def fetch(url: str, target: Path) -> None:
    """Copy a file."""
    system, path = file_system(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    system.get_file(path, str(target))


def _send(source: Path, url: str) -> None:
    system, path = file_system(url)
    system.makedirs(posixpath.dirname(path), exist_ok=True)
    if url.startswith(tuple(f"{name}://" for name in STORES)):
        system.put_file(str(source), path)
        return
    draft = posixpath.join(posixpath.dirname(path), f".ortconv-{os.urandom(8).hex()}")
    system.put_file(str(source), draft)
    if system.exists(path):
        system.rm_file(path)
    system.mv(draft, path)


def write_far(url: str, text: str) -> None:
    """Upload a text."""
    system, path = file_system(url)
    system.makedirs(posixpath.dirname(path), exist_ok=True)
    system.pipe_file(path, text.encode("utf-8", "backslashreplace"))


class FarJournal:
    """The journal of a folder at a URL. Unlike a local journal, it does not lock out other batches."""

    def __init__(self, folder: str) -> None:
        self._system, self._path = file_system(f"{folder}/{NAME}")
        self._system.makedirs(posixpath.dirname(self._path), exist_ok=True)

    def close(self) -> None:
        """Does nothing: no file is open."""

    def records(self) -> dict[str, Record]:
        """The last record of each output."""
        if not self._system.exists(self._path):
            return {}
        lines = self._system.cat_file(self._path).splitlines()
        return {record.output: record for line in lines if (record := Record.parse(line)) is not None}

    def append(self, record: Record) -> None:
        """Add a line."""
        with self._system.open(self._path, "ab") as file:
            file.write(record.line())


def common_folder(locations: Sequence[Location]) -> Location:
    """The nearest folder above all of these locations."""
    if all(isinstance(one, Path) for one in locations):
        return Path(os.path.commonpath([Path(one).parent for one in locations]))
    folders = [posixpath.dirname(str(one)).split("/") for one in locations]
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*folders))]
    if len(shared) < 3:
        raise UsageError("the models have no folder in common", hint="convert those of each file system by themselves")
    return "/".join(shared)
