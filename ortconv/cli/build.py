"""ortconv build"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import present
from ortconv.cli.github import annotate, append_summary, check_github, set_output
from ortconv.cli.options import FILE_OR_FOLDER, GITHUB, JSON_AND_QUIET, LIMITS_OF_BUILDS, add, flag, jobs, written
from ortconv.cli.render import convert_line
from ortconv.files import write_text
from ortconv.process import usable_cores

if TYPE_CHECKING:
    from ortconv.cli.batch_view import BatchView
    from ortconv.project.build import Build, Event


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "-f",
    "--file",
    "project",
    type=FILE_OR_FOLDER,
    default=".",
    help="The project file, or a folder: the file is ortconv.toml in it or above it.",
)
@click.option("--target", "targets", multiple=True, metavar="NAME", help="Build only for this target; may be repeated.")
@jobs("Number of models to convert at a time.")
@flag("--force", help="Convert all models, not only those that are out of date.")
@flag("--update", help="Accept the artifacts: write their baselines, and check no gates.")
@add(LIMITS_OF_BUILDS)
@written("--summary", metavar="FILE.md", help="Write the result as Markdown, too.")
@add(GITHUB, JSON_AND_QUIET)
def command(models: tuple[str, ...], project: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Build the project of ortconv.toml: convert models that are out of date, and check the gates of each artifact.

    With MODELs, builds only these. Writes the .ort files with their manifests, and one operator config for all. Exits with 7 if a
    model cannot be converted or checked, else with 5 if a gate fails.
    """
    from ortconv.cli.batch_view import BatchView
    from ortconv.cli.tables import as_markdown
    from ortconv.project.build import Building
    from ortconv.project.project import find_project, read_project
    from ortconv.report.build import sections

    check_github(flags["github"])
    found = read_project(find_project(project))
    building = Building(
        found,
        found.chosen(models, flags["targets"]),
        jobs=flags["jobs"] or usable_cores(),
        timeout=flags["worker_timeout"],
        memory=flags["worker_memory"],
        force=flags["force"],
        update=flags["update"],
    )
    view = BatchView("built", building.total, as_json=False, quiet=quiet or as_json)
    with closing(building), view.shown(building.busy):
        for event in building:
            _show(view, event)
    shown = list(sections(building.build))
    present(building.build.to_dict, lambda: shown)
    if flags["summary"] is not None:
        write_text(flags["summary"], as_markdown(shown) + "\n")
    if flags["github"]:
        append_summary(as_markdown(shown) + "\n")
        set_output("directory", str(found.output_dir))
        _annotate(building.build)
    building.build.refuse()


def _show(view: BatchView, event: Event) -> None:
    """A line for a conversion or a failure. Checks are shown in the tables at the end."""
    from ortconv.batch import Failure
    from ortconv.pipeline import Result

    _, done = event
    if isinstance(done, Failure):
        view.fail(done)
    elif isinstance(done, Result):
        view.show(convert_line(done), {}, unchanged=done.unchanged)


def _annotate(build: Build) -> None:
    for artifact in build.artifacts:
        if artifact.error:
            annotate(artifact.error, file=artifact.source, title=f"ortconv: {artifact.label}")
        for failed in artifact.check.failed if artifact.check is not None else ():
            annotate(failed.message, file=artifact.source, title=f"ortconv: {artifact.label}, gate {failed.condition}")
