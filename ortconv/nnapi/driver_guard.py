"""A guard around calls into drivers, which may have any author."""

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
    """Context manager for a call into a device's driver. An exception other than NnapiError counts as the death of the
    driver, as on Android: it becomes DEAD_OBJECT, after which the CPU may take over.
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
