"""Compilations."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.nnapi.device import Device
from ortconv.nnapi.model import Model


class Compilation:
    """A model made ready for devices."""

    def __init__(self, model: Model, devices: Sequence[Device] | None = None) -> None:
        self.model = model

    def finish(self) -> None:
        pass
