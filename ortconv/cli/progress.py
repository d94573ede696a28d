"""What is shown on a terminal while something takes long. Results go through the same console, so neither breaks the other."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TypeVar

from ortconv.cli import printable

T = TypeVar("T")

QUIET = 1.0
"""Seconds after which a stage line appears."""
STEP = 0.5
CLEAR = "\r\x1b[K"


@contextmanager
def stage_line(name: str, *, shown: bool) -> Iterator[Callable[[str], None] | None]:
    """A function to call with each stage of one long job: the stage is shown on stderr, if that is a terminal, until the end."""
    if not shown or not _is_terminal():
        yield None
        return
    stages, ended, begun = [""], threading.Event(), time.monotonic()

    def show() -> None:
        written = False
        while not ended.wait(STEP if written else QUIET):
            text = f"{printable(name)}: {stages[-1]}, {time.monotonic() - begun:.0f} s"
            sys.stderr.write(CLEAR + text[: get_terminal_size().columns - 1])
            sys.stderr.flush()
            written = True
        if written:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield stages.append
    finally:
        ended.set()
        thread.join()


@contextmanager
def progress_bar(results: Iterable[T], total: int, *, shown: bool) -> Iterator[Iterable[T]]:
    """The results, with a progress bar on stderr while they come, if that is a terminal.

    What is printed to stdout meanwhile appears above the bar where stdout is a terminal, too, and goes where it leads if not.
    """
    if not shown or not _is_terminal():
        yield results
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as progress:
        yield progress.track(results, total, description="converting")


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
