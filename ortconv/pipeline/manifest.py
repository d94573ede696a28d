"""The manifest of a conversion: source, result, options, versions and validation.

It contains no dates or times, so that equal conversions have equal manifests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.documents import Document, read_document
from ortconv.files import digest
from ortconv.models import load
from ortconv.onnxio.external import components
from ortconv.pipeline.arguments import arguments
from ortconv.pipeline.config import STAMP, lines_of
from ortconv.public import public
from ortconv.wording import NOT_INSTALLED, counted, installed

if TYPE_CHECKING:
    from ortconv.pipeline.options import Options
    from ortconv.pipeline.result import Result


ENDING = "manifest.json"
"""The manifest of x.ort is x.manifest.json."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelDigest:
    """Size and SHA-256 of a model. `file` is relative to the folder of the document; `external` has those of its weight files, by
    paths relative to `file`.
    """

    file: str
    bytes: int
    sha256: str
    external: dict[str, FileDigest]


@dataclass(frozen=True, slots=True)
class ManifestEngine:
    """Backends on which source and result were run."""

    name: str
    version: str
    loads: bool


@dataclass(frozen=True, slots=True)
class ManifestValidation:
    """The result of validation. `skipped` is the reason if no numbers were compared."""

    engines: list[ManifestEngine]
    max_abs: float
    scaled: float
    limit: float
    skipped: str | None


@dataclass
class Manifest(Document):
    """Facts about an artifact. Paths are relative to the manifest's folder, with slashes."""

    source: ModelDigest
    files: dict[str, FileDigest]
    """Files that the conversion wrote, without the manifest."""
    options: list[str]
    """Options that differ from their defaults, as arguments of `ortconv convert`. For a file, its SHA-256."""
    versions: dict[str, str]
    """Versions of ortconv and of packages that affect the results."""
    onnxruntime: str
    """The oldest release that loads the file."""
    onnxruntime_reason: str
    """The feature that older releases lack."""
    required: list[str]
    """The lines of the operator config: operators that a reduced build needs."""
    operators: dict[str, int]
    """Number of nodes for each operator."""
    rewrites: dict[str, int]
    """Number of rewrites for each rule of the optimizer."""
    partitions: dict[str, int]
    """Number of nodes in partitions, for each execution provider that the file was made for."""
    values: dict[str, str]
    """Values that nodes of the source's main graph produce, each with its name in the result if the result still has it."""
    validation: ManifestValidation | None
    stamped: bool
    """True if the metadata of the .ort file contains the stamp."""

    def text(self) -> str:
        """The JSON document."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


@cache
def versions() -> Mapping[str, str]:
    """Versions of installed packages that affect the results."""
    found = installed(("ortconv", "onnxruntime", "onnx", "numpy"))
    return {name: version for name, version in found.items() if version != NOT_INSTALLED}


def stamp(source: Path, options: Options) -> str:
    """The stamp of a conversion of this source with these options."""
    return stamp_text(versions().get("ortconv", ""), digest(source), arguments(options))


def stamp_text(version: str, source: str, options: list[str]) -> str:
    """The stamp: the version of ortconv, the SHA-256 of the source, and the options."""
    return json.dumps({"version": version, "source": source, "options": options}, separators=(",", ":"))


def make_manifest(
    result: Result, source: Path, folder: Path, files: Mapping[str, Path | bytes], options: Options
) -> Manifest:
    """The manifest of a result, for a folder. `files` maps paths in the folder to files or their contents."""
    return Manifest(
        source=digest_model(source, result.external, folder),
        files={name: _digest_of(content) for name, content in files.items()},
        options=arguments(options),
        versions=dict(versions()),
        onnxruntime=result.oldest_onnxruntime.release,
        onnxruntime_reason=result.oldest_onnxruntime.reason,
        required=lines_of(result.required),
        operators=result.operators,
        rewrites=result.rewrites,
        partitions=dict(Counter(p.provider for p in result.partitions or () for _ in p.nodes)),
        values=result.values,
        validation=_validation(result),
        stamped=options.stamp,
    )


def digest_model(path: Path, external: Iterable[str], folder: Path) -> ModelDigest:
    """Digests of a model and its weight files, for a document in a folder."""
    weights = {name: _digest_of(path.parent / name) for name in sorted(external)}
    return ModelDigest(_relative(path, folder), path.stat().st_size, digest(path), weights)


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive of Windows
        return path.name


def _digest_of(content: Path | bytes) -> FileDigest:
    if isinstance(content, bytes):
        return FileDigest(len(content), hashlib.sha256(content).hexdigest())
    return FileDigest(content.stat().st_size, digest(content))


def _validation(result: Result) -> ManifestValidation | None:
    check = result.validation
    if check is None:
        return None
    engines = [ManifestEngine(e.name, e.version, e.loads) for e in check.engines]
    return ManifestValidation(engines, check.max_abs, check.scaled, check.limit, check.skipped)


# ----------------------------------------------------------------------------------------------------------------- reading


def read_manifest(path: str | Path) -> Manifest:
    """Read a manifest. Raises FormatError if the file is not one."""
    return read_document(path, Manifest, "manifest")


# --------------------------------------------------------------------------------------------------------------- verifying


@dataclass
class ManifestReport(Document):
    """A manifest, and its differences from the present files and source."""

    path: str
    manifest: Manifest
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Checks that were not possible."""

    def __str__(self) -> str:
        made = f"{self.manifest.versions.get('ortconv', 'unknown')}, loads in onnxruntime {self.manifest.onnxruntime} and later"
        more = "".join(f"; {note}" for note in self.notes)
        return f"{counted(len(self.manifest.files), 'file')} by ortconv {made}, {counted(len(self.findings), 'finding')}{more}"


