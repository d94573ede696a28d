"""Verbose messages, under the tags and in the words of Android's log.

A message belongs to a flag (`debug.nn.vlog`) and comes from a source, whose name is the log tag: it goes to the logger
`ortconv.nnapi.<source>` at level INFO.
"""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar

MODEL, COMPILATION, EXECUTION, CPUEXE, MANAGER, DRIVER, MEMORY = FLAGS = (
    "model", "compilation", "execution", "cpuexe", "manager", "driver", "memory"
)  # fmt: skip

_selected: ContextVar[frozenset[str]] = ContextVar("selected", default=frozenset())


def select(flags: str) -> None:
    """Turn flags on for this thread, all others off: words separated by space, comma or colon; `all` and `1` mean every flag."""
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
    if flag in _selected.get():
        info(source, text, *values)


def info(source: str, text: str, *values: object) -> None:
    """Log a message in any case."""
    logging.getLogger(f"ortconv.nnapi.{source}").info("%s", text.format(*values))


def warning(source: str, text: str, *values: object) -> None:
    logging.getLogger(f"ortconv.nnapi.{source}").warning("%s", text.format(*values))


def error(source: str, text: str, *values: object) -> None:
    logging.getLogger(f"ortconv.nnapi.{source}").error("%s", text.format(*values))
