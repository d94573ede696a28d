"""ortconv check"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import inputs as given
from ortconv.cli import options as shared
from ortconv.cli import present
from ortconv.cli.github import annotate, append_summary, check_github
from ortconv.cli.partition import TARGET, USE_NCHW, target_of

if TYPE_CHECKING:
    from ortconv.checking.check import Check, CheckedMetric
    from ortconv.report.sections import Section


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

    wanted = given.Inputs()
    if flags["inputs"] or flags["texts"]:
        wanted = given.read_inputs(load(model, only_to_run=True).graph, flags["inputs"], flags["texts"])
    runs = RunSettings(wanted.arrays, wanted.draws, flags["seed"], flags["custom_op_library"], measure)
    check_github(flags["github"])
    names = ("fail_on", "update", "app_config")
    found = check(
        model, baseline, target=target_of(shared.read_values(flags)), runs=runs, **{name: flags[name] for name in names}
    )
    shown = list(sections(found))
    present(found.to_dict, lambda: shown)
    if flags["github"]:
        append_summary(as_markdown(shown) + "\n")
        for failed in found.failed:
            annotate(failed.message, file=model, title=f"ortconv: gate {failed.condition}")
    found.refuse()


def sections(found: Check) -> Iterator[Section]:
    """The result of a check, as tables."""
    from ortconv.report.sections import Section

    title = f"{found.model}: {found.verdict}" if found.conditions else found.model
    lines = [one.message for one in found.failed] + found.notes
    lines += [f"{found.baseline} was written: the model is accepted"] if found.updated else []
    yield Section(title, lines, is_good=not found.failed if found.conditions else None)
    rows = [(m.name, m.shown_baseline, m.shown, _change(m), m.note) for m in found.metrics if m.moved]
    yield Section("Changed", (), ("metric", ">baseline", ">now", ">change", ""), rows)
    same = ", ".join(f"{m.name} {m.shown}" for m in found.metrics if not m.moved)
    if same:
        yield Section("Unchanged", [same])


def _change(metric: CheckedMetric) -> str:
    """The change in percent, that of a percentage in points; empty if it has no meaning, as for a release."""
    from ortconv.report.gates import METRICS, PERCENT, RELEASE

    value, baseline, notation = metric.value, metric.baseline, METRICS[metric.name].notation
    if value is None or baseline is None or notation is RELEASE:
        return ""
    if notation is PERCENT:
        return f"{value - baseline:+.2f} points"
    return f"{100 * (value / baseline - 1):+.1f}%" if baseline else ""
