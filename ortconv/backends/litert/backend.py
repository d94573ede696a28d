"""The backend "litert": the partitions that it claims, and how it runs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ortconv.backends.litert.export import Exported, export
from ortconv.backends.litert.runtime import KERNELS, LiteRtModel, interpreter
from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, shaped
from ortconv.errors import UsageError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.tensor import Array
from ortconv.runtime.backend import Claim, Program, Region
from ortconv.tflite.translate import refused


class LiteRt:
    """Runs partitions as .tflite models on LiteRT's CPU kernels. It runs nodes that both the NNAPI execution provider and LiteRT
    support.

    `settings` select the kernels: "reference" the plain ones, "default" those that an app gets, XNNPACK among them.
    """

    name = "litert"
    fallback = "numpy"

    def __init__(self, settings: str = "", options: NnapiOptions | None = None) -> None:
        self._settings = settings
        self.options = options or NnapiOptions(cpu_only=True)
        self._nnapi = Nnapi(self.options)

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

    def claim(self, graph: Graph) -> Claim:
        """The partitions of a graph, without nodes that the NNAPI runtime or LiteRT refuses."""
        return self._nnapi.claim(graph, refuse=lambda model: ((o, f"LiteRT: {why}") for o, why in refused(model)))

    def objections(self, node: Node) -> Iterator[str]:
        assert node.graph is not None
        reason = self.claim(node.graph).refused.get(node)
        if reason is not None:
            yield reason

    def export(self, region: Region) -> Exported:
        """The .tflite file for a partition."""
        return export(region, self._nnapi.lower(region))

    def compile(self, region: Region) -> Program:
        return LiteRtProgram(self.export(region), self._settings)


class LiteRtProgram:
    """A loaded partition."""

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
        lowered = self.exported.lowered
        return [
            None if place is None else shaped(results[place.output], place, value)
            for value, place in zip(lowered.outputs, lowered.places, strict=True)
        ]
