"""ortconv verify"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ortconv.cli import color, print_json
from ortconv.cli.options import BATCH, TIME_AND_MEMORY, add
from ortconv.errors import FormatError


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@add(BATCH)
@add(TIME_AND_MEMORY)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document; with a directory, one line for each model and one for all.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(model: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Check the .ort file MODEL, or those of a directory: every offset, then everything that a minimal build trusts unseen.

    Exits with 3 if the file is damaged or would mislead a minimal build.
    """
    if model.is_dir():
        from ortconv.cli.folders import models_in, over_folder

        over_folder("verified", ({"model": path} for path in models_in(model, (".ort",))), _line)
        return
    from ortconv.ortformat.check import check

    report = check(model)
    if as_json:
        print_json({"version": 1, "model": str(model), **asdict(report)})
    elif not quiet:
        click.echo(f"{click.style(str(model), bold=True)}: {report}", color=color())
    if report.findings:
        raise FormatError(f"{len(report.findings)} findings, the first: {report.findings[0]}", file=model)


def _line(document: dict[str, Any]) -> str:
    loads = document["oldest_onnxruntime"]
    return f"{document['nodes']} nodes, {document['bytes']} bytes, loads in onnxruntime {loads} and later"
