"""The backend "nnapi": the partitions that it claims, its devices, and how it runs."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ortconv import nnapi
from ortconv.backends.nnapi.claims import claim
from ortconv.backends.nnapi.lower import Lowered, lower
from ortconv.choices import FEATURE_LEVEL, REFERENCE_DEVICE, feature_level
from ortconv.errors import BackendError, UsageError
from ortconv.executor.guard import guarded
from ortconv.ir.graph import Graph, Node
from ortconv.ir.tensor import Array
from ortconv.nnapi import Device, FeatureLevel, NnapiError
from ortconv.nnapi.errors import OutputTooSmallError
from ortconv.nnapi.event import as_reported
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.properties import override
from ortconv.nnapi.simulated import SimulatedDevice
from ortconv.nnapi.tracing.timing import mark
from ortconv.partition import Target
from ortconv.partition.policy import DEFAULT_STOP_OPS
from ortconv.runtime.backend import Claim, Program, Region
from ortconv.wording import counted

FLAGS = {"USE_FP16": "fp16", "USE_NCHW": "nchw", "CPU_DISABLED": "cpu_disabled", "CPU_ONLY": "cpu_only"}
"""Flags of ONNX Runtime's execution provider, and the options that they set."""

ACCELERATOR = {"name": "sim-any", "fp16": True, "performance": {"default": {"exec_time": 0.5, "power_usage": 0.5}}}
"""The accelerator that is used if no device is named: it supports everything, and computes relaxed float32 in float16."""

DYNAMIC_ROOM = 1024
"""Elements for which memory is first allocated if the shape of an output is unknown."""


@dataclass(frozen=True, slots=True)
class NnapiOptions:
    """The flags of ONNX Runtime's execution provider, and the simulated phone.

    `feature_level` is that of the NNAPI runtime, see Target; `devices` are profiles of its accelerators. `burst` runs all
    executions in one burst. `cache` is a directory for compiled models. Raises UsageError for flags that exclude each other.
    """

    fp16: bool = False
    nchw: bool = False
    cpu_disabled: bool = False
    cpu_only: bool = False
    feature_level: int = FEATURE_LEVEL
    stop_ops: tuple[str, ...] = DEFAULT_STOP_OPS
    devices: tuple[str | Path | Device, ...] = ()
    burst: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.cpu_disabled and self.cpu_only:
            raise UsageError("the flags cpu_disabled and cpu_only exclude each other")
        object.__setattr__(self, "feature_level", feature_level(self.feature_level))


def flags_of(names: str) -> dict[str, Any]:
    """Parse flags separated by commas, + or |, in any case, NNAPI_FLAG_ and USE_ being optional. UsageError for an unknown flag."""
    found: dict[str, Any] = {}
    for name in filter(None, (part.strip() for part in re.split("[,+|]", names))):
        key = name.upper().replace("-", "_").removeprefix("NNAPI_FLAG_")
        key = key if key in FLAGS else f"USE_{key}"
        if key not in FLAGS:
            raise UsageError(f"there is no NNAPI flag '{name}'", hint=f"flags: {', '.join(FLAGS.values())}")
        found[FLAGS[key]] = True
    return found


class Nnapi:
    """Runs as NNAPI models the partitions that ONNX Runtime's NNAPI execution provider would select."""

    name = "nnapi"
    fallback = "numpy"

    def __init__(self, options: NnapiOptions | None = None) -> None:
        self.options = options or NnapiOptions()
        chosen = [d if isinstance(d, Device) else nnapi.load_device(d) for d in self.options.devices]
        registered = [d for d in nnapi.get_devices() if not d.is_reference]
        self.accelerators: tuple[Device, ...] = tuple(chosen or registered or [SimulatedDevice(ACCELERATOR)])

    def configured(self, settings: str) -> Nnapi:
        """The backend with these flags, such as "fp16+nchw"."""
        return Nnapi(NnapiOptions(**flags_of(settings)))

    def available(self) -> str | None:
        return None

    @property
    def targets(self) -> list[Device]:
        """The devices that models may use, with the CPU last."""
        cpu = nnapi.get_device(REFERENCE_DEVICE)
        if self.options.cpu_only:
            return [cpu]
        return [*self.accelerators, *([] if self.options.cpu_disabled else [cpu])]

    @property
    def level(self) -> int:
        """The effective feature level: at most that of the best device. Device selection exists from level 29 on."""
        runtime = self.options.feature_level
        return runtime if runtime < 29 else min(runtime, max(int(d.level) for d in self.targets))

    def claim(self, graph: Graph) -> Claim:
        """The partitions of a graph, without nodes that the NNAPI runtime, or `refused`, refuses."""
        target = Target(feature_level=self.level, stop_ops=self.options.stop_ops, use_nchw=self.options.nchw)
        with self._phone(), guarded(graph, "dividing the graph"):
            return claim(graph, target, self.refused)

    def refused(self, model: nnapi.Model) -> Iterable[tuple[ModelOperation, str]]:
        """The operations of a finished model that a backend of other kernels refuses, with reasons."""
        return ()

    def objections(self, node: Node) -> Iterator[str]:
        reason = self.claim(node.parent).refused.get(node)
        if reason is not None:
            yield reason

    def compile(self, region: Region) -> Program:
        lowered = self.lower(region)
        try:
            with self._phone():
                return NnapiProgram(lowered, self._compiled(lowered), region, self.options.burst)
        except NnapiError as error:
            what = f"the partition of {counted(len(region.nodes), 'node')} from {region.nodes[0].label}"
            raise BackendError(f"{what} does not compile: {error}", backend=self.name) from error

    def lower(self, region: Region) -> Lowered:
        with self._phone(), guarded(region.nodes, "lowering to NNAPI"):
            return lower(region, self.level, self.options.nchw, self.options.fp16)

    @contextmanager
    def _phone(self) -> Iterator[None]:
        """Context manager: an NNAPI runtime with the feature level and the devices of the options."""
        level = FeatureLevel(self.options.feature_level)
        with override(feature_level=level), nnapi.registered(*self.accelerators):
            yield

    @mark("LA", "PC", "compile")
    def _compiled(self, lowered: Lowered) -> nnapi.Compilation:
        """Compile a model. Raises BackendError if the flags exclude devices and the others do not support every operation."""
        options, named = self.options, None
        if (options.cpu_only or options.cpu_disabled) and options.feature_level >= 29:
            named = self.targets
            taken = nnapi.get_supported_operations_for_devices(lowered.model, named)
            if not all(taken):
                first = lowered.model.operations[lowered.model.client_order.index(taken.index(False))]
                names = ", ".join(d.name for d in named)
                raise BackendError(f"{first.code.name} runs on none of the devices {names}", backend=self.name)
        compilation = nnapi.Compilation(lowered.model, named)
        if options.cache is not None:
            options.cache.mkdir(parents=True, exist_ok=True)
            compilation.set_caching(options.cache, _token(lowered.model))
        compilation.finish()
        return compilation


