"""ortconv convert"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ortconv.choices import ENGINES, LEVELS, PLATFORMS, STYLES, TARGET_ORT
from ortconv.cli import LINES, color, print_json, printable
from ortconv.cli import options as shared
from ortconv.cli.progress import stage_line
from ortconv.cli.values import given_options, given_words, on_command_line, options_of
from ortconv.errors import MismatchError, UsageError
from ortconv.process import usable_cores
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.cli.batch_view import BatchView
    from ortconv.ir.model import Model
    from ortconv.pipeline import Options, Result


class ManyStyles(click.Command):
    """Lets --optimization-style accept several values in a row, as ONNX Runtime's converter does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        for arg in args:
            if arg in STYLES and spread and spread[-1] in STYLES:
                spread.append("--optimization-style")
            spread.append(arg)
        return super().parse_args(ctx, spread)


@click.command(cls=ManyStyles)
@click.argument("model", type=shared.Location(exists=True, path_type=Path))
@shared.output("The .ort file, or a directory for it.  [default: next to the model]")
@shared.written(
    "--output-dir",
    type=shared.Location(file_okay=False, path_type=Path),
    help="The directory to write to, keeping the folders below MODEL.",
)
@click.option(
    "--optimization-level", type=click.Choice(LEVELS), default="all", help="Optimization level, as in ONNX Runtime."
)
@click.option(
    "--optimization-style",
    "styles",
    type=click.Choice(STYLES),
    multiple=True,
    default=["Fixed"],
    metavar="STYLE...",
    help="Fixed makes all fusions. Runtime saves those above level basic; onnxruntime makes them on the device if the app sets "
    "session.enable_saved_runtime_optimizations to 1. Both styles write one file each.",
)
@shared.add(
    shared.accelerators(
        "Leave nodes that NNAPI supports unfused; fuse only nodes for the CPU.",
        "Leave nodes that CoreML supports unfused; fuse only nodes for the CPU.",
    )
)
@shared.flag("--enable-type-reduction", help="Also list the types of operators in the operator config.")
@shared.flag("--save-optimized-onnx-model", help="Also write the optimized graph as .onnx.")
@shared.flag("--allow-conversion-failures", help="Exit 0 even if some models of a directory fail.")
@click.option(
    "--target-platform",
    type=click.Choice(PLATFORMS),
    help="CPU that will run the model. arm keeps int8 activations. amd64 allows this CPU's layouts at levels layout and all.",
)
@shared.CUSTOM_OP_LIBRARY
@click.option(
    "--target-ort",
    metavar="VERSION",
    help=f"Oldest release of onnxruntime that must load the file.  [default: {TARGET_ORT}, or later if MODEL needs it]",
)
@shared.add(shared.INPUT_CHANGES, shared.PIPELINE)
@shared.flag(
    "--verify-each", help="Run the model after every pass; name the first pass and rewrite that change its numbers."
)
@click.option("--validate/--no-validate", default=True, help="Run source and result on the same inputs and compare.")
@click.option(
    "--validate-on",
    type=click.Choice(ENGINES),
    default="both",
    help="Engines for validation: ortconv's numpy kernels, onnxruntime with an app's default options, or both.",
)
@shared.add(shared.VALIDATION)
@shared.flag(
    "--allow-unchecked", help="Write the file even if it could not be compared or onnxruntime does not load it."
)
@shared.flag(
    "--manifest",
    help="Also write x.manifest.json: source, options, versions, rewrites, names of values, and the validation.",
)
@shared.flag("--stamp", help="Write version, source and options into the metadata of the .ort file.")
@shared.fail_on("convert", "size>1.2x,onnxruntime>1.17", "No file is then put in place. The baseline is the source.")
@shared.add(shared.BATCH)
@click.option(
    "--resume/--force",
    help="With a directory: skip models whose files are in place and made from the same model with the same options, or convert "
    "all of them.",
)
@shared.add(shared.LIMITS_OF_MODELS, shared.PAGE, shared.JSON_LINES)
@shared.add(shared.MARKDOWN_OF_MODEL, shared.QUIET)
@shared.view("-v", "--verbose", help="List every pass and rewrite with nodes, bytes and time.")
def command(
    model: Path | str, output: Path | None, output_dir: Path | str | None, styles: tuple[str, ...], **flags: Any
) -> None:
    """Convert MODEL, an .onnx file or a directory of them, to ORT format. Both may be URLs of fsspec, such as s3://bucket/models.

    Writes x.ort (x.LEVEL.ort below level all, x.with_runtime_opt.ort in Runtime style) and the operator config for minimal builds.
    Files are put in place only if the result computes the same as the source.
    """
    view = View(*(flags.pop(name) for name in View._fields))
    styles = tuple(dict.fromkeys(styles))
    place = _place(model, output, output_dir, styles)
    _check_use(flags)
    if isinstance(model, str) or isinstance(place, str) or model.is_dir():
        _convert_all(view, model, place, styles, flags)
    else:
        _convert_single(view, model, place, styles, flags)


