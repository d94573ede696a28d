"""ortconv tune"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import GOALS, SNIPPETS, TARGETS
from ortconv.cli import options as shared
from ortconv.cli import present
from ortconv.cli.progress import stage_line
from ortconv.cli.values import given_options, on_command_line, read_values, words
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.tuning.result import Tuning
    from ortconv.tuning.workshop import Progress

OF_TUNING = ("goal", "target", "output_dir", "budget", "exhaustive", "jobs", "timeout", "memory")
"""Options that are arguments of `tune`."""

AXES = "level, style, aware, offload, platform, ort, float16, opt_in, threads, direct, saved"


@click.command()
@click.argument("model", type=shared.FILE)
@click.option(
    "--goal",
    type=click.Choice(GOALS),
    default="latency",
    help="The criterion of the ranking. All are measured on this machine, except accelerator, which is estimated.",
)
@click.option("--target", type=click.Choice(TARGETS), default="nnapi", help="Accelerator to prepare files for.")
@shared.add(shared.NNAPI, shared.COREML, shared.PROFILE)
@click.option(
    "--only",
    multiple=True,
    metavar="AXIS=VALUES",
    help=f"Try only these values, comma separated, such as level=basic,all; may be repeated. Axes: {AXES}.",
)
@shared.flag(
    "--list", "listed", help="Show the axes with their values and the number of candidates, and measure nothing."
)
@click.option(
    "--budget",
    type=shared.DURATION,
    help="Limit on the total time, such as 90s or 10min; the ranking is based on the measurements until then.",
)
@shared.flag("--exhaustive", help="Measure every file with every session setting, and drop none early.")
@shared.written(
    "--output-dir",
    type=shared.OUTPUT_FOLDER,
    help="Directory for the files and the results so far. An interrupted tuning is resumed from there.",
)
@click.option(
    "--snippet", type=click.Choice(SNIPPETS), help="Also print code that opens the recommended file in an app."
)
@shared.add(shared.PAGE, shared.INPUT_CHANGES, shared.VALIDATION, shared.CUSTOM_OP_LIBRARY)
@shared.jobs("Number of files to convert at a time. Measurements run alone.")
@shared.add(shared.TIME_AND_MEMORY)
@shared.fail_on(
    "tune",
    "latency>0.95x,memory>100MB",
    "The recommended candidate counts, and the base of its ratios is the baseline.",
)
@shared.add(shared.MARKDOWN, shared.JSON)
@shared.view("-q", "--quiet", help="Print only the recommended command.")
@shared.view("-v", "--verbose", help="List every candidate, including those that give the same file.")
def command(
    model: Path, as_json: bool, quiet: bool, verbose: bool, markdown: bool, fail_on: tuple[str, ...], **flags: Any
) -> None:
    """Find the conversion and session options that suit MODEL (.onnx) best.

    Converts it in all ways that can matter, validates each result, measures them in onnxruntime, taking turns, and ranks them for a
    goal. Times on accelerators are estimated for a device profile.
    """
    from ortconv.cli.render import is_wide
    from ortconv.gates import check_gates, parse_gates
    from ortconv.report.tune import axes_section, page_of, sections

    conditions = parse_gates(fail_on, "tune")
    only = chosen_values(flags["only"])
    if flags["listed"]:
        from ortconv.cli.tables import show

        show([axes_section(only, flags["target"])], markdown=markdown)
        return
    if flags["snippet"] is not None and flags["goal"] == "accelerator":
        from ortconv.tuning.snippets import check_snippet

        check_snippet(flags["snippet"], flags["target"])
    found = _tuned(model, only, flags, shown=not quiet)
    tables = partial(sections, found, everything=verbose, is_wide=is_wide())
    present(found.to_dict, tables, lambda: page_of(found, given_options()))
    if not as_json:
        if quiet:
            click.echo(found.recommended.command if found.recommended is not None else "")
        if found.snippet is not None:
            click.echo(f"\n```{flags['snippet']}\n{found.snippet}\n```" if markdown else f"\n{found.snippet}")
    if found.is_interrupted:
        raise KeyboardInterrupt
    check_gates(conditions, found.metrics(), found.base_metrics(), file=model)


def chosen_values(texts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The values of --only AXIS=VALUES, by axis."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        listed = tuple(value.strip() for value in values.split(",") if value.strip())
        if not equals or not listed:
            raise UsageError(f"--only does not understand '{text}'", hint="write AXIS=VALUES, such as level=basic,all")
        found[name.strip()] = (*found.get(name.strip(), ()), *listed)
    return found


def _tuned(model: Path, only: dict[str, tuple[str, ...]], flags: dict[str, Any], *, shown: bool) -> Tuning:
    from ortconv.pipeline.options import OPTIONS
    from ortconv.tuning.tune import tune

    values = read_values(flags)
    of_conversion = flags.keys() & OPTIONS.keys()
    with stage_line(model.name, shown=shown) as stage:
        found = tune(
            model,
            only=only,
            notify=None if stage is None else lambda progress: stage(_line(progress)),
            more_flags=_shared_flags(of_conversion),
            use_nnapi=flags["target"] == "nnapi",
            **{name: values[name] for name in (*OF_TUNING, *of_conversion)},
        )
    if flags["snippet"] is not None and found.recommended is not None:
        from ortconv.tuning.snippets import snippet

        found.snippet = snippet(flags["snippet"], found.recommended)
    return found


def _shared_flags(names: Collection[str]) -> dict[str, list[str]]:
    """The options with these names that the recommended `ortconv convert` line needs, too, by accelerator."""
    found: dict[str, list[str]] = {"": [], "nnapi": [], "coreml": []}
    for option, value in on_command_line():
        if option.name in names:
            target = str(option.name).partition("_")[0]
            found[target if target in TARGETS else ""] += words(option, value)
    return found


def _line(progress: Progress) -> str:
    left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
    return f"{progress.stage} {progress.done} of {progress.total}{left}"
