"""ortconv bundle"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortconv.cli import present
from ortconv.cli.options import CHECK_MEMORY, FILE, JSON_AND_QUIET, SECONDS, add, flag, output


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "--check",
    metavar="COMMAND",
    help="Command that shows the problem. {} in it is the path of the model; without {}, the path is appended.",
)
@output("The .zip file to write, or a folder.  [default: NAME.bundle.zip for NAME.onnx, in this directory]")
@click.option("--inputs", type=FILE, help="Inputs by name as .npz. Without it, inputs are generated.")
@flag(
    "--strip-weights",
    help="Replace weights by random ones with the same range, mean and deviation. With --check, the result must be the same.",
)
@click.option("--expect-exit", type=int, metavar="CODE", help="Exit code that the command must have.")
@click.option("--check-timeout", type=SECONDS, help="Limit on one run of the command.")
@add(CHECK_MEMORY, JSON_AND_QUIET)
def command(model: Path, check: str | None, output: Path | None, inputs: Path | None, **flags: Any) -> None:
    """Pack MODEL (.onnx or .ort) for a bug report: with inputs, versions, a command and its output.

    Private data is left out: descriptions and metadata of the model, absolute paths, environment variables. Example:
    ortconv bundle model.reduced.onnx --check 'ortconv convert {} -o {}.ort' --strip-weights
    """
    from ortconv.arrays import read_npz
    from ortconv.cli.render import summary
    from ortconv.reduction.bundle import bundle
    from ortconv.reduction.command import Command
    from ortconv.report.bundle import facts

    found = bundle(
        model,
        output or Path(f"{model.stem}.bundle.zip"),
        command=None if check is None else Command(check, flags["check_timeout"], flags["check_memory"]),
        inputs=None if inputs is None else read_npz(inputs),
        strip_weights=flags["strip_weights"],
        expect_exit=flags["expect_exit"],
    )
    present(found.to_dict, lambda: summary(found.source, found.output, facts(found)))
