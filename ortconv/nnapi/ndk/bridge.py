"""The functions that the shared library calls, one for each C function, and the settings of a C program.

Settings come from the environment:

    ORTCONV_NNAPI_DEVICES         devices, by profile or name, separated by commas or colons
    ORTCONV_NNAPI_VLOG            verbose messages on stderr, as debug.nn.vlog
    ORTCONV_NNAPI_TRACE           a file for the trace of the program's calls, written when it ends
    ORTCONV_NNAPI_PARTITION       0, 1 or 2, as debug.nn.partition
    ORTCONV_NNAPI_CPU_ONLY        1 uses only the CPU, as debug.nn.cpuonly
    ORTCONV_NNAPI_FEATURE_LEVEL   1 to 8, of the runtime
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any

from ortconv.choices import feature_level_of, natural
from ortconv.errors import OrtconvError, UsageError
from ortconv.nnapi import manager
from ortconv.nnapi.codes import FeatureLevel
from ortconv.nnapi.loading import load_device
from ortconv.nnapi.ndk.functions import by_name
from ortconv.nnapi.properties import PartitioningMode, establish
from ortconv.nnapi.tracing import timing, vlog

SETTINGS = "ORTCONV_NNAPI_"


def start() -> list[Callable[..., int]]:
    """Apply the settings of the environment, and return the functions in the order of the table. All calls, from any
    thread, run in a copy of one context, so that they share the settings.
    """
    context = copy_context()
    try:
        context.run(_establish, os.environ)
    except OrtconvError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise SystemExit(f"libneuralnetworks: {error}{hint}") from None
    return [_within(context, function) for function in by_name().values()]


def _within(context: Context, function: Callable[..., int]) -> Callable[..., int]:
    copied = context.copy

    def call(*raw: Any) -> int:
        return copied().run(function, *raw)

    return call


def _establish(environment: Mapping[str, str]) -> None:
    given = {
        name.removeprefix(SETTINGS): text for name, text in environment.items() if name.startswith(SETTINGS) and text
    }
    vlog.print_to(sys.stderr, verbose="VLOG" in given)
    establish(**{name: read(key, given[key]) for key, (name, read) in _SETTINGS.items() if key in given})
    vlog.select(given.get("VLOG", ""))
    for name in re.split(r"[,:]", given.get("DEVICES", "")):
        if name.strip():
            manager.register_device(load_device(name.strip()))
    if "TRACE" in given:
        timing.trace_to(given["TRACE"])


def end() -> None:
    """Write the trace if the environment requests one."""
    timing.write_trace()


def _number(key: str, text: str, allowed: range) -> int:
    number = natural(text)
    if number is None or number not in allowed:
        raise UsageError(f"{SETTINGS}{key} is '{text[:40]}', not a number from {allowed[0]} to {allowed[-1]}")
    return number


def _level(key: str, text: str) -> FeatureLevel:
    try:
        return FeatureLevel(feature_level_of(text))
    except UsageError as error:
        raise UsageError(f"{SETTINGS}{key}: {error.message}", hint=error.hint) from None


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "VLOG": ("vlog", lambda key, text: text),
    "PARTITION": ("partition", lambda key, text: PartitioningMode(_number(key, text, range(3)))),
    "CPU_ONLY": ("cpu_only", lambda key, text: bool(_number(key, text, range(2)))),
    "FEATURE_LEVEL": ("feature_level", _level),
}
"""The property that a variable sets, and the function that reads its value."""
