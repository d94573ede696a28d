"""ortconv export"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import present, printable
from ortconv.cli.options import FILE, JSON_AND_QUIET, add, flag, output
from ortconv.files import size
from ortconv.wording import tally

if TYPE_CHECKING:
    from ortconv.cli.render import Fact
    from ortconv.exporting.export import Export, SavedFusions


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

    found = export(model, output, standard=standard, saved_fusions=saved_fusions)
    present(found.to_dict, lambda: summary(found.source, found.output, _facts(found)))


def _facts(found: Export) -> Iterator[Fact]:
    yield "nodes", f"{found.nodes}, {size(found.bytes)}"
    if found.upgraded_from is not None:
        yield "format", f"was version {printable(found.upgraded_from)}"
    if found.rewrites:
        yield "rewrites", tally(found.rewrites)
    if found.saved_fusions:
        kept = found.upgraded_from is not None and not found.saved_fusions_made
        fate = "kept" if kept else f"{found.saved_fusions_made} made, the others dropped"
        yield "saved", f"{found.saved_fusions} fusions for onnxruntime: {fate}"
    if found.own_operators:
        yield "not ONNX", printable(tally(found.own_operators))
    if found.providers:
        names = ", ".join(map(printable, found.providers))
        yield "lost", f"the assignment of nodes to {names}: convert for them again"
