"""The stage line on a terminal during long work on one model."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ortconv.cli import printable

QUIET = 1.0
"""Seconds after which a stage line appears."""
STEP = 0.5
CLEAR = "\r\x1b[K"


@contextmanager
def stage_line(name: str, *, shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a function to call with each stage of a long job. If stderr is a terminal, the stage is shown until the block ends."""
    if not shown or not is_terminal():
        yield None
        return
    from shutil import get_terminal_size

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


def is_terminal() -> bool:
    """Whether stderr is a terminal whose lines can be overwritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
