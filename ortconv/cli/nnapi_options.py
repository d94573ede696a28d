"""Options of NNAPI: for the backend nnapi, and for the commands that use the NNAPI runtime; its log on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import FEATURE_LEVEL, FEATURE_LEVELS_TEXT, REFERENCE_DEVICE, comma_separated
from ortconv.cli import completion, printable
from ortconv.cli import options as shared
from ortconv.cli.values import read_values
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.ir.model import Model
    from ortconv.nnapi import Device
    from ortconv.nnapi.tracing.timing import Trace
    from ortconv.runtime.backend import Backend

FLAGS_TEXT = "fp16, nchw, cpu_disabled or cpu_only, comma separated"


def _devices(name: str, beginning: str = "A") -> Callable[[Any], Any]:
    what = (
        "simulated device by its name or TOML file (docs/nnapi.md), or an installed one by its name; may be repeated."
    )
    return click.option(
        "--device", name, multiple=True, metavar="DEVICE", shell_complete=completion.devices, help=f"{beginning} {what}"
    )


DEVICES = _devices("profiles")
OF_BACKEND = (
    click.option(
        "--nnapi-flags", metavar="FLAGS", help=f"For backend nnapi: flags of the NNAPI provider: {FLAGS_TEXT}."
    ),
    click.option(
        "--nnapi-feature-level",
        type=shared.FEATURE_LEVEL_NUMBER,
        help=f"The NNAPI feature level of the phone: {FEATURE_LEVELS_TEXT}.  [default: {FEATURE_LEVEL}]",
    ),
    _devices("devices", "For backend nnapi: a"),
    shared.written(
        "--nnapi-cache",
        type=shared.OUTPUT_FOLDER,
        help="For backend nnapi: the directory of the devices' compilation caches.",
    ),
)
CHOICES = ("nnapi_flags", "nnapi_feature_level", "devices", "nnapi_cache")


def configured(backends: Sequence[str], flags: Mapping[str, Any], repeat: int = 1) -> list[str | Backend]:
    """The named backends, which may be comma separated. The backend nnapi gets the flags, and uses a burst if it runs repeatedly.

    UsageError for flags of a backend that is not named.
    """
    names = comma_separated(",".join(backends))
    is_given = any(flags[key] for key in CHOICES)
    if is_given and "nnapi" not in names:
        raise UsageError("flags of NNAPI are given, but not the backend nnapi", hint="add --backend nnapi")
    if "nnapi" not in names or (repeat == 1 and not is_given):
        return list(names)
    return [_nnapi(flags, burst=repeat > 1) if name == "nnapi" else name for name in names]


def _nnapi(flags: Mapping[str, Any], *, burst: bool) -> Backend:
    from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, flags_of

    level = flags["nnapi_feature_level"]
    settings = flags_of(flags["nnapi_flags"] or "") | ({} if level is None else {"feature_level": level})
    return Nnapi(NnapiOptions(**settings, devices=flags["devices"], cache=flags["nnapi_cache"], burst=burst))


def _flags(text: str) -> str:
    """Flags of verbose messages, as in the system property debug.nn.vlog. ValueError for an unknown one."""
    if not text:
        return ""
    from ortconv.nnapi.tracing.vlog import FLAGS

    known = (*FLAGS, "all", "1")
    wrong = [word for word in re.split(r"[ ,:]+", text) if word and word not in known]
    if wrong:
        raise ValueError(f"there is no flag '{wrong[0]}'; there are {', '.join(FLAGS)} and all")
    return text


VLOG = click.option(
    "--vlog",
    type=shared.Parsed("flags", _flags),
    help="Print messages of the NNAPI runtime on stderr: model, compilation, execution, cpuexe, manager, driver, memory or all, "
    "comma separated.",
)


OBSERVED = (
    shared.flag("--timing", help="For backend nnapi: show the time by layer and phase."),
    shared.written(
        "--systrace", help="For backend nnapi: write its trace marks into this file, for ortconv nnapi trace."
    ),
    VLOG,
)


@contextmanager
def observed(backends: Sequence[str], flags: Mapping[str, Any]) -> Iterator[Trace | None]:
    """The observers that the options ask for: a log, and a trace. UsageError if nnapi is not among the backends."""
    if not any(name.partition(":")[0] == "nnapi" for name in comma_separated(",".join(backends))):
        if flags["timing"] or flags["systrace"] or flags["vlog"]:
            raise UsageError("--timing, --systrace and --vlog are for the backend nnapi", hint="add --backend nnapi")
        yield None
        return
    from ortconv.files import write_text
    from ortconv.nnapi.operations import rows
    from ortconv.nnapi.tracing.timing import mark, tracing

    is_traced = flags["timing"] or flags["systrace"] is not None
    with messages(flags["vlog"]), tracing() if is_traced else nullcontext() as trace:
        with mark("LR", "PI", "load operations"):
            rows()
        yield trace
    if trace is not None and flags["systrace"] is not None:
        write_text(flags["systrace"], trace.ftrace())


@contextmanager
def messages(flags: str | None) -> Iterator[None]:
    """Print the runtime's messages to stderr in the format of Android's log: verbose ones of the flags, all warnings and errors."""
    from ortconv.nnapi.properties import override
    from ortconv.nnapi.tracing.vlog import print_to

    end = print_to(sys.stderr, verbose=bool(flags), printable=printable)
    try:
        with override(vlog=flags or ""):
            yield
    finally:
        end()


def load_devices(profiles: Sequence[str]) -> list[Device]:
    """The devices of profiles. UsageError if two have the same name."""
    from ortconv.nnapi import load_device

    found: dict[str, Device] = {}
    for profile in profiles:
        device = load_device(profile)
        if device.name in found or device.name == REFERENCE_DEVICE:
            raise UsageError(f"there is a device '{device.name}' already", file=profile, hint="give it another name")
        found[device.name] = device
    return list(found.values())


MODEL = (click.argument("model", type=shared.FILE), shared.ANALYSIS_LEVEL, *shared.INPUT_CHANGES, *shared.NNAPI)


def prepared(model: Path, flags: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """The model, optimized as the flags demand, and the backend's settings from these flags."""
    from ortconv.cli.partition import nnapi_settings
    from ortconv.partition import Target
    from ortconv.pipeline.analysis import analyze

    flags = read_values(flags)
    settings = nnapi_settings(flags)
    inputs = {name: flags[name] for name in ("fix_dims", "freeze_initializers")}
    return analyze(model, Target(**settings), flags["level"], **inputs).model, settings
