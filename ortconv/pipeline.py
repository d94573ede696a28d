"""The main job, stage by stage: load, optimize, partition, fuse what is left to the CPU, write, validate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.errors import MismatchError, OrtconvError, UsageError
from ortconv.files import replacing, write_text
from ortconv.ir.journal import Journal
from ortconv.ir.model import Model
from ortconv.ir.tensor import Tensor
from ortconv.models import load
from ortconv.optimizer import recipe as recipes
from ortconv.optimizer.engine import FOLD_LIMIT, Context, Rewrite
from ortconv.optimizer.levels import LEVELS, AnyPass, inexact, run_passes

if TYPE_CHECKING:
    from ortconv.compare.validate import Reference, Validation
    from ortconv.ir.graph import Node
    from ortconv.ortformat.opconfig import RequiredOperators
    from ortconv.partition import Objection, Partitioning, Target
    from ortconv.partition.limits import Limits
    from ortconv.partition.profile import Device

SHOWN_FOLDS = 3

Observer = Callable[[str, Model], None]
"""Called after every stage and pass with its name and the model as it is then."""


STYLES = ("Fixed", "Runtime")
"""Fixed: all fusions are made. Runtime: fusions above the basic level are saved for onnxruntime to make when it loads the model."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a conversion does beyond its defaults. The names are those of the command line's flags."""

    optimization_level: str = "all"
    optimization_style: str = "Fixed"
    target_platform: str | None = None
    use_nnapi: bool = False
    nnapi_feature_level: int = 31
    nnapi_partitioning_stop_ops: tuple[str, ...] | None = None
    use_coreml: bool = False
    coreml_format: str = "NeuralNetwork"
    coreml_version: int = 7
    coreml_static_inputs: bool = False
    coreml_on_subgraphs: bool = False
    device: Device | None = None
    max_partitions: int | None = None
    min_nodes: int = 1
    only_worthwhile: bool = False
    enable_type_reduction: bool = False
    save_optimized_onnx_model: bool = False
    write_config: bool = True
    fix_dims: Mapping[str, int] = field(default_factory=dict)
    fold_limit: int = FOLD_LIMIT
    enable_passes: tuple[str, ...] = ()
    disable_passes: tuple[str, ...] = ()
    only_passes: tuple[str, ...] = ()
    stop_after: int | None = None
    pipeline: str | None = None
    """The passes as text (see `ortconv.optimizer.recipe`). It takes the place of level, fold limit and all choices of passes."""
    details: bool = False
    """Trace what each rewrite changed."""
    verify_each: bool = False
    validate: bool = True
    validate_with: Mapping[str, Any] | None = None
    custom_op_library: Path | None = None

    def __post_init__(self) -> None:
        if self.pipeline is not None:
            found = recipes.parse(self.pipeline)
            for name, value in (
                ("optimization_level", found.level),
                ("fold_limit", found.fold_limit),
                ("stop_after", found.stop_after),
            ):
                object.__setattr__(self, name, value)
        if self.optimization_level not in LEVELS:
            raise UsageError(f"optimization level '{self.optimization_level}' is not one of {', '.join(LEVELS)}")
        if self.optimization_style not in STYLES:
            raise UsageError(f"optimization style '{self.optimization_style}' is not one of {', '.join(STYLES)}")
        if self.target_platform not in (None, "arm", "amd64"):
            raise UsageError(f"target platform '{self.target_platform}' is not one of arm, amd64")
        if not 27 <= self.nnapi_feature_level <= 31:
            raise UsageError(f"NNAPI feature level {self.nnapi_feature_level} is not in 27..31")

    def recipe(self) -> recipes.Recipe:
        """What the optimizer is to do."""
        if self.pipeline is not None:
            return recipes.parse(self.pipeline)
        return recipes.make(
            self.optimization_level,
            enable=self.enable_passes,
            disable=self.disable_passes,
            only=self.only_passes,
            fold_limit=self.fold_limit,
            stop_after=self.stop_after,
        )


