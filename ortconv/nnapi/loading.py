"""Devices by name: simulated devices from profiles, and devices of other packages.

Packages provide devices through the entry point group "ortconv.nnapi_devices": name = "module:Class". The class is
called without arguments; see `ortconv.nnapi.driver`.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.errors import UsageError, nearest
from ortconv.files import read_toml
from ortconv.nnapi.arguments import checked
from ortconv.nnapi.device import Device
from ortconv.nnapi.simulated import SimulatedDevice

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ortconv.nnapi_devices"


@cache
def bundled_profiles() -> list[str]:
    """The names of the profiles included in ortconv."""
    names = (entry.name for entry in files("ortconv.nnapi").joinpath("profiles").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def installed_devices() -> list[str]:
    """The names of the devices of other packages. Nothing is imported."""
    return sorted(_entry_points())


@checked
def load_device(profile: str | Path) -> Device:
    """The device of a profile, given by a file's path or the name of an included profile or of its device; or a device of
    another package by its name. Raises UsageError if there is none, or if it cannot be loaded.
    """
    name = str(profile)
    if name in bundled_profiles():
        path = files("ortconv.nnapi").joinpath("profiles", f"{name}.toml")
        return SimulatedDevice(tomllib.loads(path.read_text("utf-8")), name)
    installed = _entry_points()
    if name in installed:
        return _installed(installed[name])
    if not os.path.exists(profile):
        for included in map(load_device, bundled_profiles()):
            if included.name == name:
                return included
        known = [*bundled_profiles(), *installed]
        hint = nearest(name, known) or f"devices: {', '.join(known)}, and the TOML files of profiles"
        message = "the profile cannot be read: there is no such file, and no such device"
        raise UsageError(message, file=profile, hint=hint)
    return SimulatedDevice(read_toml(profile), name)


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {one.name: one for one in entry_points(group=GROUP)}


def _installed(point: EntryPoint) -> Device:
    named = f"the device '{point.name}' ({point.value})"
    try:
        device = point.load()()
    except Exception as error:
        hint = "the error is in the package that offers the device"
        raise UsageError(f"{named} cannot be loaded: {error!r}", hint=hint) from error
    if not isinstance(device, Device):
        hint = "it must be a subclass of ortconv.nnapi.driver.Device"
        raise UsageError(f"{named} is a {type(device).__name__}, not a Device", hint=hint)
    return device
