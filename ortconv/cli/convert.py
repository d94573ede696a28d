"""ortconv convert"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ortconv.cli import color, fail, printable
from ortconv.cli.render import convert_summary
from ortconv.errors import BatchError, OrtconvError, UsageError

LEVELS = ("disable", "basic", "extended", "layout", "all")


@click.command(context_settings={"show_default": True})
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
@click.option("--optimization-level", type=click.Choice(LEVELS), default="all", help="How far to optimize.")
@click.option(
    "--optimization-style", type=click.Choice(["Fixed"]), default="Fixed", help="Fixed: all optimizations are baked in."
)
@click.option("--use-nnapi", is_flag=True, help="Keep the nodes that NNAPI would take as NNAPI wants them.")
@click.option("--nnapi-feature-level", type=click.IntRange(27, 31), default=31, help="Android API level to assume.")
@click.option(
    "--nnapi-partitioning-stop-ops",
    metavar="OPS",
    help="Operators, comma separated, from which on NNAPI gets nothing.  [default: NonMaxSuppression]",
)
@click.option("--enable-type-reduction", is_flag=True, help="List the types of operators in the operator config, too.")
@click.option("--save-optimized-onnx-model", is_flag=True, help="Write the optimized graph as .onnx, too.")
@click.option("--allow-conversion-failures", is_flag=True, help="Exit 0 even if some models of a directory fail.")
@click.option(
    "--target-platform",
    type=click.Choice(["arm", "amd64"]),
    help="Where the model will run. arm: int8 activations stay int8. amd64: layout and all write layouts for CPUs like this one.",
)
@click.option(
    "--custom-op-library",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Shared library with your own operators, for validation with onnxruntime.",
)
@click.option(
    "--fix-dim",
    "fix_dims",
    multiple=True,
    metavar="NAME=N",
    help="Give a symbolic input dimension a number; may be repeated.",
)
@click.option(
    "--disable-pass", "disable_passes", multiple=True, metavar="NAME", help="Leave out a pass; see ortconv passes list."
)
@click.option(
    "--only-pass", "only_passes", multiple=True, metavar="NAME", help="Run this pass and no other; may be repeated."
)
@click.option("--stop-after", type=click.IntRange(0), metavar="N", help="Stop optimizing after N rewrites.")
@click.option(
    "--verify-each", is_flag=True, help="Run the model after every pass and name the first that changes the numbers."
)
@click.option(
    "--fold-limit",
    type=click.IntRange(0),
    default=64 << 20,
    metavar="BYTES",
    help="How much constant folding may let the model grow.",
)
@click.option("--validate/--no-validate", default=True, help="Run source and result on the same inputs and compare.")
@click.option(
    "--validate-with",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Inputs for that, as .npz; made up otherwise.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say what every pass did.")
def command(
    model: Path, output: Path | None, output_dir: Path | None, as_json: bool, quiet: bool, verbose: bool, **flags: Any
) -> None:
    """Convert MODEL, an .onnx file or a directory of them, to ORT format.

    Writes x.ort (x.LEVEL.ort below level all) and the operator config for minimal builds. Nothing is put in place unless the result
    computes what the source computes.
    """
    from ortconv.models import find_models
    from ortconv.pipeline import Options, config_name, ort_name, write_config

    batch = model.is_dir()
    sources = find_models(model)
    if not sources:
        raise UsageError(f"there is no .onnx file below {model}")
    if output is not None and output_dir is not None:
        raise UsageError("--output and --output-dir exclude each other")
    level = flags["optimization_level"]
    options = Options(
        optimization_level=level,
        use_nnapi=flags["use_nnapi"],
        nnapi_feature_level=flags["nnapi_feature_level"],
        nnapi_partitioning_stop_ops=_names(flags["nnapi_partitioning_stop_ops"]),
        enable_type_reduction=flags["enable_type_reduction"],
        target_platform=flags["target_platform"],
        save_optimized_onnx_model=flags["save_optimized_onnx_model"],
        fix_dims=_dims(flags["fix_dims"]),
        fold_limit=flags["fold_limit"],
        disable_passes=flags["disable_passes"],
        only_passes=flags["only_passes"],
        stop_after=flags["stop_after"],
        verify_each=flags["verify_each"],
        validate=flags["validate"],
        validate_with=_arrays(flags["validate_with"]),
        write_config=not batch,
        custom_op_library=flags["custom_op_library"],
    )
    exact = output if output is not None and output.suffix.lower() == ".ort" and not batch else None
    folder = output_dir or (None if exact else output)
    results, failures = [], []
    with _progress(sources, shown=batch and not quiet) as steps:
        for source in steps:
            target = exact or _beside(source, model if batch else source.parent, folder) / ort_name(source, level)
            try:
                result = _convert_one(source, target, options, verbose)
            except OrtconvError as error:
                if not batch:
                    raise
                fail(error)
                failures.append(error)
                continue
            results.append(result)
            if not as_json and not quiet:
                click.echo(convert_summary(result), color=color())
    if batch and results:
        config = (folder or model) / config_name(level, types=options.enable_type_reduction)
        write_config([Path(r.files[0]) for r in results], config, types=options.enable_type_reduction)
    if as_json:
        failed = [{"source": e.file, "error": e.message, "exit_code": e.exit_code, "hint": e.hint} for e in failures]
        click.echo(json.dumps({"version": 1, "models": [r.to_dict() for r in results], "failures": failed}, indent=1))
    if failures and not flags["allow_conversion_failures"]:
        raise BatchError(f"{len(failures)} of {len(sources)} models could not be converted", file=model)


def _convert_one(source: Path, target: Path, options: Any, verbose: bool) -> Any:
    from ortconv.pipeline import convert

    if not verbose:
        return convert(source, target, options=options)

    def narrate(stage: str, model: Any) -> None:
        click.echo(f"{source.name}: {stage}: {sum(1 for _ in model.graph.walk())} nodes", err=True)

    result = convert(source, target, options=options, observer=narrate)
    for rewrite in result.trace:
        click.echo(
            f"{source.name}: {rewrite.rule} at {printable(rewrite.root)}: -{rewrite.removed} +{rewrite.added}", err=True
        )
    return result


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _dims(texts: tuple[str, ...]) -> dict[str, int]:
    fixed = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise UsageError(f"--fix-dim takes NAME=N with a positive number, got '{text}'")
        fixed[name] = int(number)
    return fixed


def _arrays(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    from ortconv.cli.arrays import read_npz

    return read_npz(path)


def _beside(source: Path, root: Path, folder: Path | None) -> Path:
    """Where the result of a source goes: the same place below the output folder, or beside the source."""
    return source.parent if folder is None else folder / source.parent.relative_to(root)


@contextmanager
def _progress(sources: list[Path], *, shown: bool) -> Iterator[Iterable[Path]]:
    """The sources, with a progress bar on stderr while they are worked through, if that is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield sources
        return
    from rich.console import Console
    from rich.progress import track

    yield track(sources, description="converting", console=Console(stderr=True), transient=True)
