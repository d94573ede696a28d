"""The main job, stage by stage: load, optimize, partition, fuse what is left to the CPU, write, validate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.errors import OrtconvError, UsageError
from ortconv.files import replacing, write_text
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.optimizer.engine import FOLD_LIMIT, Context, Rewrite
from ortconv.optimizer.levels import LEVELS, above_basic, basic_passes, run_passes

if TYPE_CHECKING:
    from ortconv.compare.validate import Reference, Validation
    from ortconv.partition import Partitioning, Target

Observer = Callable[[str, Model], None]
"""Called after every stage and pass with its name and the model as it is then."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a conversion does beyond its defaults. The names are those of the command line's flags."""

    optimization_level: str = "all"
    use_nnapi: bool = False
    nnapi_feature_level: int = 31
    nnapi_partitioning_stop_ops: tuple[str, ...] | None = None
    enable_type_reduction: bool = False
    target_platform: str | None = None
    save_optimized_onnx_model: bool = False
    write_config: bool = True
    fix_dims: Mapping[str, int] = field(default_factory=dict)
    fold_limit: int = FOLD_LIMIT
    disable_passes: tuple[str, ...] = ()
    only_passes: tuple[str, ...] = ()
    stop_after: int | None = None
    verify_each: bool = False
    validate: bool = True
    validate_with: Mapping[str, Any] | None = None
    custom_op_library: Path | None = None

    def __post_init__(self) -> None:
        if self.optimization_level not in LEVELS:
            raise UsageError(f"optimization level '{self.optimization_level}' is not one of {', '.join(LEVELS)}")
        if self.target_platform not in (None, "arm", "amd64"):
            raise UsageError(f"target platform '{self.target_platform}' is not one of arm, amd64")
        if not 27 <= self.nnapi_feature_level <= 31:
            raise UsageError(f"NNAPI feature level {self.nnapi_feature_level} is not in 27..31")


@dataclass
class Result:
    """What a conversion did."""

    source: str
    files: list[str] = field(default_factory=list)
    nodes_before: int = 0
    nodes_after: int = 0
    rewrites: dict[str, int] = field(default_factory=dict)
    trace: list[Rewrite] = field(default_factory=list)
    partitions: list[dict[str, Any]] | None = None
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """Why nodes were left to the CPU: rule, number of nodes, an example and what helps, most frequent first."""
    seconds: dict[str, float] = field(default_factory=dict)
    validation: Validation | None = None
    operators: dict[str, int] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return asdict(self)


def optimize(
    model: Model,
    optimization_level: str = "all",
    target: Target | None = None,
    *,
    context: Context | None = None,
    observer: Observer | None = None,
) -> tuple[Context, Partitioning | None]:
    """Optimize a model in place; with a target, nodes that its execution provider takes are left as the basic level made them.

    `context` says which passes run and how far; it comes back with the trace of all rewrites.
    """
    context = context or Context()
    partitioning = None
    if optimization_level != "disable":
        _run(model, basic_passes(), context, observer)
    if target is not None:
        from ortconv.partition import assign, partition

        partitioning = partition(model.graph, target)
        assign(model.graph, partitioning)
        _tell(observer, "partition", model)
    _prepare(model)
    context.only_cpu = True
    _run(model, above_basic(optimization_level), context, observer)
    model.graph.prune()
    return context, partitioning


def _prepare(model: Model) -> None:
    """Rewrite what ONNX Runtime has kernels for in another form only."""
    from ortconv.ortformat.functions import expand_functions
    from ortconv.ortformat.precision import insert_casts

    expand_functions(model)
    insert_casts(model)


def _run(model: Model, passes: Any, context: Context, observer: Observer | None) -> None:
    for p, changes in run_passes(model.graph, passes, context):
        if changes:
            _tell(observer, p.name, model)


def _tell(observer: Observer | None, stage: str, model: Model) -> None:
    if observer is not None:
        observer(stage, model)


def convert(
    source: str | Path,
    output: str | Path,
    *,
    options: Options | None = None,
    observer: Observer | None = None,
    **settings: Any,
) -> Result:
    """Convert one .onnx file to an .ort file, with its operator config beside it; `settings` are fields of Options.

    Nothing is put in place unless everything went well: MismatchError (exit code 4) where the result computes something else.
    """
    options = options or Options(**settings)
    source, output = Path(source), Path(output)
    result = Result(str(source))
    try:
        _convert(source, output, options, observer, result)
    except OrtconvError as error:
        raise error.at(file=source) from error
    return result


