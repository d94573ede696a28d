"""ortconv check"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortconv.cli import inputs as given
from ortconv.cli import options as shared
from ortconv.cli import present
from ortconv.cli.github import annotate, append_summary, check_github
from ortconv.cli.partition import TARGET, USE_NCHW, target_of
from ortconv.cli.values import read_values


@click.command()
@click.argument("model", type=shared.FILE)
@shared.written(
    "--baseline",
    required=True,
    metavar="FILE.json",
    help="The baseline: facts about the accepted model, a copy of which is in the folder FILE.model.",
)
@shared.flag("--update", help="Accept MODEL: write the baseline and the copy of the model.")
@shared.fail_on("check", "size>+5%,latency>1.1x,partitions>+0", "Without it, the conditions of docs/checking.md count.")
@click.option(
    "--app-config",
    type=shared.FILE,
    help="Operator config that the oldest app in use was built with, for the metric missing.  [default: that of the baseline]",
)
@shared.add(TARGET, shared.NNAPI, USE_NCHW, shared.COREML)
@shared.add(given.OPTIONS)
@click.option(
    "--measure/--no-measure",
    default=True,
    help="Run both models in turns in onnxruntime, for latency, load and memory.",
)
@shared.add(shared.CUSTOM_OP_LIBRARY, shared.TIME_AND_MEMORY, shared.GITHUB, shared.MARKDOWN, shared.JSON_AND_QUIET)
def command(model: Path, baseline: Path, measure: bool, **flags: Any) -> None:
    """Compare MODEL (.ort or .onnx) with the model of a baseline, and exit with 5 if a condition holds.

    Nodes, size, operators, partitions and the release needed are compared with the facts of the baseline. Outputs, time and memory
    are compared with the copy of its model: both run here, in turns, on the same inputs.
    """
    from ortconv.checking.check import RunSettings, check
    from ortconv.cli.tables import as_markdown
    from ortconv.models import load
    from ortconv.report.check import sections

    wanted = given.Inputs()
    if flags["inputs"] or flags["texts"]:
        wanted = given.read_inputs(load(model, only_to_run=True).graph, flags["inputs"], flags["texts"])
    runs = RunSettings(wanted.arrays, wanted.draws, flags["seed"], flags["custom_op_library"], measure)
    check_github(flags["github"])
    names = ("fail_on", "update", "app_config")
    found = check(
        model, baseline, target=target_of(read_values(flags)), runs=runs, **{name: flags[name] for name in names}
    )
    shown = list(sections(found))
    present(found.to_dict, lambda: shown)
    if flags["github"]:
        append_summary(as_markdown(shown) + "\n")
        for failed in found.failed:
            annotate(failed.message, file=model, title=f"ortconv: gate {failed.condition}")
    found.refuse()