@dataclass
class Result:
    """What a conversion did."""

    source: str
    files: list[str] = field(default_factory=list)
    nodes_before: int = 0
    nodes_after: int = 0
    saved_fusions: int = 0
    rewrites: dict[str, int] = field(default_factory=dict)
    trace: list[Rewrite] = field(default_factory=list)
    partitions: list[dict[str, Any]] | None = None
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """Why nodes were left to the CPU: rule, number of nodes, an example and what helps, most frequent first."""
    without_fallback: int = 0
    """How many of the nodes in partitions have no CPU kernel, so that the file loads only where a provider takes them."""
    seconds: dict[str, float] = field(default_factory=dict)
    validation: Validation | None = None
    operators: dict[str, int] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    constants_before: int = 0
    constants_after: int = 0
    """Bytes of the constants, wherever they are stored."""
    folded_bytes: int = 0
    """By how much constant folding made the model grow, negative where it shrank."""
    folds: list[dict[str, Any]] = field(default_factory=list)
    """The folds that made it grow most: node and bytes."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        validation = None if self.validation is None else asdict(self.validation)
        return {**found, "trace": [rewrite.to_dict() for rewrite in self.trace], "validation": validation}


def optimize(
    model: Model,
    optimization_level: str = "all",
    target: Target | Sequence[Target] | None = None,
    *,
    recipe: recipes.Recipe | None = None,
    optimization_style: str = "Fixed",
    target_platform: str | None = None,
    context: Context | None = None,
    observer: Observer | None = None,
    limits: Limits | None = None,
) -> tuple[Context, tuple[Partitioning, ...]]:
    """Optimize a model in place; with a target, nodes that its execution provider takes are left as the basic level made them.

    Of several targets, the first that takes a node has it. The partitionings come back in the order of the targets, those of
    subgraphs behind that of the main graph where a target takes them. A recipe says which passes run, in place of the level. In
    Runtime style, fusions above the basic level are recorded in `model.saved`. `context` says how far; it comes
    back with the trace of all rewrites. `limits` say which partitions count.
    """
    recipe = recipe or recipes.make(optimization_level)
    context = context or _context(recipe)
    targets = target if isinstance(target, Sequence) else () if target is None else (target,)
    target_platform = context.target_platform = target_platform or context.target_platform
    _run(model, recipe.basic, context, observer)
    partitionings: tuple[Partitioning, ...] = ()
    if targets:
        from ortconv.partition.limits import divide

        partitionings = tuple(p for t in targets for p in divide(model.graph, t, limits))
        _tell(observer, "partition", model)
    _prepare(model)
    context.only_cpu = True
    if optimization_style == "Runtime":
        from ortconv.optimizer.runtime_style import passes, save_fusions

        _run(model, passes(recipe), context, observer)
        save_fusions(model, recipe, context, target_platform)
    else:
        _run(model, recipe.above_basic, context, observer)
    model.graph.prune()
    return context, partitionings


def optimize_traced(model: Model, optimization_level: str = "all") -> tuple[list[Rewrite], dict[str, str]]:
    """Optimize a model in place; its rewrites with what each one changed, and the names of values before and after."""
    journal = Journal(model.graph)
    context, _ = optimize(model, optimization_level, context=Context(journal=journal))
    journal.close()
    return context.trace, journal.names()


def _prepare(model: Model) -> None:
    """Rewrite what ONNX Runtime has kernels for in another form only."""
    from ortconv.ortformat.functions import expand_functions
    from ortconv.ortformat.precision import insert_casts

    expand_functions(model)
    insert_casts(model)


def _context(recipe: recipes.Recipe) -> Context:
    return Context(fold_limit=recipe.fold_limit, limit=recipe.stop_after)


def _run(model: Model, passes: tuple[AnyPass, ...], context: Context, observer: Observer | None) -> None:
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
    from ortconv.ortformat.opconfig import RequiredOperators
    from ortconv.ortformat.writer import write

    if source.suffix.lower() == ".ort" or (output.exists() and output.samefile(source)):
        raise UsageError(
            "convert reads .onnx models and never writes over its source", hint="convert the .onnx that it came from"
        )
    recipe = options.recipe()
    with _timed(result, "load"):
        model = load(source, options.fix_dims)
        _tell(observer, "load", model)
    result.nodes_before = sum(1 for _ in model.graph.walk())
    result.bytes_before = source.stat().st_size
    result.constants_before = constant_bytes(model)
    expected: Reference | str = "switched off"
    if options.validate:
        from ortconv.compare.validate import reference

        with _timed(result, "validate"):
            expected = reference(model, source, options.validate_with, options.custom_op_library)
    with _timed(result, "optimize"):
        context = _context(recipe)
        watch = _watching(source, options, recipe, expected, context, observer)
        if options.details:
            context.journal = Journal(model.graph)
        partitionings = _optimize(model, options, recipe, context, watch)
        if context.journal is not None:
            context.journal.close()
    _tell_result(result, model, context, partitionings)
    with replacing(output) as draft:
        with _timed(result, "write"):
            write(model, draft)
        if options.validate:
            with _timed(result, "validate"):
                result.validation = _validated(expected, draft, options.custom_op_library, _excused(context, recipe))
        result.bytes_after = draft.stat().st_size
        required = RequiredOperators(types=options.enable_type_reduction)
        with _timed(result, "config"):
            _require(required, model, options, expected)
    result.files.append(str(output))
    if options.write_config:
        write_text(config := _config_beside(output, options), required.text([str(output)]))
        result.files.append(str(config))
    if options.save_optimized_onnx_model:
        result.files.append(str(_save_onnx(model, output)))


def _optimize(
    model: Model, options: Options, recipe: recipes.Recipe, context: Context, observer: Observer | None
) -> tuple[Partitioning, ...]:
    return optimize(
        model,
        target=_targets(options),
        recipe=recipe,
        optimization_style=options.optimization_style,
        target_platform=options.target_platform,
        context=context,
        observer=observer,
        limits=_limits(options),
    )[1]


def _tell_result(result: Result, model: Model, context: Context, partitionings: Sequence[Partitioning]) -> None:
    from ortconv.ortformat.precision import needs_provider

    result.rewrites = context.counts()
    result.trace = context.trace
    result.constants_after = constant_bytes(model)
    result.folded_bytes = context.grown
    result.folds = [{"node": node, "bytes": size} for size, node in sorted(context.folds, reverse=True)[:SHOWN_FOLDS]]
    if partitionings:
        result.partitions = [
            {"provider": found.target.provider.name, **p.to_dict()} for found in partitionings for p in found.partitions
        ]
        result.refusals = _refusals(partitionings)
        result.without_fallback = sum(map(needs_provider, model.graph.walk()))
    result.operators = operator_counts(model)
    result.nodes_after = sum(result.operators.values())
    result.saved_fusions = len(model.saved)


def _require(
    required: RequiredOperators, model: Model, options: Options, expected: Reference | str = "not asked for"
) -> None:
    """Add what a model needs as it is and, in Runtime style, as onnxruntime makes it by replaying the saved fusions.

    The model is left as the latter; MismatchError where that computes something else than expected.
    """
    required.add(model)
    if options.optimization_style == "Fixed":
        return
    from ortconv.optimizer.runtime_style import replay

    replay(model, options.recipe(), options.target_platform)
    required.add(model)
    if not isinstance(expected, str) and expected.backend == "numpy":
        from ortconv.compare.validate import hold

        hold(expected, model, "the replay of saved fusions", hint="--optimization-style Fixed makes them at once")


def _refusals(partitionings: Sequence[Partitioning]) -> list[dict[str, Any]]:
    taken = {node for p in partitionings for node, verdict in p.verdicts.items() if verdict.taken}
    against: dict[Node, list[Objection]] = {}
    for p in partitionings:
        for node, verdict in p.verdicts.items():
            if node not in taken:
                against.setdefault(node, []).extend(verdict.objections)
    found: dict[str, dict[str, Any]] = {}
    for node, objections in against.items():
        for rule in dict.fromkeys(o.rule for o in objections):
            first = next(o for o in objections if o.rule == rule)
            row = {"rule": rule, "nodes": 0, "example": f"{node.label}: {first.message}", "advice": first.advice}
            found.setdefault(rule, row)["nodes"] += 1
    return sorted(found.values(), key=lambda row: -row["nodes"])


def _validated(expected: Reference | str, draft: Path, library: Path | None, excused: tuple[str, ...]) -> Validation:
    from ortconv.compare.validate import Validation, validate

    return Validation(skipped=expected) if isinstance(expected, str) else validate(expected, draft, library, excused)


def _excused(context: Context, recipe: recipes.Recipe) -> tuple[str, ...]:
    """The rewrites so far that were asked for although they change the numbers."""
    names = inexact(recipe.stages)
    return tuple(name for name in context.counts() if name in names)


def _watching(
    source: Path,
    options: Options,
    recipe: recipes.Recipe,
    expected: Reference | str,
    context: Context,
    observer: Observer | None,
) -> Observer | None:
    """The observer, and before it a run of the model after every pass, where that is wanted."""
    if not options.verify_each:
        return observer
    if isinstance(expected, str):
        raise UsageError(f"--verify-each needs a run of the source to compare with: {expected}")
    from ortconv.compare.validate import hold

    good = 0

    def check(count: int) -> None:
        model = load(source, options.fix_dims)
        recipe_so_far = replace(recipe, stop_after=count)
        done = _context(recipe_so_far)
        _optimize(model, options, recipe_so_far, done, None)
        hold(expected, model, "", _excused(done, recipe))

    def watch(stage: str, model: Model) -> None:
        nonlocal good
        try:
            hold(expected, model, stage, _excused(context, recipe))
        except MismatchError as error:
            count = _first_wrong(check, good, len(context.trace))
            if not count:
                raise
            rewrite = context.trace[count - 1]
            message = f"{error.message}; rewrite {count} is the first to do so: {rewrite.rule} at {rewrite.root}"
            raise MismatchError(message, hint=f"leave it out with --disable-pass {rewrite.rule}") from error
        good = len(context.trace)
        _tell(observer, stage, model)

    return watch


def _first_wrong(check: Callable[[int], None], good: int, bad: int) -> int:
    """The least number of rewrites after which a check fails, by bisection; 0 if there was no rewrite in between."""
    if bad == good:
        return 0
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            check(middle)
            good = middle
        except OrtconvError:
            bad = middle
    return bad


def _targets(options: Options) -> tuple[Target, ...]:
    """What the conversion protects, in the order in which ONNX Runtime asks its execution providers."""
    from ortconv.partition import Target

    found = []
    if options.use_nnapi:
        stop_ops = options.nnapi_partitioning_stop_ops
        found.append(Target(feature_level=options.nnapi_feature_level))
        if stop_ops is not None:
            found[0] = replace(found[0], stop_ops=stop_ops)
    if options.use_coreml:
        names = ("coreml_format", "coreml_version", "coreml_static_inputs", "coreml_on_subgraphs")
        found.append(Target("coreml", **{name: getattr(options, name) for name in names}))
    return tuple(target if options.device is None else options.device.narrow(target) for target in found)


def _limits(options: Options) -> Limits | None:
    if not (options.use_nnapi or options.use_coreml):
        return None
    from ortconv.partition.limits import Limits
    from ortconv.partition.profile import Device

    return Limits(options.max_partitions, options.min_nodes, options.only_worthwhile, options.device or Device())


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


def constant_bytes(model: Model) -> int:
    """Bytes of all constants, those of subgraphs included."""
    consts = (v.const for graph in model.graph.graphs() for v in graph.initializers.values())
    return sum(const.nbytes for const in consts if isinstance(const, Tensor))


@contextmanager
def _timed(result: Result, stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        result.seconds[stage] = result.seconds.get(stage, 0.0) + time.perf_counter() - start


# ---------------------------------------------------------------------- file names


def suffix(level: str, style: str) -> str:
    """What ONNX Runtime puts into file names: the level where it is not all, and what stands for Runtime style."""
    return ("" if level == "all" else f".{level}") + (".with_runtime_opt" if style == "Runtime" else "")


def ort_name(source: Path, level: str, style: str = "Fixed") -> str:
    """ONNX Runtime's name for a converted file: x.ort, x.LEVEL.ort where the level is not all, x.with_runtime_opt.ort."""
    return f"{source.stem}{suffix(level, style)}.ort"


def config_name(options: Options) -> str:
    """ONNX Runtime's name for an operator config; that of a single model has the model's name in front."""
    types = "_and_types" if options.enable_type_reduction else ""
    return f"required_operators{types}{suffix(options.optimization_level, options.optimization_style)}.config"


def _config_beside(output: Path, options: Options) -> Path:
    stem = output.stem.removesuffix(suffix(options.optimization_level, options.optimization_style))
    return output.with_name(f"{stem}.{config_name(options)}")


def write_config(ort_files: Sequence[Path], target: Path, options: Options) -> None:
    """Write the operator config of some .ort files that were converted with these options."""
    write_text(target, required_by(ort_files, types=options.enable_type_reduction, options=options).text())


def required_by(ort_files: Sequence[Path], *, types: bool, options: Options | None = None) -> RequiredOperators:
    """What .ort files need of a build; of unknown origin where there are no options."""
    from ortconv.ortformat.opconfig import RequiredOperators

    required = RequiredOperators(types=types)
    for path in ort_files:
        model = load(path)
        _require(required, model, options or Options(optimization_style="Runtime" if model.saved else "Fixed"))
    required.labels = list(map(str, ort_files))
    return required
