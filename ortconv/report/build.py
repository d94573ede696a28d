"""What `ortconv build` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.errors import GateError
from ortconv.files import size
from ortconv.project.build import Build, BuiltArtifact
from ortconv.report import check
from ortconv.report.sections import Section
from ortconv.wording import counted


def sections(build: Build) -> Iterator[Section]:
    """The results of a build as tables: the artifacts, then the changed metrics of failed gates."""
    title = f"{counted(len(build.artifacts), 'artifact')} of {build.project}: {_verdict(build)}"
    header = ("artifact", "file", ">size", ">nodes", ">loads in", "accelerator", "gates")
    yield Section(
        title, [f"operator config {build.config}"] if build.config else [], header, list(map(_row, build.artifacts))
    )
    for artifact in build.artifacts:
        if artifact.check is not None and artifact.check.failed:
            yield from check.sections(artifact.check)


def _verdict(build: Build) -> str:
    failed = len(build.failed_gates)
    broken = sum(bool(a.error) and a.error_kind != GateError.kind for a in build.artifacts)
    verdicts = [f"{broken} failed"] if broken else []
    verdicts += [counted(failed, "gate fails", "gates fail")] if failed else []
    return ", ".join(verdicts) or "everything is fine"


def _row(artifact: BuiltArtifact) -> tuple[str, ...]:
    if not artifact.file:
        return artifact.label, "", "", "", "", "", artifact.error
    partitions = ", ".join(f"{name} {counted(count, 'node')}" for name, count in artifact.partitions.items())
    numbers = size(artifact.bytes), str(artifact.nodes), f"{artifact.onnxruntime} and later"
    return artifact.label, artifact.file, *numbers, partitions, _gates(artifact)


def _gates(artifact: BuiltArtifact) -> str:
    found = artifact.check
    if artifact.error:
        return artifact.error
    if found is None:
        return ""
    if found.updated:
        return "accepted"
    total, failed = len(found.conditions), len(found.failed)
    return counted(failed, f"of {total} fails", f"of {total} fail") if failed else f"all {total} pass"
