"""The manifest of a conversion: what was made of what, how, and what was proved.

It has no dates and no times, so the same work gives the same text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.errors import FormatError
from ortconv.files import digest, read_text
from ortconv.onnxio.external import components
from ortconv.pipeline.arguments import arguments

if TYPE_CHECKING:
    from ortconv.ir.model import Model
    from ortconv.pipeline.options import Options
    from ortconv.pipeline.result import Result

VERSION = 1
"""Of the JSON document."""

ENDING = "manifest.json"
"""The manifest of x.ort is x.manifest.json."""

STAMP = "ortconv"
"""The key of the short form among the metadata of a model."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and the SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelDigest:
    """A model. `file` is relative to the folder of the document, `external` are the files with its weights, relative to `file`."""

    file: str
    bytes: int
    sha256: str
    external: dict[str, FileDigest]


@dataclass(frozen=True, slots=True)
class ManifestEngine:
    """Where source and result were run."""

    name: str
    version: str
    loads: bool


@dataclass(frozen=True, slots=True)
class ManifestValidation:
    """What validation proved. `skipped` is the reason why no numbers were compared."""

    engines: list[ManifestEngine]
    max_abs: float
    scaled: float
    limit: float
    skipped: str | None


@dataclass
class Manifest:
    """What is known of an artifact. Paths are relative to the manifest's folder, with slashes."""

    source: ModelDigest
    files: dict[str, FileDigest]
    """What the conversion wrote, but for the manifest."""
    options: list[str]
    """Beyond the defaults, as arguments of `ortconv convert`; files that these name are given by their SHA-256."""
    versions: dict[str, str]
    """Of ortconv and of the packages that results depend on."""
    onnxruntime: str
    """The oldest release that loads the file."""
    onnxruntime_reason: str
    """What older ones lack."""
    required: list[str]
    """The lines of the operator config: what the file needs of a reduced build."""
    operators: dict[str, int]
    """How often each operator occurs."""
    rewrites: dict[str, int]
    """How often each rule of the optimizer fired."""
    partitions: dict[str, int]
    """By execution provider that the file was made for: the nodes of its partitions together."""
    values: dict[str, str]
    """Values that nodes of the source's main graph make, and the names under which the file still makes them."""
    validation: ManifestValidation | None
    stamped: bool
    """Whether the metadata of the .ort file has the short form."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"version": VERSION, **asdict(self)}

    def text(self) -> str:
        """The JSON document."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


