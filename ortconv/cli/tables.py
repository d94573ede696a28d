"""Results of several tables, as text for a terminal or as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ortconv.cli import LINES, color, printable
from ortconv.cli.render import columns, wrapped
from ortconv.report.sections import Section

TONES = {True: "green", False: "red", None: None}
"""The colors of titles by their verdicts."""


def show(sections: Sequence[Section], *, markdown: bool) -> None:
    """Print the sections that are not empty."""
    click.echo(as_markdown(sections) if markdown else "\n\n".join(map(_text, _filled(sections))), color=color())


def as_markdown(sections: Sequence[Section]) -> str:
    """The sections that are not empty, as Markdown."""
    return "\n\n".join(map(markdown_of, _filled(sections)))


def _filled(sections: Sequence[Section]) -> list[Section]:
    return [section for section in sections if section.lines or section.rows]


def _text(section: Section) -> str:
    parts = [click.style(wrapped(printable(section.title)), bold=True, fg=TONES[section.is_good])]
    parts += [wrapped(printable(line), indent=2) for line in section.lines]
    if section.rows:
        parts.append(columns(section.header, section.rows, indent=2))
    return "\n".join(parts)


def markdown_of(section: Section) -> str:
    parts = [f"### {_escaped(section.title)}", ""]
    parts += [f"- {_escaped(line)}" for line in section.lines]
    if section.rows:
        names = [name.removeprefix(">") for name in section.header]
        parts += [""] if section.lines else []
        parts.append(f"| {' | '.join(names)} |")
        parts.append("|" + "|".join("--:" if name.startswith(">") else "---" for name in section.header) + "|")
        parts += [f"| {' | '.join(_escaped(str(cell)) for cell in row)} |" for row in section.rows]
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Text with the special characters of Markdown escaped."""
    plain = printable(text, LINES).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in plain)
