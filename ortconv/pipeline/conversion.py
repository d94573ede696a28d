"""Conversion of one model in stages: load, optimize, partition, fuse the nodes left to the CPU, write, validate."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from ortconv.errors import OrtconvError, UnsupportedError, UsageError
from ortconv.executor.guard import guarded
from ortconv.files import renamed, replacing, write_bytes, write_text
from ortconv.gates import check_gates, parse_gates
from ortconv.ir.journal import Journal
from ortconv.ir.model import Model
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.optimizer.engine import Context
from ortconv.optimizer.levels import inexact
from ortconv.optimizer.recipe import Recipe
from ortconv.ortformat.capacity import refuse_many_bytes, refuse_many_tables
from ortconv.ortformat.functions import refuse_without_kernel
from ortconv.ortformat.layout import LARGEST_FILE
from ortconv.ortformat.releases import target_release
from ortconv.pipeline.config import STAMP, beside, config_beside, ort_name, require
from ortconv.pipeline.export_notes import FLOAT16_TO_FLOAT32, export_notes
from ortconv.pipeline.options import Options
from ortconv.pipeline.result import Result
from ortconv.pipeline.settings import Settings
from ortconv.pipeline.stages import Observer, excused, notify, optimize_as_asked, settings_of
from ortconv.pipeline.verify_each import watching
from ortconv.public import public
from ortconv.watch import left_out

if TYPE_CHECKING:
    from ortconv.validation.reference import Reference

NO_FLOAT16 = "NNAPI accepts no float16 tensors: keep the model in float32, and set NNAPI_FLAG_USE_FP16 in the app"


@public
def convert(
    source: ModelSource,
    output: str | Path,
    *,
    options: Options | None = None,
    observer: Observer | None = None,
    started: Callable[[str], None] | None = None,
    placing: Callable[[Result, Path], None] | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Convert an ONNX model, a file or one in memory, to an .ort file, and write its operator config next to it.

    `settings` are fields of Options. `output` is the file, or a folder, in which the file gets ONNX Runtime's name. `started` is
    called with the name of each stage as it begins, and `placing` with the result and the draft of the file before the draft is
    moved into place. Files are moved into place only if everything succeeds: MismatchError (exit code 4) is raised if the outputs
    of the result differ.

    Everything runs in this process, and a crash of native code ends it. `convert_all([source], folder, jobs=1)` survives that.
    """
    options = options_of(options, settings)
    with as_file(source) as (path, label):
        target = _target(output, path, options)
        result = Result(label, started=started)
        try:
            _convert(_Job(path, target, options, options.recipe(), observer, result), placing)
        except OrtconvError as error:
            raise renamed(error.at(file=path), path, label) from error.__cause__
    return result


def options_of(options: Options | None, settings: Settings) -> Options:
    """The options, given as one object or as keyword arguments. Raises UsageError if both are given."""
    if options is not None and settings:
        raise UsageError(f"options and settings exclude each other: {', '.join(settings)}")
    return options or Options.of(settings)


def _target(output: str | Path, source: Path, options: Options) -> Path:
    """The path of the file to write."""
    target = Path(output)
    if target.is_dir() or str(output).endswith(("/", os.sep)):
        return target / ort_name(source, options.optimization_level, options.optimization_style)
    return target


class _Job(NamedTuple):
    """A conversion, and its result, which is filled in stage by stage."""

    source: Path
    output: Path
    options: Options
    recipe: Recipe
    observer: Observer | None
    result: Result


def _convert(job: _Job, placing: Callable[[Result, Path], None] | None) -> None:
    from ortconv.ortformat.writer import write

    output, options, result = job.output, job.options, job.result
    _check_paths(job.source, output)
    model = _load(job)
    expected = _reference(job, model)
    context = _optimize(job, model, expected)
    _stamp(job, model)
    with replacing(output, ".ort") as draft:
        with result.timed("write"), guarded(model.graph, "writing"):
            write(model, draft)
        if options.validate:
            _validate(job, model, expected, draft, excused(context, job.recipe))
        result.bytes_after = draft.stat().st_size
        result.required = _required(job, model, expected)
        if options.fail_on:
            check_gates(parse_gates(options.fail_on, "convert"), result.metrics(), result.source_metrics())
        _save_beside(job, model, draft)
        if placing is not None:
            placing(result, draft)
    if options.write_config:
        write_text(config := config_beside(output, options), result.required)
        result.files.insert(1, str(config))


def _check_paths(source: Path, output: Path) -> None:
    if is_ort(source):
        hint = "convert the .onnx model that it was made from; ortconv export makes one of an .ort file"
        raise UsageError("convert reads .onnx models, and this is an .ort file", hint=hint)
    if output.exists() and output.samefile(source):
        raise UsageError("the output is the source, which convert never overwrites", hint="choose another output")
    if output.suffix.lower() == ".onnx":
        raise UsageError("convert writes .ort files, not .onnx", file=output, hint=f"name it {output.stem}.ort")


