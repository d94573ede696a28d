"""Verbose messages with the tags and texts of Android's log.

A message belongs to a flag (`debug.nn.vlog`) and has a source, whose name is the log tag. It is sent to the logger
`ortconv.nnapi.<source>` with level INFO.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TextIO

MODEL, COMPILATION, EXECUTION, CPUEXE, MANAGER, DRIVER, MEMORY = FLAGS = (
    "model", "compilation", "execution", "cpuexe", "manager", "driver", "memory"
)  # fmt: skip

LOGGER = "ortconv.nnapi"

_selected: ContextVar[frozenset[str]] = ContextVar("selected", default=frozenset())


def select(flags: str) -> None:
    """Turn on these flags, and no others, for this thread. Space, comma or colon separates them; `all` and `1` mean every flag."""
    chosen: set[str] = set()
    for word in filter(None, re.split(r"[ ,:]+", flags)):
        if word in ("all", "1"):
            chosen.update(FLAGS)
        elif word in FLAGS:
            chosen.add(word)
        else:
            error("Utils", "Unknown trace flag: {}", word)
    _selected.set(frozenset(chosen))


def message(flag: str, source: str, text: str, *values: object) -> None:
    """Log a message if its flag is on."""
    if shows(flag):
        info(source, text, *values)


def shows(flag: str) -> bool:
    return flag in _selected.get()


def _log(level: int, source: str, text: str, *values: object) -> None:
    """Log a message, regardless of the flags."""
    logging.getLogger(f"{LOGGER}.{source}").log(level, "%s", text.format(*values))


info, warning, error = (partial(_log, level) for level in (logging.INFO, logging.WARNING, logging.ERROR))


class LogLine(logging.Formatter):
    """Formats a record in the form of Android's log: I/ExecutionPlan: text"""

    def __init__(self, printable: Callable[[str], str]) -> None:
        super().__init__()
        self._printable = printable

    def format(self, record: logging.LogRecord) -> str:
        tag = record.name.removeprefix(f"{LOGGER}.")
        return f"{record.levelname[0]}/{tag}: {self._printable(record.getMessage())}"


def print_to(stream: TextIO, *, verbose: bool, printable: Callable[[str], str] = str) -> Callable[[], None]:
    """Print messages in the form of Android's log, without `verbose` only warnings and errors, until the result is called."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogLine(printable))
    logger = logging.getLogger(LOGGER)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False

    def end() -> None:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.removeHandler(handler)

    return end
