"""Device profiles: TOML files that limit the supported nodes and state the speed of computation and copies."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ortconv.choices import feature_level
from ortconv.errors import UsageError, located
from ortconv.files import read_toml
from ortconv.partition.policy import Target

LARGEST = 1e30
"""Upper bound of a speed or a time."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The throughput of a processor: multiply-adds on floats and on 8-bit integers, bytes read and written."""

    multiply_adds_per_second: float
    quantized_multiply_adds_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Copies:
    """The overhead of a partition: seconds per run, and the speed of copies in bytes per second."""

    seconds_per_partition: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A phone. `feature_level` None means any; `refused_ops` are operators that its driver does not run.

    The defaults are round figures for a mid-range phone, not measurements: see docs/cost.md.
    """

    name: str = "assumed mid-range phone"
    vendor: str = ""
    feature_level: int | None = None
    refused_ops: tuple[str, ...] = ()
    cpu: Speed = field(default_factory=lambda: Speed(10e9, 20e9, 5e9))
    accelerator: Speed = field(default_factory=lambda: Speed(200e9, 800e9, 10e9))
    copies: Copies = field(default_factory=lambda: Copies(0.3e-3, 2e9))

    def narrow(self, target: Target) -> Target:
        """The target with the lower of both feature levels and without the operators that this device refuses."""
        level = target.feature_level if self.feature_level is None else min(self.feature_level, target.feature_level)
        refused = tuple(dict.fromkeys((*target.refused_ops, *self.refused_ops)))
        return replace(target, feature_level=level, refused_ops=refused)


def read_device(path: str | Path) -> DeviceProfile:
    """Read a device from a TOML file; missing keys get defaults. Raises UsageError for unknown keys and values out of range."""
    with located(path):
        return _device(read_toml(path))


def _device(document: Mapping[str, Any]) -> DeviceProfile:
    plain = DeviceProfile(name="unnamed device")
    _only_known(document, [f.name for f in fields(DeviceProfile)], "")
    changes: dict[str, Any] = {}
    for key, value in document.items():
        if key in ("name", "vendor"):
            changes[key] = _checked(key, value, isinstance(value, str), "a text")
        elif key == "feature_level":
            changes[key] = feature_level(value)
        elif key == "refused_ops":
            right = isinstance(value, list) and all(isinstance(op, str) for op in value)
            changes[key] = tuple(_checked(key, value, right, "a list of operators"))
        else:
            given = _checked(key, value, isinstance(value, dict), "a table")
            default = getattr(plain, key)
            changes[key] = replace(default, **_numbers(given, key, default))
    return replace(plain, **changes)


def _numbers(given: Mapping[str, Any], table: str, default: Speed | Copies) -> dict[str, float]:
    _only_known(given, [f.name for f in fields(default)], f"{table}.")
    for key, value in given.items():
        from_zero = key.startswith("seconds")
        right = type(value) in (int, float) and 0 <= value < LARGEST and (from_zero or value > 0)
        _checked(f"{table}.{key}", value, right, f"a number {'from' if from_zero else 'above'} 0, below {LARGEST:g}")
    return {key: float(value) for key, value in given.items()}


def _only_known(given: Mapping[str, Any], known: list[str], prefix: str) -> None:
    for key in given:
        if key not in known:
            hint = f"known are {', '.join(prefix + k for k in known)}"
            raise UsageError(f"unknown key {prefix}{key[:80]}", hint=hint)


def _checked(key: str, value: Any, right: bool, wanted: str) -> Any:
    if not right:
        raise UsageError(f"{key} is {reprlib.repr(value)}: it must be {wanted}")
    return value