def _load(job: _Job) -> Model:
    """Load the source. Raises UnsupportedError if no file in ORT format can hold it."""
    options, result = job.options, job.result
    check = partial(refuse_many_tables, optimized=any(job.recipe.stages.values()))
    with result.timed("load"):
        model = load(job.source, options.fix_dims, freeze_initializers=options.freeze_initializers, check=check)
        if options.custom_op_library is not None:
            from ortconv.backends.onnxruntime_custom import infer_types

            infer_types(model.graph, options.custom_op_library)
        notify(job.observer, "load", model)
    notes = (note for note in export_notes(model.graph) if note.kind != "float16" or _leaves_float16(job))
    result.warnings = [*model.warnings, *left_out(), *map(str, notes)]
    if options.float16 and options.use_nnapi:
        result.warnings.append(NO_FLOAT16)
    result.record_source(model)
    if result.constants_before > LARGEST_FILE and not _may_store_fewer_bits(options, job.recipe):
        refuse_many_bytes(model.graph)
    return model


def _leaves_float16(job: _Job) -> bool:
    """True if the level makes integer kernels, but no pass computes float16 nodes in float32."""
    return bool(job.recipe.above_basic) and all(p.name != FLOAT16_TO_FLOAT32 for p in job.recipe.offload)


def _reference(job: _Job, model: Model) -> Reference | None:
    """The outputs of the source, which the result is compared with; None if the options need none."""
    if not (job.options.validate or job.options.float16):
        return None
    from ortconv.validation.reference import Reference

    with job.result.timed("validate"), guarded(model.graph, "validation"):
        return Reference(model, job.source, job.options.validation())


def _optimize(job: _Job, model: Model, expected: Reference | None) -> Context:
    """Optimize and partition the model, and record the results."""
    options, recipe, result = job.options, job.recipe, job.result
    with result.timed("optimize"):
        settings = settings_of(options, recipe, target_release(model, options.target_ort))
        context = Context(settings, Journal(model.graph) if options.details or options.manifest else None)
        watch = watching(job.source, options, recipe, expected, context, job.observer)
        narrowing = None
        if options.float16 and expected is not None:
            from ortconv.pipeline.float16 import narrow

            narrowing = partial(narrow, expected=expected, options=options)
        optimized = optimize_as_asked(model, options, recipe, context, watch, narrowing)
        if context.journal is not None:
            context.journal.close()
            result.values = context.journal.names() if options.manifest else {}
    result.record(model, context, optimized)
    return context


def _may_store_fewer_bits(options: Options, recipe: Recipe) -> bool:
    """True if weights may be stored with fewer bits than in the source."""
    passes = {p.name for stage in recipe.stages.values() for p in stage}
    return options.float16 or not inexact(recipe.stages).isdisjoint(passes)


def _validate(job: _Job, model: Model, expected: Reference | None, draft: Path, excused: tuple[str, ...]) -> None:
    """Validate the draft. Raises UnsupportedError if nothing could be compared, unless `allow_unchecked` is set."""
    from ortconv.validation.validate import Validation, validate

    assert expected is not None
    options, result = job.options, job.result
    with result.timed("validate"):
        try:
            with guarded(model.graph, "validation"):
                found = validate(expected, draft, excused, needs_provider=result.without_fallback > 0)
        except UnsupportedError as error:
            if not options.allow_unchecked:
                raise
            found = Validation(skipped=error.message)
    if found.skipped is not None and not options.allow_unchecked:
        hint = (
            "--allow-unchecked writes the file all the same, --validate-with gives inputs, --validate-budget more room"
        )
        if options.fix_dims:
            hint = f"if the model does not run with these sizes, choose others for --fix-dim; {hint}"
        raise UnsupportedError(f"the result could not be checked: {found.skipped}", hint=hint)
    if not options.allow_unchecked:
        refuse_without_kernel(model.graph)
    result.validation = found


def _required(job: _Job, model: Model, expected: Reference | None) -> str:
    """The text of the operator config. In Runtime style, the model is left with the saved fusions applied."""
    from ortconv.ortformat.opconfig import RequiredOperators

    required = RequiredOperators(types=job.options.enable_type_reduction)
    with job.result.timed("config"):
        require(required, model, job.options, expected)
    return required.text([str(job.output)])


def _stamp(job: _Job, model: Model) -> None:
    """Write the stamp that the options ask for. The stamp of the source is removed, since it describes another conversion."""
    model.metadata.pop(STAMP, None)
    if job.options.stamp:
        from ortconv.pipeline.manifest import stamp

        model.metadata[STAMP] = stamp(job.source, job.options)


def _save_beside(job: _Job, model: Model, draft: Path) -> None:
    """Write the requested files beside the output, and list them."""
    files = job.result.files
    files.append(str(job.output))
    if job.options.save_optimized_onnx_model:
        files.append(str(_save_onnx(model, job.output)))
    if job.options.manifest:
        files.append(str(_save_manifest(job, draft)))


def _save_manifest(job: _Job, draft: Path) -> Path:
    from ortconv.pipeline.manifest import ENDING, make_manifest

    output, options, result = job.output, job.options, job.result
    files: dict[str, Path | bytes] = {
        output.name: draft,
        **{Path(other).name: Path(other) for other in result.files[1:]},
    }
    if options.write_config:
        files[config_beside(output, options).name] = result.required.encode("utf-8", "backslashreplace")
    path = beside(output, output.stem, ENDING)
    write_text(path, make_manifest(result, job.source, output.parent, files, options).text())
    return path


def _save_onnx(model: Model, output: Path) -> Path:
    from ortconv.onnxio.proto import model_proto

    path = beside(output, output.stem, "optimized.onnx")
    write_bytes(path, model_proto(model).SerializeToString(deterministic=True))
    return path
