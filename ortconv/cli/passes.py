"""ortconv passes"""

from __future__ import annotations

import json

import click

from ortconv.cli import color


@click.group()
def command() -> None:
    """Say what the optimizer's passes do.

    Their names are what convert's --disable-pass and --only-pass take, and what its summary counts.
    """


@command.command("list")
@click.option("--level", type=click.Choice(["basic", "extended", "layout"]), help="Only the passes of this level.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(level: str | None, as_json: bool) -> None:
    """List all passes in the order in which they run."""
    from ortconv.optimizer.catalogue import entries

    shown = [entry for entry in entries() if level in (None, entry.level)]
    if as_json:
        click.echo(json.dumps({"version": 1, "passes": [entry._asdict() for entry in shown]}, indent=1))
        return
    width = max(len(entry.name) for entry in shown)
    for entry in shown:
        click.echo(f"{entry.level:9} {click.style(f'{entry.name:{width}}', bold=True)}  {entry.doc[0]}", color=color())


@command.command()
@click.argument("name")
def explain(name: str) -> None:
    """Say what the pass NAME does, in all its forms."""
    from ortconv.optimizer.catalogue import find

    entry = find(name)
    click.echo(f"{click.style(entry.name, bold=True)}, level {entry.level}", color=color())
    for line in entry.doc:
        click.echo(f"  {line}")
