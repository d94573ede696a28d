"""A guard around calls into drivers, which may have any author."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortconv.nnapi.codes import ResultCode
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.tracing import vlog

if TYPE_CHECKING:
    from ortconv.nnapi.device import Device


class driver:  # noqa: N801, as a function
    """Context manager for a call into a device's driver. An exception other than NnapiError counts as the death of the
    driver, as on Android: it becomes DEAD_OBJECT, after which the CPU may take over.
    """

    __slots__ = ("_call", "_device")

    def __init__(self, device: Device, call: str) -> None:
        self._device, self._call = device, call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        device = self._device
        if not isinstance(error, Exception) or isinstance(error, NnapiError) or device.is_ours:
            return
        vlog.error("Manager", "{}: {} raised {}", device.name, self._call, repr(error))
        message = f"the driver of {device.name} raised {error!r} in {self._call}"
        hint = "the error is the driver's; without a list of devices the CPU steps in"
        raise NnapiError(ResultCode.DEAD_OBJECT, message, hint=hint) from error