def _convert(source: Path, output: Path, options: Options, observer: Observer | None, result: Result) -> None:
    from ortconv.ortformat.writer import write

    if source.suffix.lower() == ".ort" or (output.exists() and output.samefile(source)):
        raise UsageError(
            "convert reads .onnx models and never writes over its source", hint="convert the .onnx that it came from"
        )
    level, types = options.optimization_level, options.enable_type_reduction
    with _timed(result, "load"):
        model = load(source, options.fix_dims)
        _tell(observer, "load", model)
    result.nodes_before = sum(1 for _ in model.graph.walk())
    result.bytes_before = source.stat().st_size
    expected: Reference | str = "switched off"
    if options.validate:
        from ortconv.compare.validate import reference

        with _timed(result, "validate"):
            expected = reference(model, source, options.validate_with, options.custom_op_library)
    with _timed(result, "optimize"):
        context, partitioning = optimize(
            model, level, _target(options), context=_context(options), observer=_watching(options, expected, observer)
        )
    with replacing(output) as draft:
        with _timed(result, "write"):
            write(model, draft)
        if options.validate:
            with _timed(result, "validate"):
                result.validation = _validated(expected, draft, options.custom_op_library)
        result.bytes_after = draft.stat().st_size
    result.files.append(str(output))
    if options.write_config:
        config = output.with_name(f"{output.stem.removesuffix(level_suffix(level))}.{config_name(level, types=types)}")
        _write_config([(str(output), model)], config, types)
        result.files.append(str(config))
    if options.save_optimized_onnx_model:
        result.files.append(str(_save_onnx(model, output)))
    result.rewrites = context.counts()
    result.trace = context.trace
    if partitioning is not None:
        result.partitions = [p.to_dict() for p in partitioning.partitions]
        result.refusals = _refusals(partitioning)
    result.operators = operator_counts(model)
    result.nodes_after = sum(result.operators.values())


def _refusals(partitioning: Partitioning) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for verdict in partitioning.verdicts.values():
        for rule in dict.fromkeys(o.rule for o in verdict.objections):
            first = next(o for o in verdict.objections if o.rule == rule)
            row = {
                "rule": rule,
                "nodes": 0,
                "example": f"{verdict.node.label}: {first.message}",
                "advice": first.advice,
            }
            found.setdefault(rule, row)["nodes"] += 1
    return sorted(found.values(), key=lambda row: -row["nodes"])


def _validated(expected: Reference | str, draft: Path, library: Path | None) -> Validation:
    from ortconv.compare.validate import Validation, validate

    return Validation(skipped=expected) if isinstance(expected, str) else validate(expected, draft, library)


def _context(options: Options) -> Context:
    from ortconv.optimizer.catalogue import checked

    return Context(
        fold_limit=options.fold_limit,
        target_platform=options.target_platform,
        limit=options.stop_after,
        disabled=checked(options.disable_passes),
        only=checked(options.only_passes) or None,
    )


def _watching(options: Options, expected: Reference | str, observer: Observer | None) -> Observer | None:
    """The observer, and before it a run of the model after every pass, where that is wanted."""
    if not options.verify_each:
        return observer
    if isinstance(expected, str):
        raise UsageError(f"--verify-each needs a run of the source to compare with: {expected}")
    from ortconv.compare.validate import hold

    def watch(stage: str, model: Model) -> None:
        if stage != "load":
            hold(expected, model, stage)
        _tell(observer, stage, model)

    return watch


def _target(options: Options) -> Target | None:
    if not options.use_nnapi:
        return None
    from ortconv.partition import Target

    if options.nnapi_partitioning_stop_ops is None:
        return Target(feature_level=options.nnapi_feature_level)
    return Target(feature_level=options.nnapi_feature_level, stop_ops=options.nnapi_partitioning_stop_ops)


def _save_onnx(model: Model, output: Path) -> Path:
    from ortconv.onnxio.proto import model_proto

    path = output.with_suffix(".optimized.onnx")
    with replacing(path) as draft:
        draft.write_bytes(model_proto(model).SerializeToString(deterministic=True))
    return path


def operator_counts(model: Model) -> dict[str, int]:
    """How often each operator occurs, subgraphs included, most frequent first."""
    counts: dict[str, int] = {}
    for node in model.graph.walk():
        name = f"{node.domain}:{node.op}" if node.domain else node.op
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@contextmanager
def _timed(result: Result, stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        result.seconds[stage] = result.seconds.get(stage, 0.0) + time.perf_counter() - start


# ---------------------------------------------------------------------- file names


def level_suffix(level: str) -> str:
    """What ONNX Runtime puts into file names for a level: nothing for all."""
    return "" if level == "all" else f".{level}"


def ort_name(source: Path, level: str) -> str:
    """ONNX Runtime's name for a converted file: x.ort, or x.LEVEL.ort where the level is not all."""
    return f"{source.stem}{level_suffix(level)}.ort"


def config_name(level: str, *, types: bool) -> str:
    """ONNX Runtime's name for an operator config; that of a single model has the model's name in front."""
    return f"required_operators{'_and_types' if types else ''}{level_suffix(level)}.config"


def write_config(ort_files: Sequence[Path], target: Path, *, types: bool) -> None:
    """Write the operator config of some .ort files."""
    _write_config([(str(path), load(path)) for path in ort_files], target, types)


def _write_config(models: Sequence[tuple[str, Model]], target: Path, types: bool) -> None:
    from ortconv.ortformat.opconfig import required_operators

    write_text(target, required_operators(models, types=types))
