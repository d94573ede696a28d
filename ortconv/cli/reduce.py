"""ortconv reduce"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import present
from ortconv.cli.options import CHECK_MEMORY, COUNT, FILE, JSON_AND_QUIET, SECONDS, add, output
from ortconv.files import size
from ortconv.wording import command_line, tally

if TYPE_CHECKING:
    from ortconv.cli.render import Fact
    from ortconv.reduction.reduce import Reduction

WHY = {
    "steps": "stopped at the limit of --steps",
    "time": "stopped at the limit of --timeout",
    "interrupted": "interrupted",
}


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
@click.option("--expect-output", help="The failure also prints this.")
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
    from ortconv.reduction.command import Command
    from ortconv.reduction.reduce import reduce

    target = output or Path(f"{model.stem}.reduced{model.suffix}")
    found = reduce(
        model,
        target,
        Command(check, flags.pop("check_timeout"), flags.pop("check_memory")),
        **flags,
        journal=target.with_name(f"{target.name}.journal"),
        progress=None if quiet or as_json else lambda line: click.echo(line, err=True),
    )
    present(found.to_dict, lambda: summary(found.source, found.output, _facts(found)))
    if found.stopped == "interrupted":
        raise KeyboardInterrupt


def _facts(found: Reduction) -> Iterator[Fact]:
    yield "nodes", f"{found.nodes_before} -> {found.nodes_after}   {tally(found.operators)}"
    yield "size", f"{size(found.bytes_before)} -> {size(found.bytes_after)}"
    known = f", {found.known} results known from an earlier run" if found.known else ""
    yield "runs", f"{found.steps} in {found.seconds:.1f} s{known}"
    if found.stopped is not None:
        yield "", f"{WHY[found.stopped]}: the same command line goes on from here"
    elif found.command is not None:
        line = command_line(["ortconv", "bundle", found.output, "--check", found.command])
        yield "report", f"{line} packs it for a bug report"
