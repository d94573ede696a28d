"""ortconv diff"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import LEVELS, PLATFORMS, STYLES
from ortconv.cli import options as shared
from ortconv.cli import present
from ortconv.cli.values import given_options, on_command_line, options_of
from ortconv.errors import MismatchError
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.pipeline import Options

OF_CONVERSION = (
    click.option(
        "--optimization-level",
        type=click.Choice(LEVELS),
        help="Level at which A was converted.  [default: the highest one that leads to B]",
    ),
    click.option(
        "--optimization-style", type=click.Choice(STYLES), help="Style in which A was converted.  [default: as in B]"
    ),
    click.option("--target-platform", type=click.Choice(PLATFORMS), help="Platform for which A was converted."),
    *shared.accelerators(
        "A was converted for NNAPI.  [default: as in B]", "A was converted for CoreML.  [default: as in B]"
    ),
    click.option("--target-ort", metavar="VERSION", help="Oldest release of onnxruntime for which A was converted."),
    *shared.INPUT_CHANGES,
    *shared.PIPELINE,
)
"""Options of convert that change the graph. `diff` repeats the conversion of A with them."""


@click.command(context_settings={"show_default": False})
@click.argument("a", type=shared.FILE)
@click.argument("b", type=shared.FILE)
@shared.flag("--exit-code", help="Exit with 4 if anything but names inside the graphs changed.")
@shared.add(OF_CONVERSION, shared.TIME_AND_MEMORY, shared.PAGE, shared.MARKDOWN, shared.JSON)
@shared.view("-v", "--verbose", help="List every change and rewrite, not only the first ones of each kind.")
@shared.QUIET
def command(a: Path, b: Path, exit_code: bool, verbose: bool, **flags: Any) -> None:
    """Show the changes from model A to model B (.onnx or .ort): interface, nodes, attributes, constants, operator sets, metadata.

    Names inside the graphs and the order of nodes do not count. If B is an .ort file made from the .onnx model A, the conversion is
    repeated, and its rewrites explain the changes. The options are those of convert. They are not needed for a file with
    a stamp (convert --stamp).
    """
    from ortconv.differences.diff import diff
    from ortconv.report.diff import page_of, sections

    found = diff(a, b, options=_options(flags))
    present(found.to_dict, lambda: sections(found, everything=verbose), lambda: page_of(found, a, b, given_options()))
    if exit_code and not found.equal:
        count = len(found.changes)
        raise MismatchError(f"{counted(count, 'change')} from {a} to {b}")


def _options(flags: Mapping[str, Any]) -> Options | None:
    """The options of the conversion on the command line; None without any."""
    from ortconv.pipeline.options import OPTIONS

    given = {option.name for option, _ in on_command_line()} & OPTIONS.keys()
    return options_of({name: flags[name] for name in given}) if given else None