class NnapiProgram:
    def __init__(self, lowered: Lowered, compilation: nnapi.Compilation, region: Region, burst: bool) -> None:
        self.lowered = lowered
        self.compilation = compilation
        self._places = [region.inputs.index(value) for value in lowered.inputs]
        self._kinds = lowered.model.output_types
        self._rooms = [kind.dims if kind.is_known else (DYNAMIC_ROOM,) for kind in self._kinds]
        self._burst = nnapi.Burst(compilation) if burst else None
        self._lock = threading.Lock()
        self.executions = 0

    @mark("LA", "PE", "run")
    def run(self, inputs: Sequence[Any]) -> list[Array | None]:
        """Execute once: copy the inputs in, and the outputs back. The result is None for a value that the model does not compute.

        Raises BackendError if the execution fails.
        """
        rooms = self._rooms
        while True:
            try:
                results = self._executed(inputs, rooms)
                break
            except OutputTooSmallError as error:
                wanted = [room if fits else dims for room, (dims, fits) in zip(rooms, error.shapes, strict=True)]
                if wanted == rooms:
                    raise BackendError("a device asks for the room that it has", backend="nnapi") from error
                rooms = wanted
            except NnapiError as error:
                raise BackendError(f"an execution failed: {error}", backend="nnapi") from error
        return self.lowered.in_order(results)

    def close(self) -> None:
        """Free the compilation and its resources. The program cannot run again."""
        if self._burst is not None:
            self._burst.close()
        self.compilation.close()
        self.lowered.model.close()

    def _executed(self, inputs: Sequence[Any], rooms: Sequence[tuple[int, ...]]) -> list[Array]:
        """The outputs of the model, in arrays of the shapes `rooms`. Raises OutputTooSmallError if these are too small."""
        results = [np.empty(room, kind.type.dtype) for kind, room in zip(self._kinds, rooms, strict=True)]
        with nnapi.Execution(self.compilation) as execution:
            for index, place in enumerate(self._places):
                execution.set_input(index, np.ascontiguousarray(inputs[place]))
            for index, result in enumerate(results):
                execution.set_output(index, result)
            self._compute(execution)
            return [_cut(result, execution.get_output_operand_dimensions(i)) for i, result in enumerate(results)]

    def _compute(self, execution: nnapi.Execution) -> None:
        """Run one execution at a time. The execution provider starts an execution and waits for it. Here it is computed directly,
        because the core of a second thread would not have the data in its cache.
        """
        with self._lock:
            if self._burst is not None:
                self._burst.compute(execution)
            else:
                try:
                    execution.compute()
                except NnapiError as error:
                    raise as_reported(error) from None
            self.executions += 1


class RecordingBackend(Nnapi):
    """Keeps the partitions that it compiled, in the order in which they run."""

    def __init__(self, options: NnapiOptions | None) -> None:
        super().__init__(options)
        self.compiled: list[tuple[Region, NnapiProgram]] = []

    def compile(self, region: Region) -> Program:
        program = super().compile(region)
        assert isinstance(program, NnapiProgram)
        self.compiled.append((region, program))
        return program


def _cut(result: Array, dims: tuple[int, ...]) -> Array:
    """The written elements, in their shape."""
    return result if result.shape == dims else result.reshape(-1)[: math.prod(dims)].reshape(dims)


def _token(model: nnapi.Model) -> bytes:
    """The cache key of a model: a digest of its operands, constants and operations."""
    digest = sha256(repr(([str(o) for o in model.operations], model.inputs, model.outputs, model.relaxed)).encode())
    for operand in model.operands:
        digest.update(repr(operand.kind.key).encode())
        if operand.value is not None:
            digest.update(np.ascontiguousarray(operand.value).data)
    return digest.digest()