@cache
def versions() -> Mapping[str, str]:
    """The versions of the packages that results depend on, as far as they are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("ortconv", "onnxruntime", "onnx", "numpy"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def stamp(model: Model, source: Path, options: Options) -> None:
    """Write the short form into the metadata of a model: version, source and options. Without `options.stamp`, remove an old one.

    A stamp that came with the source is about another conversion.
    """
    model.metadata.pop(STAMP, None)
    if options.stamp:
        model.metadata[STAMP] = stamp_text(versions().get("ortconv", ""), digest(source), arguments(options))


def stamp_text(version: str, source: str, options: list[str]) -> str:
    """The short form: the version of ortconv, the SHA-256 of the source, and the options."""
    return json.dumps({"version": version, "source": source, "options": options}, separators=(",", ":"))


def make_manifest(
    result: Result, source: Path, folder: Path, files: Mapping[str, Path | bytes], options: Options
) -> Manifest:
    """The manifest of a result, to be written to a folder. `files` are the contents of files by their paths there."""
    return Manifest(
        source=digest_model(source, result.external, folder),
        files={name: _digest_of(content) for name, content in files.items()},
        options=arguments(options),
        versions=dict(versions()),
        onnxruntime=result.oldest_onnxruntime["release"],
        onnxruntime_reason=result.oldest_onnxruntime["reason"],
        required=[line for line in result.required.splitlines() if not line.startswith("#")],
        operators=result.operators,
        rewrites=result.rewrites,
        partitions=_partitions(result),
        values=result.values,
        validation=_validation(result),
        stamped=options.stamp,
    )


def digest_model(path: Path, external: Iterable[str], folder: Path) -> ModelDigest:
    """The digests of a model and of its weights, for a document in a folder."""
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


def _partitions(result: Result) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in result.partitions or ():
        found[one["provider"]] = found.get(one["provider"], 0) + len(one["nodes"])
    return found


def _validation(result: Result) -> ManifestValidation | None:
    check = result.validation
    if check is None:
        return None
    engines = [ManifestEngine(e.name, e.version, e.loads) for e in check.engines]
    return ManifestValidation(engines, check.max_abs, check.scaled, check.limit, check.skipped)


# ----------------------------------------------------------------------------------------------------------------- reading


def read_manifest(path: str | Path) -> Manifest:
    """The manifest of a file. FormatError for what is none."""
    try:
        found = json.loads(read_text(path, refusal=FormatError))
        return _manifest(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"no manifest of version {VERSION}: {error}", file=path) from error


def _manifest(found: dict[str, Any]) -> Manifest:
    if found.pop("version") != VERSION:
        raise ValueError("another version")
    validation = found["validation"]
    if validation is not None:
        validation = ManifestValidation(
            **validation | {"engines": [ManifestEngine(**e) for e in validation["engines"]]}
        )
    source = found["source"]
    made = {
        "source": ModelDigest(**source | {"external": _digests(source["external"])}),
        "files": _digests(found["files"]),
        "validation": validation,
    }
    return Manifest(**found | made)


def read_model_digest(found: dict[str, Any]) -> ModelDigest:
    """The digests of a model from their form in JSON."""
    return ModelDigest(**found | {"external": _digests(found["external"])})


def _digests(found: dict[str, Any]) -> dict[str, FileDigest]:
    return {str(name): FileDigest(int(one["bytes"]), str(one["sha256"])) for name, one in found.items()}


# --------------------------------------------------------------------------------------------------------------- verifying


@dataclass
class ManifestReport:
    """What stands in a manifest, and where its files or its source are not those that it describes."""

    path: str
    manifest: Manifest
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be looked at."""

    def __str__(self) -> str:
        made = f"{self.manifest.versions.get('ortconv', 'unknown')}, loads in onnxruntime {self.manifest.onnxruntime} and later"
        more = "".join(f"; {note}" for note in self.notes)
        return f"{len(self.manifest.files)} files by ortconv {made}, {len(self.findings)} findings{more}"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"version": VERSION, **asdict(self)}


def verify_manifest(path: str | Path) -> ManifestReport:
    """Hold a manifest against its files: digests, the structure of .ort files, stamps; and against its source, if that is there."""
    path = Path(path)
    report = ManifestReport(str(path), read_manifest(path))
    for name, wanted in report.manifest.files.items():
        _look(report, path.parent, name, wanted)
    source = report.manifest.source
    place = path.parent / source.file
    if not place.is_file():
        report.notes.append(f"the source {source.file} is not here")
    elif digest(place) != source.sha256:
        report.findings.append(f"the source {source.file} has changed since: convert it again")
    else:
        for name, wanted in source.external.items():
            _compare(report, place.parent, name, wanted)
    return report


def _look(report: ManifestReport, folder: Path, name: str, wanted: FileDigest) -> None:
    """Compare a file that the conversion wrote; if it is the right one and an .ort file, also look into it."""
    if not _compare(report, folder, name, wanted) or not name.endswith(".ort"):
        return
    from ortconv.models import load
    from ortconv.ortformat.check import check

    report.findings += [f"{name}: {finding}" for finding in check(folder / name).findings]
    if report.manifest.stamped:
        manifest = report.manifest
        expected = stamp_text(manifest.versions.get("ortconv", ""), manifest.source.sha256, manifest.options)
        if load(folder / name).metadata.get(STAMP) != expected:
            report.findings.append(f"{name}: its stamp is not that of this manifest")


def _compare(report: ManifestReport, folder: Path, name: str, wanted: FileDigest) -> bool:
    """Whether a file is the one that the manifest describes; a finding if not."""
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