USED_WITH = {
    "nnapi_feature_level": ("use_nnapi",),
    **dict.fromkeys(
        ("coreml_format", "coreml_version", "coreml_only_static_input_shapes", "coreml_enable_on_subgraph"),
        ("use_coreml",),
    ),
    **dict.fromkeys(("validate_on", "allow_unchecked"), ("validate",)),
    **dict.fromkeys(("validate_with", "validate_budget"), ("validate", "float16")),
}
"""Options that have no effect unless one of the others is set."""


def _check_use(flags: Mapping[str, Any]) -> None:
    """Check that no option of the command line is without effect."""
    for option, _ in on_command_line():
        needed = USED_WITH.get(option.name or "", ())
        if needed and not any(flags[name] for name in needed):
            need = f"--{needed[0].replace('_', '-')}"
            hint = "leave out --no-validate" if needed[0] == "validate" else f"add {need}, or leave it out"
            raise UsageError(f"{option.opts[0]} has no effect without {need}", hint=hint)


class View(NamedTuple):
    """The options that select how results are shown."""

    html: Path | None
    as_json: bool
    markdown: bool
    quiet: bool
    verbose: bool

    @property
    def has_details(self) -> bool:
        """True if a result must list its rewrites."""
        return self.verbose or self.as_json or self.html is not None


def _convert_single(
    view: View, model: Path, place: Path | None, styles: Sequence[str], flags: Mapping[str, Any]
) -> None:
    if view.html is not None and len(styles) > 1:
        raise UsageError("--html shows one conversion", hint="name one style")
    results = [
        _converted(view, model, place, options_of(flags, optimization_style=style, details=view.has_details))
        for style in styles
    ]
    if view.as_json:
        from ortconv.report.convert import document

        print_json(document(results))
    elif view.markdown and not view.quiet:
        from ortconv.cli.tables import show
        from ortconv.report.convert import sections

        show([section for result in results for section in sections(result)], markdown=True)


def _converted(view: View, model: Path, place: Path | None, options: Options) -> Result:
    from ortconv.pipeline import convert, ort_name

    target = place or model.parent
    if not _is_file(model, target):
        target /= ort_name(model, options.optimization_level, options.optimization_style)
    observer = _narrate if view.verbose else None
    try:
        with stage_line(model.name, shown=not (view.quiet or view.verbose)) as started:
            result = convert(model, target, options=options, observer=observer, started=started)
    except MismatchError as error:
        if options.verify_each:
            from ortconv.cli.again import add_reduce_line

            words = ("convert", "{}", "-o", "{}.ort", *given_words())
            add_reduce_line(error, model, words, output=error.hint)
        raise
    if view.html is not None:
        from ortconv.files import write_text
        from ortconv.report.convert_page import page_of

        write_text(view.html, page_of(result, model, options, given_options()))
    _show(result, summary=not (view.as_json or view.quiet or view.markdown), trace=view.verbose)
    return result


