"""ortconv partition"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import ANALYSIS_LEVELS, TARGETS
from ortconv.cli import VerbResult
from ortconv.cli import options as shared
from ortconv.cli.values import given_options, read_values
from ortconv.errors import UsageError
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.partition import Target
    from ortconv.partition.advice import Merge
    from ortconv.pipeline.analysis import Analysis

TARGET = click.option(
    "--target", "ep", type=click.Choice(TARGETS), default="nnapi", help="Execution provider to assume."
)
USE_NCHW = shared.flag("--use-nchw", help="Assume the provider's flag USE_NCHW, which keeps ONNX's layout.")


@click.command()
@click.argument("model", type=shared.FILE_OR_FOLDER)
@shared.add(TARGET, shared.NNAPI, USE_NCHW, shared.COREML)
@shared.ANALYSIS_LEVEL
@shared.flag("--compare-levels", help="Show the partitions at every level side by side.")
@shared.add(shared.INPUT_CHANGES, shared.LIMITS)
@shared.flag("--maximize-offload", help="Rewrite refused nodes as convert --maximize-offload does, and show the gain.")
@shared.fail_on("partition", "partitions>3,coverage<80%")
@shared.add(shared.drawing("Draw the graph and its partitions into this file."))
@shared.add(shared.PAGE, shared.BATCH, shared.LIMITS_OF_MODELS)
@shared.add(shared.MARKDOWN_OF_MODEL, shared.JSON_LINES, shared.QUIET)
def command(model: Path, **flags: Any) -> None:
    """Show which nodes of MODEL (.onnx or .ort) an accelerator supports, the reasons against the others, and advice.

    With a directory, shows the counts for each model in it.
    """
    if model.is_dir():
        _show_all(model, flags)
    else:
        partitioned({"model": model, **flags}).end()


def partitioned(flags: Mapping[str, Any]) -> VerbResult:
    """Partition one model. The result has an error if a condition of --fail-on holds."""
    from ortconv.cli.render import is_wide
    from ortconv.gates import check_gates, parse_gates
    from ortconv.report.partition import document, metrics, sections

    model: Path = flags["model"]
    conditions = parse_gates(flags["fail_on"], "partition")
    analysis_at = _analyzer(model, flags)
    found = analysis_at(flags["level"])
    numbers = metrics(found.partitioning, found.estimate)
    is_silent = flags["quiet"] and not flags["as_json"] and flags["html"] is None
    advice = [] if is_silent else found.advice()
    levels = _levels(model, analysis_at) if flags["compare_levels"] else []
    _draw(found, advice, levels, model, flags)
    return VerbResult(
        lambda: document(model, found, advice, levels),
        lambda: sections(found, advice, levels, model, is_wide=is_wide()),
        lambda: check_gates(conditions, numbers),
    )


def _show_all(folder: Path, flags: Mapping[str, Any]) -> None:
    """Show the counts for each model of a folder. Wrong options are reported before the first model."""
    from ortconv.cli.folders import models_in, over_folder
    from ortconv.gates import parse_gates

    if flags["svg"] is not None or flags["html"] is not None or flags["markdown"]:
        raise UsageError("--svg, --html and --markdown show one model", hint="give a model, not a directory")
    parse_gates(flags["fail_on"], "partition")
    _analyzer(folder, flags)
    over_folder("partitioned", partitioned, ({"model": path} for path in models_in(folder)), _line)


def _line(document: dict[str, Any]) -> str:
    count = len(document["partitions"])
    return f"{counted(count, 'partition')}, {document['nodes_taken']} of {document['nodes']} nodes"


def target_of(flags: Mapping[str, Any]) -> Target:
    """The execution provider that --target and its options describe. `flags` are those of `read_values`."""
    from ortconv.partition import Target

    if flags["ep"] == "coreml" and (flags["nnapi_partitioning_stop_ops"] is not None or flags["use_nchw"]):
        raise UsageError("stop ops and --use-nchw are options of NNAPI", hint="leave them out, or give --target nnapi")
    coreml = {name: value for name, value in flags.items() if name.startswith("coreml_")}
    return Target(flags["ep"], use_nchw=flags["use_nchw"], **nnapi_settings(flags), **coreml)


def nnapi_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Target that --nnapi-feature-level and --nnapi-partitioning-stop-ops set."""
    from ortconv.partition.policy import DEFAULT_STOP_OPS

    stop_ops = flags["nnapi_partitioning_stop_ops"]
    stop_ops = DEFAULT_STOP_OPS if stop_ops is None else stop_ops
    return {"feature_level": flags["nnapi_feature_level"], "stop_ops": stop_ops}


def _analyzer(model: Path, flags: Mapping[str, Any]) -> Callable[[str | None], Analysis]:
    """A function that analyzes the model at an optimization level."""
    from ortconv.partition.limits import Limits
    from ortconv.partition.profile import DeviceProfile
    from ortconv.pipeline.analysis import REWRITABLE_LEVELS, analyze

    flags = read_values(flags)
    device = flags["device"] or DeviceProfile()
    target = device.narrow(target_of(flags))
    limits = Limits(flags["max_partitions"], flags["min_nodes"], flags["only_worthwhile"], device)
    maximize = flags["maximize_offload"]
    if maximize and flags["level"] not in (None, *REWRITABLE_LEVELS):
        raise UsageError(
            f"level {flags['level']} is not one at which nodes are rewritten",
            hint=f"choose {' or '.join(REWRITABLE_LEVELS)}",
        )
    return lambda level: analyze(
        model,
        target,
        level,
        limits=limits,
        device=device,
        fix_dims=flags["fix_dims"],
        freeze_initializers=flags["freeze_initializers"],
        maximize=maximize and level in (None, *REWRITABLE_LEVELS),
    )


def _levels(model: Path, analysis_at: Callable[[str | None], Analysis]) -> list[Analysis]:
    from ortconv.models import is_ort

    if is_ort(model):
        raise UsageError(
            "an .ort model has one level only",
            file=model,
            hint="compare the levels of the .onnx model that it was made from",
        )
    return list(map(analysis_at, ANALYSIS_LEVELS))


def _draw(
    found: Analysis, advice: Sequence[Merge], levels: Sequence[Analysis], model: Path, flags: Mapping[str, Any]
) -> None:
    if flags["svg"] is None and flags["html"] is None:
        return
    from ortconv.files import write_text
    from ortconv.report.partition import page_of
    from ortconv.report.picture import drawn
    from ortconv.report.svg import drawing

    scene = drawn(found.model.graph, found.partitioning, found.estimate)
    if flags["svg"] is not None:
        write_text(flags["svg"], drawing(scene, dark=flags["dark"]))
    if flags["html"] is not None:
        write_text(flags["html"], page_of(found, scene, model.name, advice, levels, given_options()))