@public
def verify_manifest(path: str | Path) -> ManifestReport:
    """Check a manifest against its files: digests, structure of .ort files, stamps. The source is checked if it is present."""
    path = Path(path)
    report = ManifestReport(str(path), read_manifest(path))
    for name, wanted in report.manifest.files.items():
        _check_file(report, path.parent, name, wanted)
    source = report.manifest.source
    place = path.parent / source.file
    if not place.is_file():
        report.notes.append(f"the source {source.file} is not here")
    elif digest(place) != source.sha256:
        report.findings.append(f"the source {source.file} has changed since: convert it again")
    else:
        for name, wanted in source.external.items():
            _has_digest(report, place.parent, name, wanted)
    return report


def _check_file(report: ManifestReport, folder: Path, name: str, wanted: FileDigest) -> None:
    """Compare a file with its digest. If it has the same content and is an .ort file, check its structure and stamp, too."""
    if not _has_digest(report, folder, name, wanted) or not name.endswith(".ort"):
        return
    from ortconv.ortformat.check import check

    report.findings += [f"{name}: {finding}" for finding in check(folder / name).findings]
    if report.manifest.stamped:
        manifest = report.manifest
        expected = stamp_text(manifest.versions.get("ortconv", ""), manifest.source.sha256, manifest.options)
        if load(folder / name).metadata.get(STAMP) != expected:
            report.findings.append(f"{name}: its stamp is not that of this manifest")


def _has_digest(report: ManifestReport, folder: Path, name: str, wanted: FileDigest) -> bool:
    """True if a file has the size and digest in the manifest; else a finding is added."""
    place = folder.joinpath(*components(name))
    if not place.is_file():
        report.findings.append(f"{name} is missing")
    elif place.stat().st_size != wanted.bytes:
        report.findings.append(f"{name} has {place.stat().st_size} bytes, not {wanted.bytes}")
    elif digest(place) != wanted.sha256:
        report.findings.append(f"{name} has another content: its SHA-256 differs")
    else:
        return True
    return False
