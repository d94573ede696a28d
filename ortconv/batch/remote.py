"""Conversions of models at URLs, and the journal of a folder at a URL.

A model and its weights are downloaded to a temporary folder. The conversion works there, and the results are uploaded.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ortconv.batch.journal import NAME, FinishedModel, last_records
from ortconv.batch.locations import fetch, file_system, send
from ortconv.batch.work import Conversion, Outcome, convert_one
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import renamed, temporary_folder
from ortconv.onnxio.external import components
from ortconv.onnxio.load import names_in
from ortconv.pipeline.result import Result
from ortconv.pipeline.stages import Observer


def convert_anywhere(item: Conversion, observer: Observer | None = None) -> Outcome:
    """Call `convert_one`, on local copies if the source or the folder is a URL."""
    if isinstance(item.source, Path) and isinstance(item.folder, Path):
        return convert_one(item, observer)
    with temporary_folder() as folder:
        source = folder / "in" / posixpath.basename(item.source) if isinstance(item.source, str) else item.source
        try:
            if isinstance(item.source, str):
                _fetch_model(item.source, source)
            if isinstance(item.folder, str):
                near = folder / "out"
                _fetch_results(item.known, item.folder, near)
                result, record = convert_one(replace(item, source=source, folder=near), observer)
                _send_results(result, near, item.folder)
            else:
                result, record = convert_one(replace(item, source=source), observer)
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
            send(near / path, f"{folder}/{path}")
    result.files = [f"{folder}/{path}" for path in paths]


def _fetch_model(url: str, target: Path) -> None:
    """Download a model and the files with its weights."""
    fetch(url, target)
    for name in names_in(target).external:
        path = "/".join(components(name))
        fetch(f"{posixpath.dirname(url)}/{path}", target.parent / path)


def _fetch_results(known: FinishedModel | None, folder: str, near: Path) -> None:
    """Download the files that an earlier batch recorded, as far as they exist."""
    near.mkdir()
    for name in known.files if known is not None else ():
        with suppress(FileNotFoundError):
            fetch(f"{folder}/{name}", near / "/".join(components(name)))


class FarJournal:
    """The journal of a folder at a URL. Unlike a local journal, it does not lock out other batches."""

    def __init__(self, folder: str) -> None:
        self._system, self._path = file_system(f"{folder}/{NAME}")
        self._system.makedirs(posixpath.dirname(self._path), exist_ok=True)

    def close(self) -> None:
        """Does nothing: no file is open."""

    def records(self) -> dict[str, FinishedModel]:
        return last_records(self._system.cat_file(self._path).splitlines()) if self._system.exists(self._path) else {}

    def append(self, record: FinishedModel) -> None:
        with self._system.open(self._path, "ab") as file:
            file.write(record.line())
