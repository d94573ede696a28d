"""The backend "litert": the partitions that it claims, and how it runs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ortconv import __version__
from ortconv.backends.litert.runtime import KERNELS, LiteRtModel, interpreter
from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions
from ortconv.backends.nnapi.lower import Lowered
from ortconv.errors import BackendError, UnsupportedError, UsageError
from ortconv.ir.tensor import Array
from ortconv.nnapi import Model
from ortconv.nnapi.model import ModelOperation
from ortconv.ortformat.emit import Segment
from ortconv.runtime.backend import Program, Region
from ortconv.tflite.model import TfliteModel
from ortconv.tflite.translate import refused, translate
from ortconv.tflite.writer import serialize


@dataclass(frozen=True, slots=True)
class Exported:
    region: Region
    lowered: Lowered
    model: TfliteModel
    segments: list[Segment]


class LiteRt(Nnapi):
    """Runs partitions as .tflite models on LiteRT's CPU kernels. It runs nodes that both the NNAPI execution provider and LiteRT
    support.

    `settings` select the kernels: "reference" the plain ones, "default" those that an app gets, XNNPACK among them.
    """

    name = "litert"

    def __init__(self, settings: str = "", options: NnapiOptions | None = None) -> None:
        super().__init__(options or NnapiOptions(cpu_only=True))
        self._settings = settings

    def configured(self, settings: str) -> LiteRt:
        if settings not in KERNELS:
            known = " and ".join(f"litert:{name}" for name in KERNELS if name)
            raise UsageError(f"the backend 'litert' has no setting '{settings}'", hint=f"there are {known}")
        return LiteRt(settings, self.options)

    def available(self) -> str | None:
        try:
            interpreter()
        except ImportError as error:
            return f"ai-edge-litert cannot be imported: {error}; pip install 'ortconv[litert]'"
        return None

    def refused(self, model: Model) -> Iterator[tuple[ModelOperation, str]]:
        return ((operation, f"LiteRT: {reason}") for operation, reason in refused(model))

    def export(self, region: Region) -> Exported:
        """The .tflite file for a partition. Raises BackendError if LiteRT cannot represent it."""
        lowered, outputs = self.lower(region), dict[int, str]()
        for value, place in zip(lowered.outputs, lowered.places, strict=True):
            if place is not None:
                outputs.setdefault(place.output, value.name)
        names = [outputs[i] for i in range(len(outputs))]
        inputs = [v.name for v in lowered.inputs]
        try:
            model = translate(lowered.model, lowered.names, inputs, names, region.graph.name or "main")
            segments = serialize(model, f"ortconv {__version__}")
        except UnsupportedError as error:
            raise BackendError(error.message, backend="litert", hint=error.hint) from error
        return Exported(region, lowered, model, segments)

    def compile(self, region: Region) -> Program:
        return LiteRtProgram(self.export(region), self._settings)


class LiteRtProgram:
    def __init__(self, exported: Exported, settings: str) -> None:
        self.exported = exported
        content = b"".join(exported.segments)
        self._loaded = LiteRtModel(exported.model, content, settings)
        self._inputs = [exported.region.inputs.index(value) for value in exported.lowered.inputs]
        self._lock = threading.Lock()  # an interpreter has a single memory

    def run(self, inputs: Sequence[Any]) -> list[Array | None]:
        """The region's outputs; None for a value that the model does not compute."""
        with self._lock:
            results = self._loaded.run([inputs[i] for i in self._inputs])
        return self.exported.lowered.in_order(results)
