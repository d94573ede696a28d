"""The view of a batch: a live display or one line for each model, and at the end the counts and a table of failures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import LINES, color, print_json, printable
from ortconv.cli.github import annotate, append_summary
from ortconv.cli.progress import is_terminal
from ortconv.cli.render import columns
from ortconv.cli.tables import markdown_of
from ortconv.errors import BatchError
from ortconv.files import write_text
from ortconv.report.sections import Section

if TYPE_CHECKING:
    from rich.console import Console

    from ortconv.batch import Failure
    from ortconv.watch import Activity

Busy = Callable[[], list[tuple[str, "Activity", float]]]


MOST_FAILURES = 200
"""Rows of the table at the end. The lines above it and --summary list all failures."""

COLUMNS = ("kind", "model", "reason")

REFRESHES = 4
"""Refreshes of the live display per second."""


@dataclass
class BatchView:
    """Shows and counts the results of a batch. `done` is the verb in the counts, such as converted."""

    done: str
    total: int
    as_json: bool
    quiet: bool
    finished: int = 0
    unchanged: int = 0
    failures: list[Failure] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    """Files that concern the whole batch, as LABEL FILE."""
    _began: float = field(default_factory=time.monotonic)
    _ended: float | None = None
    _console: Console | None = None

    @contextmanager
    def shown(self, busy: Busy, *, live: bool = True) -> Iterator[None]:
        """If stderr is a terminal, show the workers' activities until the end of the block."""
        is_live = live and is_terminal() and not (self.quiet or self.as_json)
        try:
            with self._live(busy) if is_live else nullcontext():
                yield
        except KeyboardInterrupt:
            if not (self.quiet or self.as_json):
                click.echo(f"{self.counts()}, then interrupted", err=True)
            raise

    @contextmanager
    def _live(self, busy: Busy) -> Iterator[None]:
        """Show a progress bar and a line for each busy worker on stderr until the end of the block."""
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        with Live(
            get_renderable=lambda: self._picture(busy, console.width, console.height),
            console=console,
            refresh_per_second=REFRESHES,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            self._console = console
            try:
                yield
            finally:
                self._console = None

    def show(self, text: str, document: dict[str, Any], *, unchanged: bool = False) -> None:
        """Report a finished model: one or more lines, or its document for --json."""
        self.finished += 1
        self.unchanged += unchanged
        if self.as_json:
            click.echo(json.dumps({"status": "unchanged" if unchanged else self.done, **document}))
        elif not self.quiet:
            self._print(text, err=False)

    def fail(self, failure: Failure) -> None:
        """Report a model that failed."""
        self.failures.append(failure)
        hint = f" ({failure.error.hint})" if failure.error.hint else ""
        error = failure.error.at(file=failure.source)
        self._print(f"{click.style('error:', fg='red', bold=True)} {printable(f'{error}{hint}', LINES)}", err=True)
        if self.as_json:
            click.echo(json.dumps({"status": "failed", **failure.to_dict()}))

    def end(self, summary: Path | None = None, github: bool = False) -> None:
        """Print the counts, the written files, and the failures by kind. All of them state the same duration."""
        self._ended = time.monotonic()
        if summary is not None:
            write_text(summary, self._markdown())
        if github:
            append_summary(self._markdown())
            for failure in self.failures:
                annotate(failure.reason, file=failure.source, title=f"ortconv: {failure.kind}")
        if self.as_json:
            print_json(self._document(), indent=None)
        elif not self.quiet:
            rows = self._rows()[:MOST_FAILURES]
            table = [columns(COLUMNS, rows)] if rows else []
            for line in (*table, self.counts(), *map(printable, self.written)):
                click.echo(line, err=True, color=color())

    def refuse(self, file: Path | str) -> None:
        """BatchError if a model failed."""
        if self.failures:
            raise BatchError(
                f"{len(self.failures)} of {self.total} models could not be {self.done}",
                file=file,
                hint="--resume tries these again and skips the others" if self.done == "converted" else None,
            )

    def counts(self) -> str:
        """Such as: 497 of 500 converted in 41 s, 3 failed, 120 unchanged"""
        text = f"{self.finished} of {self.total} {self.done} in {_duration(self._seconds())}"
        text += f", {len(self.failures)} failed" if self.failures else ""
        return text + (f", {self.unchanged} unchanged" if self.unchanged else "")

    def _seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(f.kind, f.source, f.reason) for f in sorted(self.failures, key=lambda f: (f.kind, f.source))]

    def _document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "total": self.total,
            self.done: self.finished,
            "unchanged": self.unchanged,
            "failed": len(self.failures),
            "seconds": round(self._seconds(), 3),
            "written": self.written,
            "failures": [failure.to_dict() for failure in sorted(self.failures, key=lambda f: f.source)],
        }

    def _markdown(self) -> str:
        return markdown_of(Section(f"ortconv: {self.counts()}", self.written, COLUMNS, self._rows())) + "\n"

    def _print(self, text: str, *, err: bool) -> None:
        """Print through the live display's console where both would be on one terminal."""
        if self._console is not None and (err or sys.stdout.isatty()):
            from rich.text import Text

            shown = Text(click.unstyle(text)) if color() is False else Text.from_ansi(text)
            self._console.print(shown)
        else:
            click.echo(text, err=err, color=color())

    def _picture(self, busy: Busy, width: int, height: int) -> Any:
        """The busy workers and the progress bar as text that fits the terminal."""
        from rich.text import Text

        workers = sorted(busy(), key=lambda one: -one[2])
        lines = [f"{s:5.0f} s  {a.stage:<9} " + _cut(printable(name), width - 19) for name, a, s in workers]
        if len(lines) > max(height - 3, 1):
            lines = [*lines[: max(height - 4, 0)], f"        and {len(lines) - max(height - 4, 0)} more"]
        return Text("\n".join([*lines, self._bar(width)]), no_wrap=True, overflow="crop")

    def _bar(self, width: int) -> str:
        done = self.finished + len(self.failures)
        seconds = self._seconds()
        text = f" {done} of {self.total}"
        text += f", {len(self.failures)} failed" if self.failures else ""
        if done and seconds > 0:
            rate, left = done / seconds, (self.total - done) * seconds / done
            text += f"  {rate:.1f}/s  {_duration(left)} left" if rate >= 1 else f"  {_duration(left)} left"
        room = max(min(width - len(text) - 1, 40), 0)
        full = room * done // max(self.total, 1)
        return _cut("━" * full + "╌" * (room - full) + text, width)


def _cut(text: str, width: int) -> str:
    """The text on one line, with its middle cut out if it is too long."""
    if len(text) < width:
        return text
    kept = max(width - 1, 2)
    head = min(kept // 2, 24)
    return f"{text[:head]}…{text[len(text) - (kept - head - 1) :]}"


def _duration(seconds: float) -> str:
    """Such as 0.4 s, 41 s, 3 min 20 s or 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
