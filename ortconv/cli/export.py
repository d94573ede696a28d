"""ortconv export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import present
from ortconv.cli.options import FILE, JSON_AND_QUIET, add, flag, output

if TYPE_CHECKING:
    from ortconv.exporting.export import SavedFusions


@click.command()
@click.argument("model", type=FILE)
@output(
    "The .onnx file to write, which must not exist; x.ort writes an .ort file of the present format version.",
    required=True,
)
@flag("--standard", help="Rewrite operators of com.microsoft into standard operators that compute the same.")
@click.option(
    "--saved-fusions",
    type=click.Choice(["drop", "apply"]),
    default="drop",
    help="Drop or make the saved fusions of a file of Runtime style. With --output x.ort, fusions that are not made are kept.",
)
@add(JSON_AND_QUIET)
def command(model: Path, output: Path, standard: bool, saved_fusions: SavedFusions, **_: Any) -> None:
    """Write the .ort file MODEL as .onnx with the same graph: converting it at level disable gives the same bytes.

    With an output named .ort, a file of an older format version is upgraded.
    """
    from ortconv.cli.render import summary
    from ortconv.exporting.export import export
    from ortconv.report.export import facts

    found = export(model, output, standard=standard, saved_fusions=saved_fusions)
    present(found.to_dict, lambda: summary(found.source, found.output, facts(found)))
