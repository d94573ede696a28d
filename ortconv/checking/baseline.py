"""A baseline: a file with facts about an accepted model, and a folder next to it with a copy of that model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ortconv.checking.facts import Facts
from ortconv.documents import Document, read_document
from ortconv.errors import UsageError
from ortconv.files import created, digest, opened, replacing, write_text
from ortconv.onnxio.external import components
from ortconv.pipeline.manifest import ModelDigest, digest_model


@dataclass(frozen=True, slots=True)
class Baseline(Document):
    """An accepted model. It has no times: each check measures both models side by side."""

    model: ModelDigest
    facts: Facts


def read_baseline(path: Path) -> Baseline:
    """Read the baseline of a file. FormatError if the file is not a baseline."""
    return read_document(path, Baseline, "baseline")


def stored_model(path: Path, baseline: Baseline) -> Path:
    """The path of the model's copy. UsageError if it is missing or differs from the accepted model."""
    wanted = _files(path.parent, baseline)
    for file, sha256 in wanted.items():
        if not file.is_file():
            hint = "check it out, or write it: --update"
            raise UsageError("the model of the baseline is missing", file=file, hint=hint)
        if digest(file) != sha256:
            hint = "--update accepts the present model"
            raise UsageError("this is not the model of the baseline", file=file, hint=hint)
    return next(iter(wanted))


def write_baseline(path: Path, model: Path, external: tuple[str, ...], facts: Facts, old: Baseline | None) -> Baseline:
    """Accept a model: copy it into the folder X.model next to X.json, and write X.json. The copy of the old baseline is removed.

    UsageError if one of the paths holds a file that does not belong to the old baseline.
    """
    folder = path.with_name(f"{path.stem}.model")
    if folder == path:
        raise UsageError("this is the folder for the model's copy", file=path, hint=f"name it {path.stem}.json")
    before = {} if old is None else _files(path.parent, old)
    copies = {model.parent / name: folder.joinpath(*components(name)) for name in (model.name, *external)}
    for source, target in copies.items():
        if target.exists() and digest(target) not in (before.get(target), digest(source)):
            raise UsageError("this file is not of the baseline, and is not replaced", file=target, hint="move it away")
    for source, target in copies.items():
        _copy(source, target)
    made = Baseline(digest_model(folder / model.name, external, path.parent), facts)
    write_text(path, json.dumps(made.to_dict(), indent=1) + "\n")
    _remove_unchanged({file: before[file] for file in before.keys() - _files(path.parent, made).keys()})
    return made


def _remove_unchanged(digests: Mapping[Path, str]) -> None:
    """Remove the files that still have these digests."""
    for file, known in digests.items():
        if file.is_file() and digest(file) == known:
            file.unlink()


def _files(folder: Path, baseline: Baseline) -> dict[Path, str]:
    """The files of the copy with their digests, the model file first."""
    place = folder.joinpath(*components(baseline.model.file))
    weights = {place.parent.joinpath(*components(n)): one.sha256 for n, one in baseline.model.external.items()}
    return {place: baseline.model.sha256, **weights}


def _copy(source: Path, target: Path) -> None:
    with suppress(OSError):
        if target.samefile(source):
            return
    with replacing(target) as draft, opened(source) as file, created(draft) as copy:
        shutil.copyfileobj(file, copy)
