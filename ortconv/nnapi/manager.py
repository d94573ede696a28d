"""The devices of this runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from ortconv.nnapi import vlog
from ortconv.nnapi.device import REFERENCE, Device, ReferenceDevice
from ortconv.nnapi.errors import bad_data, bad_state, required
from ortconv.nnapi.model import Model
from ortconv.nnapi.properties import properties
from ortconv.nnapi.slicing import supported_by

_reference = ReferenceDevice()
_drivers: ContextVar[list[Device] | None] = ContextVar("drivers", default=None)
_shared: list[Device] = []


def _known() -> list[Device]:
    """Those of the `with` block around, or else those that all threads share."""
    drivers = _drivers.get()
    return _shared if drivers is None else drivers


def register_device(device: Device) -> None:
    """Make a device known, in front of the CPU. BAD_DATA if its name is taken."""
    if device.name in (REFERENCE, *(other.name for other in _known())):
        raise bad_data(f"there is a device '{device.name}' already")
    vlog.info("Manager", "Found interface {} (version = {})", device.name, device.version)
    _known().append(device)


def unregister_device(device: Device) -> None:
    _known().remove(device)


@contextmanager
def registered(*devices: Device) -> Iterator[None]:
    """Devices that are known within a `with` block, to its thread, in place of those registered outside of it."""
    before = _drivers.set([])
    try:
        for device in devices:
            register_device(device)
        yield
    finally:
        _drivers.reset(before)


def get_devices() -> list[Device]:
    """Every device; the CPU last."""
    if properties().cpu_only:
        return [_reference]
    enabled = re.compile(properties().enabled_devices or ".*")
    return [*(device for device in _known() if enabled.search(device.name)), _reference]


def get_device_count() -> int:
    return len(get_devices())


def get_device(which: str | int) -> Device:
    """A device by its name or its place. BAD_DATA if there is none."""
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
    """BAD_DATA for an empty list, a device twice or one that is not known."""
    if not devices:
        raise bad_data("the list of devices is empty")
    known = get_devices()
    for device in devices:
        required("a device", device)
    for at, device in enumerate(devices):
        if device in devices[:at]:
            raise bad_data(f"the device '{device.name}' is listed twice")
        if device not in known:
            raise bad_data(f"the device '{device.name}' is not known")


def get_supported_operations_for_devices(model: Model, devices: Sequence[Device]) -> list[bool]:
    """For each operation, in the order in which they were added, whether one of the devices takes it."""
    required("the model", model)
    check_devices(devices)
    if not model.finished or not model.valid:
        raise bad_state("the model is not finished")
    answers = [supported_by(device, model) for device in devices]
    result = [False] * len(model.operations)
    for at, place in enumerate(model.client_order):
        result[place] = any(answer[at] for answer in answers)
    return result
