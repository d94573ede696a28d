"""The devices of this runtime."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakSet

import numpy as np

from ortconv.choices import REFERENCE_DEVICE
from ortconv.nnapi.arguments import checked, wrong
from ortconv.nnapi.codes import DeviceType, FeatureLevel
from ortconv.nnapi.device import MAX_CACHE_FILES, NEVER, Capabilities, Device, ReferenceDevice
from ortconv.nnapi.driver_guard import driver
from ortconv.nnapi.errors import bad_data, bad_state
from ortconv.nnapi.extension import declare
from ortconv.nnapi.model import Model
from ortconv.nnapi.properties import properties
from ortconv.nnapi.registry import Extension
from ortconv.nnapi.slicing import supported_by
from ortconv.nnapi.tracing import vlog

_reference = ReferenceDevice()
_drivers: ContextVar[list[Device] | None] = ContextVar("drivers", default=None)
_shared: list[Device] = []
_announced: WeakSet[Device] = WeakSet()

STATED: dict[str, type] = {
    "name": str,
    "version": str,
    "type": DeviceType,
    "level": FeatureLevel,
    "capabilities": Capabilities,
    "cache_files": tuple,
    "alignment": int,
    "padding": int,
    "has_fences": bool,
    "extensions": tuple,
}
"""The properties that every device must have, with their types."""
DRIVER_HINT = "a driver is a subclass of nnapi.Device that sets these attributes; docs/nnapi.md has one"


def _known() -> list[Device]:
    """The devices of the enclosing `registered` block, or else those of all threads."""
    drivers = _drivers.get()
    return _shared if drivers is None else drivers


@checked
def register_device(device: Device) -> None:
    """Register a device, before the CPU in order. Raises BAD_DATA if its name exists, or if its description is incomplete."""
    _check_driver(device)
    if device.name in (REFERENCE_DEVICE, *(other.name for other in _known())):
        raise bad_data(f"there is a device '{device.name}' already")
    for extension in device.extensions:
        declare(extension)
    if device not in _announced:
        _announced.add(device)
        vlog.info("Manager", "Found interface {} (version = {})", device.name, device.version)
    _known().append(device)


@checked
def unregister_device(device: Device) -> None:
    """Remove a device. Raises BAD_DATA for a device that is not registered."""
    if device not in _known():
        raise bad_data(f"the device '{device.name}' is not registered")
    _known().remove(device)


def _check_driver(device: Device) -> None:
    for attribute, kind in STATED.items():
        with driver(device, attribute):
            found = getattr(device, attribute, None)
        if not isinstance(found, kind):
            given = "missing" if found is None else found
            raise wrong(f"{type(device).__name__}.{attribute}", given, f"of {kind.__name__}", DRIVER_HINT)
    files = device.cache_files
    if len(files) != 2 or not all(isinstance(one, int) and 0 <= one <= MAX_CACHE_FILES for one in files):
        allowed = f"of each kind there are 0 to {MAX_CACHE_FILES}"
        raise bad_data(f"the device '{device.name}' has {files} cache files; {allowed}")
    with driver(device, "capabilities"):
        figures = device.capabilities.figures
    _check_each(device, "capabilities", figures, "a number above 0", _is_figure)
    _check_each(device, "extensions", device.extensions, "an Extension", lambda one: isinstance(one, Extension))


def _check_each(
    device: Device, attribute: str, values: Iterable[object], wanted: str, fits: Callable[[object], bool]
) -> None:
    for value in values:
        if not fits(value):
            raise wrong(f"{type(device).__name__}.{attribute}", value, wanted, DRIVER_HINT)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float | np.floating) and bool(0 < value <= NEVER.exec_time)


@contextmanager
def registered(*devices: Device) -> Iterator[None]:
    """Within this `with` block, this thread has exactly these devices and the CPU."""
    before = _drivers.set([])
    try:
        for device in devices:
            register_device(device)
        yield
    finally:
        _drivers.reset(before)


def get_devices() -> list[Device]:
    """All devices, with the CPU last."""
    if properties().cpu_only:
        return [_reference]
    try:
        enabled = re.compile(properties().enabled_devices or ".*")
    except re.error as error:
        raise bad_data(f"enabled_devices is not a regular expression: {error}") from error
    return [*(device for device in _known() if enabled.search(device.name)), _reference]


def get_device_count() -> int:
    return len(get_devices())


@checked
def get_device(which: str | int) -> Device:
    """A device by its name or index. Raises BAD_DATA if there is none."""
    devices = get_devices()
    if isinstance(which, int):
        if not 0 <= which < len(devices):
            raise bad_data(f"there are {len(devices)} devices, none at {which}")
        return devices[which]
    for device in devices:
        if device.name == which:
            return device
    raise bad_data(f"there is no device '{which}'; there are {', '.join(device.name for device in devices)}")


def get_runtime_feature_level() -> int:
    return properties().feature_level


def check_devices(devices: Sequence[Device]) -> None:
    """Raise BAD_DATA for an empty list, and for a device that is listed twice or not registered."""
    if not devices:
        raise bad_data("the list of devices is empty")
    known = get_devices()
    for at, device in enumerate(devices):
        if device in devices[:at]:
            raise bad_data(f"the device '{device.name}' is listed twice")
        if device not in known:
            raise bad_data(f"the device '{device.name}' is not known")


@checked
def get_supported_operations_for_devices(model: Model, devices: Sequence[Device]) -> list[bool]:
    """For each operation, in the order of `add_operation`, True if one of the devices supports it."""
    check_devices(devices)
    if not model.finished or not model.valid:
        raise bad_state("the model is not finished")
    answers = [supported_by(device, model) for device in devices]
    result = [False] * len(model.operations)
    for at, place in enumerate(model.client_order):
        result[place] = any(answer[at] for answer in answers)
    return result
