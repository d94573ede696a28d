"""Settings of the runtime, which a phone stores in system properties. Here each thread can have its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from ortconv.nnapi.codes import FeatureLevel


class PartitioningMode(IntEnum):
    """debug.nn.partition"""

    OFF = 0
    WITH_FALLBACK = 1
    WITHOUT_FALLBACK = 2


@dataclass(frozen=True, slots=True)
class Properties:
    feature_level: FeatureLevel = FeatureLevel.LEVEL_8
    """The feature level of the runtime."""
    vlog: str = ""
    """debug.nn.vlog: the flags of messages to log, see `vlog`."""
    partition: PartitioningMode = PartitioningMode.WITH_FALLBACK
    cpu_only: bool = False
    """debug.nn.cpuonly: use only the CPU."""
    enabled_devices: str = ""
    """debug.nn.enabled-devices: a regular expression for the names of devices. The CPU is always enabled."""


DEFAULTS = Properties()
_current = ContextVar("properties", default=DEFAULTS)


def establish(**settings: Any) -> None:
    """Change settings for this thread and the threads that it starts."""
    _current.set(replace(properties(), **settings))


def properties() -> Properties:
    """The settings of this thread."""
    return _current.get()


@contextmanager
def override(**settings: Any) -> Iterator[None]:
    """Context manager that changes settings, also for executions that are started in the background within the block."""
    before = _current.set(replace(properties(), **settings))
    try:
        yield
    finally:
        _current.reset(before)
