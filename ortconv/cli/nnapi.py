"""ortconv nnapi"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortconv.cli import printable
from ortconv.cli.nnapi_options import LEVEL

if TYPE_CHECKING:
    from ortconv.backends.nnapi.lower import Lowered


@click.group()
def command() -> None:
    """Say what becomes of a model under NNAPI."""


@command.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--nnapi-flags", default="", metavar="FLAGS", help="USE_FP16, USE_NCHW, comma separated.")
@LEVEL
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def dump(model: Path, nnapi_flags: str, nnapi_feature_level: int | None, as_json: bool) -> None:
    """Print the NNAPI models that the partitions of MODEL (.onnx or .ort) are lowered to: operands and operations."""
    from ortconv.backends.nnapi.dump import document, lines

    found = _lowered(model, nnapi_flags, nnapi_feature_level)
    if as_json:
        click.echo(
            json.dumps({"version": 1, "model": str(model), "partitions": [document(one) for one in found]}, indent=1)
        )
        return
    for number, one in enumerate(found):
        count = len(one.model.operations)
        click.echo(f"partition {number}: {count} operations, feature level {int(one.model.level)}")
        for line in lines(one):
            click.echo(f"  {printable(line)}")
    if not found:
        click.echo("NNAPI takes no node of this model; ortconv partition says why")


def _lowered(path: Path, flags: str, level: int | None) -> list[Lowered]:
    from ortconv.backends.nnapi.backend import Nnapi, Options, flags_of
    from ortconv.executor.regions import make_region
    from ortconv.models import load

    settings = flags_of(flags)
    if level is not None:
        settings["feature_level"] = level
    backend, graph = Nnapi(Options(**settings)), load(path).graph
    return [backend.lower(make_region(graph, nodes)) for nodes in backend.claim(graph).groups]
