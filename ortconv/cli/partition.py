"""ortconv partition"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import ANALYSIS_LEVELS, TARGETS
from ortconv.cli import print_json
from ortconv.cli.options import (
    BATCH,
    COREML,
    FIX_DIM,
    JSON_LINES,
    LIMITS,
    LIMITS_OF_MODELS,
    NNAPI,
    PAGE,
    QUIET,
    add,
    fail_on,
)
from ortconv.errors import UsageError
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.partition import Target
    from ortconv.partition.advice import Merge
    from ortconv.pipeline.analysis import Analysis

TARGET = click.option(
    "--target", "ep", type=click.Choice(TARGETS), default="nnapi", help="Execution provider to assume."
)
USE_NCHW = click.option(
    "--use-nchw", is_flag=True, help="Assume the provider's flag USE_NCHW, which keeps ONNX's layout."
)


@click.command(context_settings={"show_default": True})
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@add((TARGET, *NNAPI, USE_NCHW, *COREML))
@click.option(
    "--level",
    type=click.Choice(ANALYSIS_LEVELS),
    help="Level at which an .onnx model is optimized first; aware is the level of convert --use-nnapi.  [default: basic]",
)
@click.option("--compare-levels", is_flag=True, help="Show the partitions at every level side by side.")
@add(FIX_DIM)
@add(LIMITS)
@click.option(
    "--maximize-offload",
    is_flag=True,
    help="Rewrite refused nodes as convert --maximize-offload does, and show the gain.",
)
@add([fail_on("partition", "partitions>3,coverage<80%")])
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw the graph and its partitions into this file."
)
@click.option("--dark", is_flag=True, help="Use colors for dark pages in --svg.")
@add(PAGE)
@add(BATCH)
@add(LIMITS_OF_MODELS)
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request. See --summary for directories.")
@JSON_LINES
@QUIET
def command(model: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Show which nodes of MODEL (.onnx or .ort) an accelerator supports, the reasons against the others, and advice.

    With a directory, shows the counts for each model in it.
    """
    if model.is_dir():
        _show_all(model, flags)
        return
    from ortconv.report.gates import check_gates, parse_gates
    from ortconv.report.partitions import document, metrics

    conditions = parse_gates(flags["fail_on"], "partition")
    analysis_at = _analyzer(model, flags)
    found = analysis_at(flags["level"])
    numbers = metrics(found.partitioning, found.estimate)
    advice = [] if quiet and not as_json and flags["html"] is None else found.advice()
    rows = _levels(model, analysis_at) if flags["compare_levels"] else []
    _draw(found, advice, rows, model, flags)
    if as_json:
        described = document(str(model), found.level, found.partitioning, found.estimate, advice)
        print_json(described | ({"levels": rows} if rows else {}) | _more(found))
    elif not quiet:
        from ortconv.cli.partition_view import sections
        from ortconv.cli.tables import show

        show(sections(found, advice, rows, model), markdown=flags["markdown"])
    check_gates(conditions, numbers)


def _more(found: Analysis) -> dict[str, Any]:
    """The parts of the document that only some analyses have."""
    from ortconv.report.partitions import divided

    more: dict[str, Any] = {}
    if found.partitioning.target.takes_subgraphs:
        more["subgraphs"] = [{"graph": i.label, **divided(i.partitioning, i.estimate)} for i in found.inside]
    if found.gain is not None:
        more["offload"] = found.gain.to_dict()
    return more


def _show_all(folder: Path, flags: dict[str, Any]) -> None:
    """Show the counts for each model of a folder. Wrong options are reported before the first model."""
    from ortconv.cli.folders import models_in, over_folder
    from ortconv.report.gates import parse_gates

    if flags["svg"] is not None or flags["html"] is not None or flags["markdown"]:
        raise UsageError("--svg, --html and --markdown show one model", hint="give a model, not a directory")
    parse_gates(flags["fail_on"], "partition")
    _analyzer(folder, flags)
    over_folder("partitioned", ({"model": path} for path in models_in(folder)), _line)


def _line(document: dict[str, Any]) -> str:
    count = len(document["partitions"])
    return f"{counted(count, 'partition')}, {document['nodes_taken']} of {document['nodes']} nodes"


def target_of(flags: Mapping[str, Any]) -> Target:
    """The execution provider that --target and its options describe."""
    from ortconv.cli.convert import names
    from ortconv.partition import Target
    from ortconv.partition.policy import DEFAULT_STOP_OPS

    stop_ops = names(flags["nnapi_partitioning_stop_ops"])
    if flags["ep"] == "coreml" and (stop_ops is not None or flags["use_nchw"]):
        raise UsageError("stop ops and --use-nchw are options of NNAPI", hint="leave them out, or give --target nnapi")
    return Target(
        flags["ep"],
        flags["nnapi_feature_level"],
        DEFAULT_STOP_OPS if stop_ops is None else stop_ops,
        flags["use_nchw"],
        coreml_format=flags["coreml_format"],
        coreml_version=flags["coreml_version"],
        coreml_static_inputs=flags["coreml_static_inputs"],
        coreml_on_subgraphs=flags["coreml_on_subgraphs"],
    )


def _analyzer(model: Path, flags: dict[str, Any]) -> Callable[[str | None], Analysis]:
    """A function that analyzes the model at an optimization level."""
    from ortconv.cli.convert import dims
    from ortconv.partition.limits import Limits
    from ortconv.partition.profile import DeviceProfile, read_device
    from ortconv.pipeline.analysis import REWRITABLE_LEVELS, analyze

    target = target_of(flags)
    device = DeviceProfile() if flags["device"] is None else read_device(flags["device"])
    limits = Limits(flags["max_partitions"], flags["min_nodes"], flags["only_worthwhile"], device)
    narrowed, fixed = device.narrow(target), dims(flags["fix_dims"])
    maximize = flags["maximize_offload"]
    if maximize and flags["level"] not in (None, *REWRITABLE_LEVELS):
        raise UsageError(
            f"level {flags['level']} is not one at which nodes are rewritten",
            hint=f"choose {' or '.join(REWRITABLE_LEVELS)}",
        )
    return lambda level: analyze(
        model,
        narrowed,
        level,
        limits=limits,
        device=device,
        fix_dims=fixed,
        maximize=maximize and level in (None, *REWRITABLE_LEVELS),
    )


def _levels(model: Path, analysis_at: Callable[[str | None], Analysis]) -> list[dict[str, Any]]:
    from ortconv.report.partitions import level_row

    if model.suffix.lower() == ".ort":
        raise UsageError(
            "an .ort model has one level only",
            file=model,
            hint="compare the levels of the .onnx model that it was made from",
        )
    found = map(analysis_at, ANALYSIS_LEVELS)
    return [level_row(s.level, s.partitioning, s.estimate) for s in found]


def _draw(
    found: Analysis, advice: Sequence[Merge], rows: Sequence[dict[str, Any]], model: Path, flags: dict[str, Any]
) -> None:
    if flags["svg"] is None and flags["html"] is None:
        return
    from ortconv.cli.options import given_options
    from ortconv.files import write_text
    from ortconv.report.partition_page import partition_page
    from ortconv.report.picture import drawn
    from ortconv.report.svg import drawing

    scene = drawn(found.model.graph, found.partitioning, found.estimate)
    if flags["svg"] is not None:
        write_text(flags["svg"], drawing(scene, dark=flags["dark"]))
    if flags["html"] is not None:
        write_text(flags["html"], partition_page(found, scene, model.name, advice, rows, given_options()))
