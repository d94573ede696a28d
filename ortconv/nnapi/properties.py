"""Settings of the whole runtime, which a phone keeps in system properties."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

from ortconv.nnapi.codes import FeatureLevel


class Partitioning(IntEnum):
    """debug.nn.partition"""

    OFF = 0
    WITH_FALLBACK = 1
    WITHOUT_FALLBACK = 2


@dataclass(slots=True)
class Properties:
    feature_level: FeatureLevel = FeatureLevel.LEVEL_8
    """Of the runtime."""
    vlog: str = ""
    """debug.nn.vlog: what to log, see `vlog`."""
    partition: Partitioning = Partitioning.WITH_FALLBACK
    cpu_only: bool = False
    """debug.nn.cpuonly: leave every device but the CPU unused."""
    enabled_devices: str = ""
    """debug.nn.enabled-devices: a regular expression that the names of devices must match; the CPU is always there."""


properties = Properties()


@contextmanager
def override(**settings: Any) -> Iterator[None]:
    """Other settings within a `with` block."""
    before = replace(properties)
    for name, value in settings.items():
        setattr(properties, name, value)
    try:
        yield
    finally:
        for field in fields(Properties):
            setattr(properties, field.name, getattr(before, field.name))
