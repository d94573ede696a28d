"""Output of a command for GitHub Actions: annotations, the summary of the step, and its outputs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ortconv.cli import printable
from ortconv.errors import UsageError

SUMMARY = "GITHUB_STEP_SUMMARY"


def check_github(github: bool) -> None:
    """UsageError if the step has no summary file. It is called before any work."""
    if github and not os.environ.get(SUMMARY):
        raise UsageError(f"--github: {SUMMARY} is not set", hint="it is in a step of GitHub Actions")


def append_summary(text: str) -> None:
    """Append Markdown to the summary of the step."""
    check_github(True)
    with open(os.environ[SUMMARY], "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def set_output(name: str, value: str) -> None:
    """Set an output of the step, if the step can have outputs. UsageError for a value of several lines."""
    target = os.environ.get("GITHUB_OUTPUT")
    if not target:
        return
    if "\n" in value or "\r" in value:
        raise UsageError(f"--github: {value!a} cannot be an output of a step")
    with open(target, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{name}={value}\n")


def annotate(message: str, *, file: str | Path, title: str) -> None:
    """Print a command of GitHub Actions that shows a message at a file. A path is shown relative to the workspace."""
    place = f"file={_property(_in_workspace(file))}," if file else ""
    click.echo(f"::error {place}title={_property(title)}::{_data(printable(message))}", err=True)


def _in_workspace(file: str | Path) -> str:
    root = os.environ.get("GITHUB_WORKSPACE")
    path = Path(file)
    if root and path.absolute().is_relative_to(root):
        return path.absolute().relative_to(root).as_posix()
    return path.as_posix()


def _data(text: str) -> str:
    """Text escaped for a command of GitHub Actions."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
