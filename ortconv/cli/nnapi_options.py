"""Options of the verbs that use the NNAPI runtime, and its messages on stderr."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ortconv.cli import printable
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.nnapi import Device

LOGGER = "ortconv.nnapi"


class Flags(click.ParamType):  # type: ignore[type-arg]
    """Flags of verbose messages, as in the system property debug.nn.vlog."""

    name = "flags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ortconv.nnapi.vlog import FLAGS

        known = (*FLAGS, "all", "1")
        wrong = [word for word in re.split(r"[ ,:]+", value) if word and word not in known]
        if wrong:
            self.fail(f"there is no flag '{wrong[0]}'; there are {', '.join(FLAGS)} and all", param, ctx)
        return str(value)


DEVICES = click.option(
    "--device",
    "profiles",
    multiple=True,
    metavar="PROFILE",
    help="A simulated device: a TOML file, or the name of a profile that comes along; may be repeated.",
)
VLOG = click.option(
    "--vlog",
    type=Flags(),
    default="",
    metavar="FLAGS",
    help="Messages of the runtime on stderr: model,compilation,execution,cpuexe,manager,driver,memory or all.",
)


@contextmanager
def messages(flags: str) -> Iterator[None]:
    """Print the runtime's messages to stderr in the form of Android's log: those of the flags, warnings and errors in any
    case.
    """
    from ortconv.nnapi.properties import override

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogLine())
    logger = logging.getLogger(LOGGER)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if flags else logging.WARNING)
    logger.propagate = False
    try:
        with override(vlog=flags):
            yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.removeHandler(handler)


class _LogLine(logging.Formatter):
    """I/ExecutionPlan: text"""

    def format(self, record: logging.LogRecord) -> str:
        tag = record.name.removeprefix(f"{LOGGER}.")
        return f"{record.levelname[0]}/{tag}: {printable(record.getMessage())}"


def load_devices(profiles: Sequence[str]) -> list[Device]:
    """The devices of profiles. UsageError if two have the same name."""
    from ortconv.nnapi import load_device
    from ortconv.nnapi.device import REFERENCE

    found: dict[str, Device] = {}
    for profile in profiles:
        device = load_device(profile)
        if device.name in found or device.name == REFERENCE:
            raise UsageError(f"there is a device '{device.name}' already", file=profile, hint="give it another name")
        found[device.name] = device
    return list(found.values())
