"""ortconv convert"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import ENGINES, LEVELS, PLATFORMS, STYLES, TARGET_ORT
from ortconv.cli import color, fail, print_json
from ortconv.cli.options import COREML, FIX_DIM, LIMITS, NNAPI, PASS_CHOICE, Library, Size, add
from ortconv.cli.progress import progress_bar, stage_line
from ortconv.cli.render import convert_summary
from ortconv.errors import BatchError, OrtconvError, UnknownDimError, UsageError

if TYPE_CHECKING:
    from ortconv.pipeline import Options

REPLACED = ("optimization_level", "enable_passes", "disable_passes", "only_passes", "stop_after", "fold_limit")
"""The options that --pipeline takes the place of."""


class ManyStyles(click.Command):
    """Lets --optimization-style take several values in a row, as ONNX Runtime's converter does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        for arg in args:
            if arg in STYLES and spread and spread[-1] in STYLES:
                spread.append("--optimization-style")
            spread.append(arg)
        return super().parse_args(ctx, spread)


@click.command(cls=ManyStyles, context_settings={"show_default": True})
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The .ort file, or a directory for it.  [default: beside the model]",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
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
@click.option(
    "--use-nnapi", is_flag=True, help="Leave the nodes that NNAPI takes unfused; fuse only those for the CPU."
)
@add(NNAPI)
@click.option(
    "--use-coreml", is_flag=True, help="Leave the nodes that CoreML takes unfused; fuse only those for the CPU."
)
@add(COREML)
@add(LIMITS)
@click.option(
    "--maximize-offload",
    is_flag=True,
    help="Rewrite nodes that the accelerator refuses into nodes that it takes, where that puts more nodes in partitions.",
)
@click.option("--enable-type-reduction", is_flag=True, help="Also list the types of operators in the operator config.")
@click.option("--save-optimized-onnx-model", is_flag=True, help="Also write the optimized graph as .onnx.")
@click.option("--allow-conversion-failures", is_flag=True, help="Exit 0 even if some models of a directory fail.")
@click.option(
    "--target-platform",
    type=click.Choice(PLATFORMS),
    help="CPU that will run the model. arm keeps int8 activations. amd64 allows this CPU's layouts at levels layout and all.",
)
@click.option(
    "--custom-op-library",
    type=Library(),
    help="Shared library with your own operators, for validation with onnxruntime.",
)
@click.option(
    "--target-ort",
    metavar="VERSION",
    help=f"Oldest release of onnxruntime that must load the file.  [default: {TARGET_ORT}, or what MODEL itself needs]",
)
@add(FIX_DIM)
@add(PASS_CHOICE)
@click.option(
    "--pipeline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run exactly the passes in a file written by: ortconv passes list --as-text.",
)
@click.option(
    "--verify-each",
    is_flag=True,
    help="Run the model after every pass; name the first pass and rewrite that change its numbers.",
)
@click.option(
    "--fold-limit",
    type=Size(),
    default="64MiB",
    metavar="SIZE",
    help="Limit on the model's growth by constant folding, such as 64M, 1GiB or 0.",
)
@click.option("--validate/--no-validate", default=True, help="Run source and result on the same inputs and compare.")
@click.option(
    "--validate-on",
    type=click.Choice(ENGINES),
    default="both",
    help="Engines for validation: ortconv's numpy kernels, onnxruntime with an app's default options, or both.",
)
@click.option(
    "--validate-with",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Inputs for validation by name, as .npz; may be repeated. Without it, inputs are made up.",
)
@click.option(
    "--validate-budget",
    metavar="BUDGET",
    help="Validation's limits: time for all runs, memory for one run, such as 1min or 30s,4GiB.  [default: 20s,2GiB]",
)
@click.option(
    "--allow-unchecked",
    is_flag=True,
    help="Write the file even if it could not be compared or onnxruntime does not load it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("-v", "--verbose", is_flag=True, help="List every pass and rewrite with nodes, bytes and time.")
def command(
    model: Path, output: Path | None, output_dir: Path | None, as_json: bool, quiet: bool, verbose: bool, **flags: Any
) -> None:
    """Convert MODEL, an .onnx file or a directory of them, to ORT format.

    Writes x.ort (x.LEVEL.ort below level all, x.with_runtime_opt.ort in Runtime style) and the operator config for minimal builds.
    Nothing is put in place unless the result computes what the source computes.
    """
    from ortconv.models import find_models
    from ortconv.pipeline import config_name, ort_name, write_config

    batch = model.is_dir()
    sources = find_models(model)
    if not sources:
        raise UsageError(f"there is no .onnx file below {model}")
    if output is not None and output_dir is not None:
        raise UsageError("--output and --output-dir exclude each other")
    if output is not None and output.suffix.lower() == ".onnx" and not output.is_dir():
        hint = f"name it {output.stem}.ort, or give a directory"
        raise UsageError(f"-o {output}: convert writes .ort files, not .onnx", hint=hint)
    styles = tuple(dict.fromkeys(flags.pop("styles")))
    exact = output if output is not None and output.suffix.lower() == ".ort" and not batch else None
    if exact and len(styles) > 1:
        raise UsageError("one .ort file cannot hold two styles", hint="give -o a directory")
    folder = output_dir or (None if exact else output)
    results: list[Any] = []
    failures: list[OrtconvError] = []
    for style in styles:
        options = _options(flags, style, details=verbose or as_json, write_config=not batch)
        options.recipe()  # complains of what is wrong with it once, before any model is read
        unknown = dict.fromkeys(options.fix_dims, True) if batch else {}
        done: list[Any] = []
        with progress_bar(sources, shown=batch and not quiet) as steps:
            for source in steps:
                target = exact or _beside(source, model if batch else source.parent, folder) / ort_name(
                    source, options.optimization_level, style
                )
                try:
                    with stage_line(source.name, shown=not (batch or quiet or verbose)) as started:
                        done.append(_convert_one(source, target, options, verbose, started, unknown))
                except OrtconvError as error:
                    if not batch:
                        raise
                    fail(error)
                    failures.append(error)
                    continue
                if not as_json and not quiet:
                    click.echo(convert_summary(done[-1]), color=color())
                elif (check := done[-1].validation) is not None and check.skipped is not None:
                    click.echo(f"warning: {source}: the result is not checked: {check.skipped}", err=True)
        if any(unknown.values()) and not failures:
            name = next(name for name, missing in unknown.items() if missing)
            raise UsageError(f"--fix-dim {name}: no input of any model has a dimension of that name", file=model)
        if batch and done:
            write_config([Path(r.files[0]) for r in done], (folder or model) / config_name(options), options)
        results += done
    if as_json:
        failed = [{"source": e.file, "error": e.message, "exit_code": e.exit_code, "hint": e.hint} for e in failures]
        print_json({"version": 1, "models": [r.to_dict() for r in results], "failures": failed})
    if failures and not flags["allow_conversion_failures"]:
        total = len(sources) * len(styles)
        raise BatchError(f"{len(failures)} of {total} models could not be converted", file=model)


def _options(flags: dict[str, Any], style: str, **settings: Any) -> Options:
    from ortconv.pipeline import Options

    given = dict(flags)
    del given["allow_conversion_failures"]
    given["pipeline"] = _pipeline(given["pipeline"])
    given["device"] = _device(given["device"])
    given["nnapi_partitioning_stop_ops"] = names(given["nnapi_partitioning_stop_ops"])
    given["fix_dims"] = dims(given["fix_dims"])
    given["validate_with"] = tuple(map(_arrays, given["validate_with"]))
    try:
        return Options(optimization_style=style, **given, **settings)
    except UsageError as error:
        raise (error.at(file=flags["pipeline"]) if flags["pipeline"] else error) from None


def _convert_one(
    source: Path,
    target: Path,
    options: Options,
    verbose: bool,
    started: Callable[[str], None] | None,
    unknown: dict[str, bool],
) -> Any:
    """The result of one conversion. Of the dimensions among `unknown`, those that the model has not are left out; found ones
    are noted there.
    """
    from ortconv.pipeline import convert

    def narrate(stage: str, model: Any) -> None:
        click.echo(f"{source.name}: {stage}: {sum(1 for _ in model.graph.walk())} nodes", err=True)

    while True:
        try:
            observer = narrate if verbose else None
            result = convert(source, target, options=options, observer=observer, started=started)
            break
        except UnknownDimError as error:
            if error.name not in unknown:
                raise
            fixed = {name: size for name, size in options.fix_dims.items() if name != error.name}
            options = replace(options, fix_dims=fixed)
    unknown.update(dict.fromkeys((name for name in options.fix_dims if name in unknown), False))
    if not verbose:
        return result
    from ortconv.cli.trace import show

    show(source.name, result.trace)
    return result


def _pipeline(path: Path | None) -> str | None:
    """The text of a pipeline, with which no other option may say what passes run."""
    if path is None:
        return None
    context = click.get_current_context()
    for name in REPLACED:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = next(p.opts[0] for p in context.command.params if p.name == name)
            raise UsageError(f"--pipeline and {flag} exclude each other", hint="change the file instead")
    from ortconv.files import read_text
    from ortconv.optimizer.recipe import parse

    try:
        text = read_text(path)
        parse(text)
    except UsageError as error:
        raise error.at(file=path) from error
    return text


def names(text: str | None) -> tuple[str, ...] | None:
    """The operators of a comma separated list."""
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def dims(texts: tuple[str, ...]) -> dict[str, int]:
    """The numbers of --fix-dim NAME=N, by name."""
    fixed = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or len(number) > 18 or int(number) < 1:
            raise UsageError(f"--fix-dim takes NAME=N with a positive number, got '{text[:80]}'")
        fixed[name] = int(number)
    return fixed


def _device(path: Path | None) -> Any:
    if path is None:
        return None
    from ortconv.partition.profile import read_device

    return read_device(path)


def _arrays(path: Path) -> dict[str, Any]:
    from ortconv.cli.arrays import read_npz

    return read_npz(path)


def _beside(source: Path, root: Path, folder: Path | None) -> Path:
    """Where the result of a source goes: the same place below the output folder, or beside the source."""
    return source.parent if folder is None else folder / source.parent.relative_to(root)