def _convert_all(
    view: View, model: Path | str, place: Path | str | None, styles: Sequence[str], flags: Mapping[str, Any]
) -> None:
    """Convert a directory, once in each style."""
    from ortconv.batch import Failure, convert_all
    from ortconv.cli.batch_view import BatchView
    from ortconv.cli.github import check_github

    if view.markdown:
        raise UsageError("--markdown shows one model", hint="--summary FILE.md is for directories")
    if view.html is not None:
        raise UsageError("--html shows one model", hint="give a model, not a directory")
    options = [options_of(flags, optimization_style=style, details=view.has_details) for style in styles]
    progress = BatchView("converted", 0, view.as_json, view.quiet)
    check_github(flags["github"])
    for chosen in options:
        batch = convert_all(
            model,
            place,
            options=chosen,
            jobs=flags["jobs"] or usable_cores(),
            executor=flags["cluster"],
            timeout=flags["timeout"],
            memory=flags["memory"],
            resume=flags["resume"],
        )
        progress.total = len(options) * batch.total
        with closing(batch), progress.shown(batch.busy, live=not view.verbose):
            for done in batch:
                if isinstance(done, Failure):
                    progress.fail(done)
                else:
                    _show_of_batch(view, progress, done)
        if batch.config is not None:
            progress.written.append(f"operator config {batch.config}")
    progress.end(flags["summary"], flags["github"])
    if not flags["allow_conversion_failures"]:
        progress.refuse(model)


def _show_of_batch(view: View, progress: BatchView, result: Result) -> None:
    from ortconv.cli.render import convert_line

    is_long = view.verbose and not result.unchanged
    _show(result, summary=False, trace=is_long)
    text = _summary(result) if is_long else convert_line(result)
    progress.show(text, result.to_dict() if view.as_json else {}, unchanged=result.unchanged)


def _place(
    model: Path | str, output: Path | None, output_dir: Path | str | None, styles: Sequence[str]
) -> Path | str | None:
    """The .ort file or the folder to write; None for files next to their models."""
    if output is not None and output_dir is not None:
        raise UsageError("--output and --output-dir exclude each other")
    place = output_dir or output
    if output is None or output.is_dir():
        return place
    if output.suffix.lower() == ".onnx":
        hint = f"name it {output.stem}.ort, or give a directory"
        raise UsageError(f"-o {output}: convert writes .ort files, not .onnx", hint=hint)
    if isinstance(model, Path) and model.is_dir() and output.suffix.lower() == ".ort":
        raise UsageError(f"-o {output}: one .ort file cannot hold a directory of models", hint="give -o a directory")
    if isinstance(model, Path) and _is_file(model, output) and len(styles) > 1:
        raise UsageError("one .ort file cannot hold two styles", hint="give -o a directory")
    return place


def _is_file(model: Path, place: Path) -> bool:
    """Whether the output path is one .ort file."""
    return place.suffix.lower() == ".ort" and not model.is_dir() and not place.is_dir()


def _show(result: Result, *, summary: bool, trace: bool) -> None:
    """Print the trace and the summary of a result. With --quiet, print only that it was not checked."""
    if trace:
        from ortconv.cli import trace as trace_view

        trace_view.show(Path(result.source).name, result.trace)
    check = result.validation
    if summary:
        click.echo(_summary(result), color=color())
    elif check is not None and check.skipped is not None:
        name, why = printable(result.source), printable(check.skipped, LINES)
        click.echo(f"warning: {name}: the result is not checked: {why}", err=True)


def _summary(result: Result) -> str:
    from ortconv.cli.render import summary
    from ortconv.report.convert import facts

    return summary(result.source, result.files[0], facts(result))


def _narrate(stage: str, model: Model) -> None:
    """Print the number of nodes after a stage or pass."""
    name = printable(Path(model.path).name)
    click.echo(f"{name}: {stage}: {counted(sum(1 for _ in model.graph.walk()), 'node')}", err=True)
