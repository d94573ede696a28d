"""`--html` of verbs whose pages show graphs. The models are loaded again for the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.cli.options import given_options
from ortconv.files import write_text
from ortconv.models import load
from ortconv.report.page import about, page
from ortconv.report.picture import drawn, picture, stage
from ortconv.report.story import RewriteStep, story_page
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.differences.diff import ModelDiff
    from ortconv.inspection.inspect import Inspection
    from ortconv.pipeline import Options, Result

UNMARKED = ("provider", "type")
"""Kinds of changes that do not change a node's computation."""


def write_inspection(html: Path, model: Path, found: Inspection, fix_dims: Mapping[str, int]) -> None:
    """The graph of a file as it is, with costs and notes."""
    from ortconv.report.inspect import sections

    graph = load(model, fix_dims, only_to_run=True).graph
    head, *shown = sections(found, everything=True)
    text = page(
        model.name,
        f"{counted(found.nodes, 'node')}, {found.format.upper()}",
        [replace(head, title="Model"), *shown, about(given_options())],
        kind="inspection",
        stage=stage(picture(drawn(graph), model.name)),
    )
    write_text(html, text)


def write_difference(html: Path, a: Path, b: Path, found: ModelDiff) -> None:
    """Both graphs with the changed nodes marked, and for a conversion its rewrites as steps."""
    from ortconv.report.diff import sections

    scenes = [drawn(load(path, only_to_run=True).graph) for path in (a, b)]
    replayed = found.replay.steps if found.replay is not None else ()
    steps = [RewriteStep(s.rule, s.root, s.removed, s.made) for s in replayed]
    changes = [change for change in found.changes if change.kind not in UNMARKED]
    gone = [change.subject for change in changes if change.kind != "node added"]
    come = [change.subject for change in changes if change.kind != "node removed"]
    head, *shown = sections(found, everything=True)
    text = story_page(
        f"{a.name} and {b.name}",
        "no change" if found.equal else counted(len(found.changes), "change"),
        (scenes[0], scenes[1]),
        [replace(head, title="What changed"), *shown, about(given_options())],
        kind="difference",
        steps=steps,
        changed=(gone, come),
        titles=(a.name, b.name),
    )
    write_text(html, text)


def write_conversion(html: Path, model: Path, result: Result, options: Options) -> None:
    """The graph before and after a conversion, and the rewrites between them."""
    from ortconv.report.convert import conversion_page

    before, after = load(model, options.fix_dims), load(Path(result.files[0]))
    write_text(html, conversion_page(result, before, after, options.targets(), given_options()))
