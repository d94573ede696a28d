"""Results as text for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from textwrap import fill, wrap
from typing import TYPE_CHECKING

import click

from ortconv.cli import printable
from ortconv.files import size
from ortconv.report.sections import Fact, Toned
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.pipeline import Result


def summary(source: str, output: str, facts: Iterable[Fact]) -> str:
    """What was made of a file, and facts about it, in a few lines."""
    title = " -> ".join(click.style(printable(name), bold=True) for name in (source, output))
    return "\n".join([title, *(labeled(*fact) for fact in facts)])


def convert_line(result: Result) -> str:
    """The summary of a conversion in one line."""
    check = result.validation
    if result.unchanged:
        numbers = click.style("unchanged", dim=True)
    elif check is None or check.skipped:
        numbers = click.style("not checked", fg="yellow")
    else:
        equal = check.max_abs == 0
        numbers = click.style("numbers equal" if equal else f"max abs {check.max_abs:.1e}", fg="green")
    counts = f"{result.nodes_before} -> {result.nodes_after} nodes, {size(result.bytes_after)}"
    count = len(result.warnings)
    warned = click.style(f", {counted(count, 'warning')}", fg="yellow") if count else ""
    return f"{click.style(printable(result.source), bold=True)} -> {printable(result.files[0])}: {counts}, {numbers}{warned}"


def labeled(label: str, text: str) -> str:
    """One fact of a summary after its label, wrapped at the terminal's width beside it."""
    width, shown = room(), printable(text)
    if isinstance(text, Toned):
        part = printable(text.part)
        shown = shown.replace(part, click.style(part, fg=text.tone), 1)
    lines = (
        [shown] if width is None else wrap(shown, max(width - 13, 20), break_long_words=False, break_on_hyphens=False)
    )
    return f"  {click.style(f'{label:10}', dim=True)} " + f"\n{' ' * 13}".join(lines)


def columns(header: Sequence[str], rows: Iterable[Sequence[object]], indent: int = 0) -> str:
    """A table as text with a dim header. A column whose name begins with > is aligned to the right."""
    width = room()
    head, body = grid(header, rows, None if width is None else width - indent)
    return "\n".join(" " * indent + line for line in [click.style(line, dim=True) for line in head] + body)


def wrapped(text: str, indent: int = 0) -> str:
    """A sentence wrapped at the terminal's width, with a hanging indent."""
    width = room()
    if width is None:
        return " " * indent + text
    return fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_on_hyphens=False)


def room() -> int | None:
    """The width of the terminal in columns; None if stdout is not a terminal, which means no limit."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


WIDE = 110
"""Columns of a terminal from which on tables have all their columns."""


def is_wide() -> bool:
    """Whether there is room for all columns of a table."""
    width = room()
    return width is None or width >= WIDE


def grid(header: Sequence[str], rows: Iterable[Sequence[object]], width: int | None) -> tuple[list[str], list[str]]:
    """The lines of a table's header and of its rows. Nothing is cut.

    If a row needs more than `width` columns, its leading names are on a line of their own.
    """
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    names = [name.removeprefix(">") for name in header]
    right = [name.startswith(">") for name in header]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]

    leading = _leading(widths, right, width)

    def line(cells: Sequence[str], start: int, end: int) -> str:
        padded = ((c.rjust(w) if r else c.ljust(w)) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(list(padded)[start:end]).rstrip()

    def lines(cells: Sequence[str]) -> list[str]:
        rest = line(cells, leading, len(names))
        return [line(cells, 0, leading), *([f"  {rest}"] if rest else [])] if leading else [rest]

    return lines(names), [text for row in texts for text in lines(row)]


def _leading(widths: Sequence[int], right: Sequence[bool], width: int | None) -> int:
    """How many leading columns a table has on lines of their own: none if all columns fit into `width`."""
    if width is None or sum(widths) + 2 * len(widths) - 2 <= width:
        return 0
    last = right.index(True) if True in right else len(widths) - 1
    needed = (sum(n + 2 for n in widths[start:]) for start in range(1, last))
    return next((start for start, room in enumerate(needed, 1) if room <= width), last)
