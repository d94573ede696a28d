"""ortconv reduce"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortconv.cli import present
from ortconv.cli.options import CHECK_MEMORY, COUNT, FILE, JSON_AND_QUIET, SECONDS, add, output


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "--check",
    required=True,
    metavar="COMMAND",
    help="Command that fails on MODEL. {} in it is the path of the model to try; without {}, the path is appended.",
)
@output("The file to write, in the format of MODEL.  [default: NAME.reduced.onnx for NAME.onnx, in this directory]")
@click.option(
    "--expect-exit",
    type=int,
    metavar="CODE",
    help="Exit code that counts as the failure.  [default: the one on MODEL, which must not be 0]",
)
@click.option("--expect-output", help="Text that the command must print, so that its failure counts.")
@click.option("--steps", type=COUNT, help="Stop after N runs of the command.")
@click.option("--timeout", "seconds", type=SECONDS, help="Stop the search after this time.")
@click.option(
    "--check-timeout",
    type=SECONDS,
    help="Limit on one run of the command, which then ends with exit code 124.  [default: 10 times the first run, at least 30]",
)
@add(CHECK_MEMORY, JSON_AND_QUIET)
def command(model: Path, check: str, output: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Shrink MODEL (.onnx or .ort) while a command still fails on it: fewer nodes, then fewer inputs, smaller shapes and constants.

    If the command is stopped, the smallest model so far is in place, and the same command line resumes the search. Example:
    ortconv reduce model.onnx --check 'ortconv convert {} -o {}.ort --verify-each'
    """
    from ortconv.cli.render import summary
    from ortconv.models import is_ort
    from ortconv.reduction.command import Command
    from ortconv.reduction.reduce import reduce
    from ortconv.report.reduce import facts

    target = output or Path(f"{model.stem}.reduced{'.ort' if is_ort(model) else '.onnx'}")
    found = reduce(
        model,
        target,
        Command(check, flags.pop("check_timeout"), flags.pop("check_memory")),
        **flags,
        journal=target.with_name(f"{target.name}.journal"),
        progress=None if quiet or as_json else lambda line: click.echo(line, err=True),
    )
    present(found.to_dict, lambda: summary(found.source, found.output, facts(found)))
    if found.stopped == "interrupted":
        raise KeyboardInterrupt
