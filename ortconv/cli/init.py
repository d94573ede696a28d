"""ortconv init"""

from __future__ import annotations

from pathlib import Path

import click

from ortconv.cli import printable
from ortconv.cli.options import FOLDER, QUIET


@click.command()
@click.argument("folder", type=FOLDER, default=".")
@click.option("--gates/--no-gates", default=True, help="Write the gates as active settings, or as a comment.")
@QUIET
def command(folder: Path, gates: bool, quiet: bool) -> None:
    """Write ortconv.toml, with comments, for the .onnx models below FOLDER. Nothing is overwritten."""
    from ortconv.project.init import init

    path = init(folder, gates=gates)
    if not quiet:
        then = "ortconv build --update, and commit the baselines" if gates else "ortconv build"
        click.echo(f"{printable(str(path))} is written. Next: {then}.")
