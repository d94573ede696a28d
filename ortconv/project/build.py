"""Build of a project: outdated artifacts are converted, then every artifact is checked against its baseline."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ortconv.batch.crew import crew_of
from ortconv.batch.engine import Batch, Failure
from ortconv.batch.journal import BatchJournal, FinishedModel
from ortconv.batch.work import Conversion, Journaling, convert_one
from ortconv.checking.check import Check, RunSettings, accepting, check
from ortconv.documents import Document
from ortconv.errors import BatchError, GateError, UsageError
from ortconv.files import write_text
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.pipeline.config import beside
from ortconv.pipeline.manifest import ENDING, read_manifest
from ortconv.pipeline.result import Result
from ortconv.project.project import Artifact, Project, find_project, label_of, read_project
from ortconv.public import public
from ortconv.watch import Activity
from ortconv.wording import counted

T = TypeVar("T", Conversion, "CheckItem")
R = TypeVar("R")


@dataclass
class BuiltArtifact:
    """The outcome for an artifact. If it could not be converted, `file` and `manifest` are empty, and `error` holds the reason."""

    model: str
    target: str
    source: str
    file: str = ""
    manifest: str = ""
    unchanged: bool = False
    nodes: int = 0
    bytes: int = 0
    onnxruntime: str = ""
    """The oldest release that loads the file."""
    partitions: dict[str, int] = field(default_factory=dict)
    """The number of nodes in each partition, by execution provider."""
    error: str = ""
    error_kind: str = ""
    """The kind of failure, in a word or two, such as: invalid model. A failed gate of `convert` is one, too."""
    check: Check | None = None
    """The result of its check; None if it has no gates."""

    @property
    def label(self) -> str:
        return label_of(self.model, self.target)


@dataclass
class Build(Document):
    """The result of a build."""

    project: str
    config: str = ""
    """The operator config of all artifacts; empty if none was written."""
    artifacts: list[BuiltArtifact] = field(default_factory=list)

    def __repr__(self) -> str:
        failed = sum(bool(a.error or (a.check is not None and a.check.failed)) for a in self.artifacts)
        return f"<Build of {self.project}: {counted(len(self.artifacts), 'artifact')}, {failed} failed>"

    @property
    def failed_gates(self) -> list[str]:
        """The messages of all conditions that hold. Those of conversions come first."""
        converting = [f"{a.label}: {a.error}" for a in self.artifacts if a.error_kind == GateError.kind]
        return converting + [f"{a.label}: {one.message}" for a in self.artifacts if a.check for one in a.check.failed]

    def refuse(self) -> None:
        """BatchError if an artifact could not be made or checked, GateError if a gate fails."""
        errors = [f"{a.label}: {a.error}" for a in self.artifacts if a.error and a.error_kind != GateError.kind]
        if errors:
            total = len(self.artifacts)
            raise BatchError(f"{len(errors)} of {total} artifacts failed, the first: {errors[0]}", file=self.project)
        gates = self.failed_gates
        if gates:
            failed = [one for a in self.artifacts if a.check for one in a.check.failed]
            hint = accepting("ortconv build --update", failed)
            count = counted(len(gates), "gate fails", "gates fail")
            raise GateError(f"{count}: {'; '.join(gates)}", file=self.project, hint=hint)


Event = tuple[BuiltArtifact, Result | Check | Failure]
"""An artifact with the outcome of its conversion or of its check."""


class Building(Iterator[Event]):
    """A build in progress. `total` is the number of artifacts; `build` is complete at the end."""

    def __init__(
        self,
        project: Project,
        artifacts: Sequence[Artifact],
        *,
        jobs: int | None = None,
        timeout: float | None = None,
        memory: int | None = None,
        force: bool = False,
        update: bool = False,
    ) -> None:
        self.total, self.build = len(artifacts), Build(str(project.path))
        self._project, self._force, self._update = project, force, update
        self._jobs, self._limits = jobs, (timeout, memory)
        self._artifacts = {a.output: a for a in artifacts}
        self._built = {a.output: BuiltArtifact(a.model, a.target, str(a.source)) for a in artifacts}
        self.build.artifacts = list(self._built.values())
        self._types = any(a.options.enable_type_reduction for a in artifacts)
        self._required = RequiredOperators(types=self._types)
        self._batch: Batch[Any, Any] | None = None
        self._events = self._run()

    def __next__(self) -> Event:
        return next(self._events)

    def busy(self) -> list[tuple[str, Activity, float]]:
        """The artifacts in progress, each with its current activity and the seconds since it began."""
        return [] if self._batch is None else self._batch.busy()

    def close(self) -> None:
        """Stop the build. Artifacts that are not converted yet are left out."""
        self._events.close()

    def _run(self) -> Generator[Event, None, None]:
        with closing(BatchJournal(self._project.output_dir)) as journal:  # no other build can write to the folder
            yield from self._convert({} if self._force else journal.records())
            self._write_config()
            yield from self._check()

    # ------------------------------------------------------------------ converting

    def _convert(self, known: Mapping[str, FinishedModel]) -> Iterator[Event]:
        folder = self._project.output_dir
        items = [
            Conversion(a.source, folder, a.output, a.options, Journaling.WORKER, known.get(a.output))
            for a in self._artifacts.values()
        ]
        for item, outcome in self._each(convert_one, items, self._jobs):
            built = self._built[item.output]
            yield built, outcome if isinstance(outcome, Failure) else self._converted(item.output, built, outcome[0])

    def _converted(self, output: str, built: BuiltArtifact, result: Result) -> Result:
        file = self._project.output_dir / output
        path = beside(file, file.stem, ENDING)
        manifest = read_manifest(path)
        built.file, built.manifest, built.unchanged = str(file), str(path), result.unchanged
        built.nodes, built.bytes = result.nodes_after, result.bytes_after
        built.onnxruntime, built.partitions = manifest.onnxruntime, manifest.partitions
        self._required.merge(RequiredOperators.parse("\n".join(manifest.required)))
        return result

    def _write_config(self) -> None:
        """Write the operator config of all artifacts, unless one is missing: a build with that config would lack operators."""
        done = [a for a in self.build.artifacts if a.file]
        if len(done) < len(self._project.artifacts):
            return
        types = "_and_types" if self._types else ""
        path = self._project.output_dir / f"required_operators{types}.config"
        write_text(path, self._required.text(sorted(a.file for a in done)))
        self.build.config = str(path)

    # ------------------------------------------------------------------ checking

    def _check(self) -> Iterator[Event]:
        """Check artifacts against their baselines, one after the other: nothing may disturb the measurements."""
        items = [
            CheckItem(a, self._built[output].file, self._update)
            for output, a in self._artifacts.items()
            if a.gates is not None and self._built[output].file
        ]
        for item, outcome in self._each(check_artifact, items, 1):
            built = self._built[item.output]
            built.check = None if isinstance(outcome, Failure) else outcome
            yield built, outcome

    def _each(self, work: Callable[[T], R], items: Sequence[T], jobs: int | None) -> Iterator[tuple[T, R | Failure]]:
        """Each item with the result or failure of a call on it, made in processes of their own."""
        if not items:
            return
        with crew_of(None, jobs, *self._limits, isolated=True) as crew:
            self._batch = Batch(work, items, crew, lambda item: self._built[item.output].label)
            try:
                for item, outcome in self._batch:
                    if isinstance(outcome, Failure):
                        built = self._built[item.output]
                        built.error, built.error_kind = outcome.reason, outcome.kind
                    yield item, outcome
            finally:
                self._batch = None


@dataclass(frozen=True, slots=True)
class CheckItem:
    """An artifact to check, or to accept as a baseline."""

    artifact: Artifact
    file: str
    update: bool

    @property
    def output(self) -> str:
        return self.artifact.output


def check_artifact(item: CheckItem) -> Check:
    """Check an artifact against its baseline, or accept it as the new one."""
    gates, options = item.artifact.gates, item.artifact.options
    assert gates is not None
    if not item.update and not gates.baseline.exists():
        hint = "ortconv build --update accepts the artifacts"
        raise UsageError(f"there is no baseline {gates.baseline} yet", hint=hint)
    return check(
        item.file,
        gates.baseline,
        target=next(iter(options.targets()), None),
        fail_on=gates.fail_on,
        update=item.update,
        app_config=gates.app_config,
        runs=RunSettings(seed=gates.seed, custom_op_library=options.custom_op_library, measure=gates.measure),
    )


@public
def build(
    project: str | Path = ".",
    *,
    models: Sequence[str] = (),
    targets: Sequence[str] = (),
    jobs: int | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    force: bool = False,
    update: bool = False,
) -> Build:
    """Build a project: the file ortconv.toml, or the one of a folder or of a folder above it.

    Artifacts that are out of date (all, with `force`) are converted by `jobs` processes at a time, each with `timeout` seconds and
    `memory` bytes. Each artifact gets a manifest, and all together one operator config. Then the gates are checked; with `update`,
    the artifacts are accepted as baselines. `models` and `targets` restrict the build. Errors of single artifacts are in the
    result: see `Build.refuse`.
    """
    found = read_project(find_project(Path(project)))
    chosen = found.chosen(models, targets)
    building = Building(found, chosen, jobs=jobs, timeout=timeout, memory=memory, force=force, update=update)
    for _ in building:
        pass
    return building.build
