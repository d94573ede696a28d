"""Exports a model's NNAPI partitions as .tflite files for LiteRT, and validates them by running them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ortconv.backends.litert.backend import Exported, LiteRt
from ortconv.backends.litert.runtime import version
from ortconv.backends.nnapi.backend import NnapiOptions
from ortconv.errors import BackendError, OrtconvError, UnsupportedError, UsageError
from ortconv.files import created, renamed, replacing
from ortconv.gates import check_gates, parse_gates
from ortconv.ir.graph import Graph
from ortconv.models import ModelSource, as_file, load
from ortconv.partition import Target
from ortconv.partition.policy import DEFAULT_STOP_OPS
from ortconv.partition.refusals import grouped
from ortconv.pipeline.analysis import analyze
from ortconv.pipeline.options import Options
from ortconv.public import public
from ortconv.runtime.backend import Claim, Program, Region
from ortconv.runtime.session import Session
from ortconv.validation.reference import Reference
from ortconv.validation.validate import EngineResult, Validation, remarks

HINT = "nothing was written; --no-validate writes the files all the same"
SHOWN_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One .tflite file. `inputs` and `outputs` are the names in its signature, which are those of the model's values."""

    file: str
    nodes: tuple[str, ...]
    operators: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason against nodes, their number and an example."""

    reason: str
    nodes: int
    example: str


@dataclass
class ExportResult:
    """The result of an export: files in the order in which they run, and the reasons why nodes are not in any of them."""

    source: str
    files: list[ExportedFile] = field(default_factory=list)
    nodes: int = 0
    """Number of nodes in the model as optimized for its level."""
    refusals: list[Reason] = field(default_factory=list)
    """The most frequent one comes first."""
    validation: Validation | None = None

    @property
    def taken(self) -> int:
        return sum(len(one.nodes) for one in self.files)

    def __repr__(self) -> str:
        return f"<ExportResult {self.source} -> {len(self.files)} files: {self.taken} of {self.nodes} nodes>"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return asdict(self) | {"taken": self.taken}


@public
def export(
    source: ModelSource,
    output: str | Path,
    *,
    whole: bool = False,
    level: str | None = None,
    fix_dims: Mapping[str, int] | None = None,
    freeze_initializers: bool = False,
    stop_ops: Sequence[str] | None = None,
    maximize: bool = False,
    validate: bool = True,
    validate_with: Sequence[Mapping[str, Any]] = (),
    validate_budget: str | None = None,
    allow_unchecked: bool = False,
    fail_on: str | Sequence[str] = (),
) -> ExportResult:
    """Write each NNAPI partition of a model to the folder `output` as NAME.0.tflite, NAME.1.tflite and so on; with `whole`, write
    the whole model as NAME.tflite.

    `level`, `freeze_initializers` and `maximize` have the same meaning as in `analyze`. Files are written only if LiteRT runs them
    and the outputs of the model with them match those of the source; MismatchError is raised if they differ. Raises
    UnsupportedError if there is nothing to write, or, with `whole`, if a node is refused; GateError if a condition of `fail_on`
    holds, such as "partitions>3,coverage<80%".
    """
    options = Options(
        fix_dims=fix_dims or {}, freeze_initializers=freeze_initializers, validate=validate, validate_with=tuple(validate_with),
        validate_budget=validate_budget, allow_unchecked=allow_unchecked, validate_on="numpy",
    )  # fmt: skip
    target = Target(stop_ops=DEFAULT_STOP_OPS if stop_ops is None else tuple(stop_ops))
    with as_file(source) as (path, label):
        try:
            folder = _folder(output)
            backend = Exporter(NnapiOptions(cpu_only=True, stop_ops=target.stop_ops))
            backend.loads = validate and not _cannot_load(backend, allow_unchecked)
            fixed, frozen = options.fix_dims, options.freeze_initializers
            model = analyze(path, target, level, fix_dims=fixed, freeze_initializers=frozen, maximize=maximize).model
            result = _result(label, model.graph, backend.claim(model.graph), whole, fail_on)
            settings = replace(options.validation(), fixed_point=True)
            source_model = load(path, fixed, freeze_initializers=frozen)
            expected = Reference(source_model, path, settings) if validate else None
            session = Session(model, [backend])
            result.validation = _validated(expected, session, backend, allow_unchecked)
            stem = Path(label).stem if isinstance(source, str | Path) else "model"
            result.files = _written(backend.exported, folder, stem, whole)
        except OrtconvError as error:
            raise renamed(error.at(file=path), path, label) from error.__cause__
    return result


class Exporter(LiteRt):
    """Backend that keeps the partitions that it compiles, in the order in which they run. It can load them into LiteRT."""

    def __init__(self, options: NnapiOptions) -> None:
        super().__init__(options=options)
        self.loads = True
        self.exported: list[Exported] = []

    def export(self, region: Region) -> Exported:
        self.exported.append(super().export(region))
        return self.exported[-1]

    def compile(self, region: Region) -> Program:
        return super().compile(region) if self.loads else _Unloaded(self.export(region))


@dataclass(frozen=True, slots=True)
class _Unloaded:
    """A partition that cannot run because LiteRT is not installed."""

    exported: Exported

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        raise BackendError("the partition is not loaded", backend="litert")


def _folder(output: str | Path) -> Path:
    folder = Path(output)
    if folder.is_file() or folder.suffix.lower() in (".tflite", ".onnx", ".ort"):
        raise UsageError("the output is a folder, for a file of each partition", file=folder, hint="write -o DIR")
    return folder


def _cannot_load(backend: LiteRt, allow_unchecked: bool) -> bool:
    """True if LiteRT is not installed. Raises UnsupportedError unless `allow_unchecked` is set."""
    reason = backend.available()
    if reason is not None and not allow_unchecked:
        raise UnsupportedError(
            f"the files cannot be checked: {reason}", hint="--allow-unchecked or --no-validate writes them all the same"
        )
    return reason is not None


def _result(label: str, graph: Graph, claim: Claim, whole: bool, fail_on: str | Sequence[str]) -> ExportResult:
    """The result before the files exist. Raises UnsupportedError if there is nothing to export."""
    total, refused = sum(1 for _ in graph), dict(claim.refused)
    found = grouped((reason, node) for node, reason in refused.items())
    rows = [Reason(reason, len(nodes), nodes[0].label) for reason, nodes in found.items()]
    result = ExportResult(label, nodes=total, refusals=sorted(rows, key=lambda row: -row.nodes))
    metrics = {
        "partitions": len(claim.groups),
        "coverage": 100.0 * (total - len(refused)) / total if total else 0.0,
        "nodes": total,
        "refused": len(refused),
    }
    check_gates(parse_gates(fail_on, "nnapi export"), metrics)
    if not claim.groups:
        why = _first(result) or "the model has none"
        raise UnsupportedError(f"no node can go to LiteRT: {why}", hint="ortconv partition says what helps")
    if whole and (refused or len(claim.groups) > 1):
        reason = _first(result) if refused else f"it falls into {len(claim.groups)} partitions"
        parts = "1 partition is" if len(claim.groups) == 1 else f"{len(claim.groups)} partitions are"
        hint = f"without --whole, {parts} written; ortconv partition says what helps"
        raise UnsupportedError(f"{len(refused)} of {total} nodes cannot go to LiteRT: {reason}", hint=hint)
    return result


def _first(result: ExportResult) -> str:
    """The most frequent reasons, as text."""
    rows = result.refusals[:SHOWN_REFUSALS]
    return "; ".join(f"{row.example}: {row.reason}" for row in rows)


# ------------------------------------------------------------------ proof


def _validated(
    expected: Reference | None, session: Session, backend: Exporter, allow_unchecked: bool
) -> Validation | None:
    """Validate a run of the model with its partitions on LiteRT. Raises UnsupportedError if nothing could be compared."""
    if expected is None:
        return None
    reason = _not_comparable(expected, backend)
    if reason is None:
        return _compared(expected, session)
    if not allow_unchecked:
        hint = "--allow-unchecked writes the files all the same, --validate-with gives inputs"
        raise UnsupportedError(f"the files could not be checked: {reason}", hint=hint)
    return Validation(skipped=reason)


def _not_comparable(expected: Reference, backend: Exporter) -> str | None:
    if not backend.loads:
        return backend.available()
    if "numpy" not in expected.outputs:
        return expected.why_not_numpy
    return "the source is too large to run as it is" if expected.is_shrunk else None


def _compared(expected: Reference, session: Session) -> Validation:
    results = expected.results_of(partial(session.run, None))
    found = expected.judge("numpy", results, "on LiteRT: ", HINT, excused=False)
    engine = EngineResult("litert", version(), loads=True, max_abs=found.largest, scaled=found.scaled)
    what = tuple(trial.what for trial in expected.trials)
    return Validation(
        "litert", found.largest, found.scaled, expected.limit, engines=(engine,), inputs=what, notes=remarks(expected)
    )


# ------------------------------------------------------------------ files


def _written(exported: Sequence[Exported], folder: Path, stem: str, whole: bool) -> list[ExportedFile]:
    """Write all files; they are moved into place once the last one is complete."""
    names = [f"{stem}.tflite"] if whole else [f"{stem}.{i}.tflite" for i in range(len(exported))]
    with ExitStack() as stack:
        for one, name in zip(exported, names, strict=True):
            draft = stack.enter_context(replacing(folder / name))
            with created(draft) as file:
                for segment in one.segments:
                    file.write(segment)
    return [_described(one, folder / name) for one, name in zip(exported, names, strict=True)]


def _described(one: Exported, path: Path) -> ExportedFile:
    model, nodes = one.model, tuple(node.label for node in one.region.nodes)
    inputs, outputs = (tuple(name for name, _ in ends) for ends in (model.inputs, model.outputs))
    return ExportedFile(str(path), nodes, len(model.operators), inputs, outputs, path.stat().st_size)
