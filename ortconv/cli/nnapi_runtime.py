"""Options of the verbs that use the NNAPI runtime, and its log on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import ANALYSIS_LEVELS
from ortconv.cli import completion, printable
from ortconv.cli.options import FIX_DIM, NNAPI
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.ir.model import Model
    from ortconv.nnapi import Device
    from ortconv.nnapi.timing import Trace


class Flags(click.ParamType):  # type: ignore[type-arg]
    """Flags of verbose messages, as in the system property debug.nn.vlog."""

    name = "flags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            return ""
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
    metavar="DEVICE",
    shell_complete=completion.devices,
    help="A simulated device by its name or TOML file (docs/nnapi.md), or an installed one by its name; may be repeated.",
)
VLOG = click.option(
    "--vlog",
    type=Flags(),
    default="",
    show_default=False,
    metavar="FLAGS",
    help="Print messages of the NNAPI runtime on stderr: model, compilation, execution, cpuexe, manager, driver, memory or all, "
    "comma separated.",
)


OBSERVED = (
    click.option("--timing", is_flag=True, help="For backend nnapi: show the time by layer and phase."),
    click.option(
        "--systrace",
        type=click.Path(dir_okay=False, path_type=Path),
        help="For backend nnapi: write its trace marks into this file, for ortconv nnapi trace.",
    ),
    VLOG,
)


@contextmanager
def observed(backends: Sequence[str], flags: Mapping[str, Any]) -> Iterator[Trace | None]:
    """The observers that the options ask for: a log, and a trace. UsageError if nnapi is not among the backends."""
    if not any(name.strip().partition(":")[0] == "nnapi" for name in ",".join(backends).split(",")):
        if flags["timing"] or flags["systrace"] or flags["vlog"]:
            raise UsageError("--timing, --systrace and --vlog are for the backend nnapi", hint="add --backend nnapi")
        yield None
        return
    from ortconv.files import write_text
    from ortconv.nnapi.operations import rows
    from ortconv.nnapi.timing import mark, tracing

    is_traced = flags["timing"] or flags["systrace"] is not None
    with messages(flags["vlog"]), tracing() if is_traced else nullcontext() as trace:
        with mark("LR", "PI", "load operations"):
            rows()
        yield trace
    if trace is not None and flags["systrace"] is not None:
        write_text(flags["systrace"], trace.ftrace())


@contextmanager
def messages(flags: str) -> Iterator[None]:
    """Print the runtime's messages to stderr in the format of Android's log: verbose ones of the flags, all warnings and errors."""
    import logging

    from ortconv.nnapi.properties import override
    from ortconv.nnapi.vlog import LOGGER, LogLine

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLine(printable))
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


MODEL = (
    click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option(
        "--level",
        type=click.Choice(ANALYSIS_LEVELS),
        help="Level at which an .onnx model is optimized first; aware is the level of convert --use-nnapi.  [default: basic]",
    ),
    *FIX_DIM,
    *NNAPI,
)


def prepared(model: Path, flags: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """The model, optimized as the flags demand, and the backend's settings from these flags."""
    from ortconv.cli.convert import dims, names
    from ortconv.partition import Target
    from ortconv.partition.policy import DEFAULT_STOP_OPS
    from ortconv.pipeline.analysis import analyze

    stop_ops = names(flags["nnapi_partitioning_stop_ops"])
    stop_ops = DEFAULT_STOP_OPS if stop_ops is None else stop_ops
    target = Target(feature_level=flags["nnapi_feature_level"], stop_ops=stop_ops)
    found = analyze(model, target, flags["level"], fix_dims=dims(flags["fix_dims"]))
    return found.model, {"feature_level": flags["nnapi_feature_level"], "stop_ops": stop_ops}
