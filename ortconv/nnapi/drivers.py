"""Calls into drivers, which may be anybody's Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortconv.nnapi import vlog
from ortconv.nnapi.codes import ResultCode
from ortconv.nnapi.errors import NnapiError

if TYPE_CHECKING:
    from ortconv.nnapi.device import Device


@contextmanager
def driver(device: Device, call: str) -> Iterator[None]:
    """A call into a device's driver. What it raises besides NnapiError ends it as a driver's death does on Android:
    DEAD_OBJECT, which the CPU may step in for.
    """
    try:
        yield
    except NnapiError:
        raise
    except Exception as error:
        if device.is_ours:
            raise
        vlog.error("Manager", "{}: {} raised {}", device.name, call, repr(error))
        raise NnapiError(
            ResultCode.DEAD_OBJECT,
            f"the driver of {device.name} raised {error!r} in {call}",
            hint="the error is the driver's; without a list of devices the CPU steps in",
        ) from error
