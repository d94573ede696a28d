"""ortconv verify"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ortconv.cli import color, print_json
from ortconv.errors import FormatError


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(model: Path, as_json: bool, quiet: bool) -> None:
    """Check the .ort file MODEL: every offset, then everything that a minimal build trusts unseen.

    Exits with 3 if the file is damaged or would mislead a minimal build.
    """
    from ortconv.ortformat.check import check

    report = check(model)
    if as_json:
        print_json({"version": 1, "model": str(model), **asdict(report)})
    elif not quiet:
        click.echo(f"{click.style(str(model), bold=True)}: {report}", color=color())
    if report.findings:
        raise FormatError(f"{len(report.findings)} findings, the first: {report.findings[0]}", file=model)
