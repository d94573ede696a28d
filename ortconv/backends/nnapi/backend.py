"""The backend itself: what it claims, on which devices, and how it runs."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ortconv import nnapi
from ortconv.backends.nnapi.lower import Lowered, lower
from ortconv.errors import BackendError, UsageError
from ortconv.executor.backend import Claim, Program, Region
from ortconv.executor.regions import make_region
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.tensor import Array
from ortconv.nnapi import Device, FeatureLevel, NnapiError
from ortconv.nnapi.errors import OutputTooSmallError
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.properties import override
from ortconv.nnapi.simulated import SimulatedDevice
from ortconv.nnapi.timing import mark
from ortconv.partition import Target, partition
from ortconv.partition.policy import DEFAULT_STOP_OPS, FEATURE_LEVELS

FLAGS = {"USE_FP16": "fp16", "USE_NCHW": "nchw", "CPU_DISABLED": "cpu_disabled", "CPU_ONLY": "cpu_only"}
"""Flags of ONNX Runtime's execution provider, and the options that they set."""

ACCELERATOR = {"name": "sim-any", "fp16": True, "performance": {"default": {"exec_time": 0.5, "power_usage": 0.5}}}
"""The device where none is named: it takes everything, and computes relaxed float32 in float16."""

DYNAMIC_ROOM = 1024
"""Elements that an output of unknown shape is given room for at first."""


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of ONNX Runtime's execution provider, and the phone to imagine.

    `feature_level` is that of its NNAPI runtime, 27 to 31; `devices` are profiles of its accelerators; `burst` runs all
    executions in one burst; `cache` is a directory for what devices compile. UsageError for flags that exclude each other.
    """

    fp16: bool = False
    nchw: bool = False
    cpu_disabled: bool = False
    cpu_only: bool = False
    feature_level: int = FEATURE_LEVELS[-1]
    stop_ops: tuple[str, ...] = DEFAULT_STOP_OPS
    devices: tuple[str | Path | Device, ...] = ()
    burst: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.cpu_disabled and self.cpu_only:
            raise UsageError("CPU_DISABLED and CPU_ONLY exclude each other")


def flags_of(names: str) -> dict[str, Any]:
    """Options from flags with commas, + or | between them, with or without NNAPI_FLAG_ and USE_, in any case.

    UsageError for an unknown one.
    """
    found: dict[str, Any] = {}
    for name in filter(None, (part.strip() for part in re.split("[,+|]", names))):
        key = name.upper().replace("-", "_").removeprefix("NNAPI_FLAG_")
        key = key if key in FLAGS else f"USE_{key}"
        if key not in FLAGS:
            raise UsageError(f"there is no NNAPI flag '{name}'", hint=f"flags: {', '.join(FLAGS)}")
        found[FLAGS[key]] = True
    return found


class Nnapi:
    """Runs the partitions that ONNX Runtime's NNAPI execution provider would take as NNAPI models."""

    name = "nnapi"
    fallback = "numpy"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        chosen = [d if isinstance(d, Device) else nnapi.load_device(d) for d in self.options.devices]
        registered = [d for d in nnapi.get_devices() if not d.is_reference]
        self.accelerators: tuple[Device, ...] = tuple(chosen or registered or [SimulatedDevice(ACCELERATOR)])

    def configured(self, settings: str) -> Nnapi:
        """The backend with these flags, such as "fp16+nchw"."""
        return Nnapi(Options(**flags_of(settings)))

    def available(self) -> str | None:
        return None

    @property
    def targets(self) -> list[Device]:
        """The devices that models may use; the CPU last."""
        cpu = nnapi.get_device("nnapi-reference")
        if self.options.cpu_only:
            return [cpu]
        return [*self.accelerators, *([] if self.options.cpu_disabled else [cpu])]

    @property
    def level(self) -> int:
        """The effective feature level: at most that of the best device. Devices are known from level 29 on."""
        runtime = self.options.feature_level
        return runtime if runtime < 29 else min(runtime, max(int(d.level) for d in self.targets))

    def claim(self, graph: Graph) -> Claim:
        """The partitions of a graph, but for those that tensors without elements would make fail."""
        target = Target(feature_level=self.level, stop_ops=self.options.stop_ops, use_nchw=self.options.nchw)
        found = partition(graph, target, anew=True)
        refused = {n: "; ".join(o.message for o in v.objections) for n, v in found.verdicts.items() if not v.taken}
        groups = []
        for part in found.partitions:
            reason = self._empty_refused(graph, part.nodes)
            if reason is None:
                groups.append(part.nodes)
            else:
                refused |= dict.fromkeys(part.nodes, reason)
        return Claim(tuple(groups), refused)

    def _empty_refused(self, graph: Graph, nodes: tuple[Node, ...]) -> str | None:
        """Why a partition with tensors without elements cannot run: to NNAPI a dimension of 0 is unknown until an operation
        makes the tensor, and not all operations take such a tensor.
        """
        empty = {v: None for n in nodes for v in (*n.inputs, *n.outputs) if v is not None and _is_empty(v)}
        if not empty:
            return None
        what = f"'{next(iter(empty)).name}' in this partition has no elements"
        region = make_region(graph, nodes)
        if self.level < 29 or not empty.keys().isdisjoint(region.inputs):
            return (
                f"{what}, and NNAPI {'knows no such tensors below level 29' if self.level < 29 else 'cannot be fed it'}"
            )
        try:
            model = self.lower(region).model
        except BackendError as error:
            return f"{what}: {error.message}"
        for operation in model.operations:
            kinds = [model.operands[index].kind for index in operation.inputs]
            if not row_of(operation.code).zero_sized and any(k.type.is_tensor and k.size == 0 for k in kinds):
                return f"{what}, and {operation.code.name} takes no such tensor"
        return None

    def objections(self, node: Node) -> Iterator[str]:
        assert node.graph is not None
        reason = self.claim(node.graph).refused.get(node)
        if reason is not None:
            yield reason

    def compile(self, region: Region) -> Program:
        lowered = self.lower(region)
        try:
            with self._phone():
                return NnapiProgram(lowered, self._compiled(lowered), region, self.options.burst)
        except NnapiError as error:
            raise self._failed(region, error) from error

    def lower(self, region: Region) -> Lowered:
        """The model that a partition becomes."""
        with self._phone():
            return lower(region, self.level, self.options.nchw, self.options.fp16)

    @contextmanager
    def _phone(self) -> Iterator[None]:
        """The NNAPI runtime with the level and the devices of the options."""
        level = FeatureLevel(self.options.feature_level)
        with override(feature_level=level), nnapi.registered(*self.accelerators):
            yield

    @mark("LA", "PC", "compile")
    def _compiled(self, lowered: Lowered) -> nnapi.Compilation:
        """For the devices of the flags where they leave some out: those must then take all operations between them."""
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

    def _failed(self, region: Region, error: NnapiError) -> BackendError:
        what = f"the partition of {len(region.nodes)} nodes from {region.nodes[0].label} does not compile"
        return BackendError(f"{what}: {error}", backend=self.name)


class NnapiProgram:
    """A compiled partition: what it was lowered to, its compilation, and the number of executions so far."""

    def __init__(self, lowered: Lowered, compilation: nnapi.Compilation, region: Region, burst: bool) -> None:
        self.lowered = lowered
        self.compilation = compilation
        self._places = [region.inputs.index(value) for value in lowered.inputs]
        self._burst = nnapi.Burst(compilation) if burst else None
        self._lock = threading.Lock()
        self.executions = 0

    @mark("LA", "PE", "run")
    def run(self, inputs: Sequence[Any]) -> list[Array]:
        """One execution: inputs copied in, outputs copied back. BackendError where it fails."""
        rooms = [_room(value) for value in self.lowered.outputs]
        while True:
            try:
                return self._executed(inputs, rooms)
            except OutputTooSmallError as error:
                rooms = [
                    room if fits else math.prod(dims) for room, (dims, fits) in zip(rooms, error.shapes, strict=True)
                ]
            except NnapiError as error:
                raise BackendError(f"an execution failed: {error}", backend="nnapi") from error

    def close(self) -> None:
        """Free the compilation and what belongs to it. The program cannot run again."""
        if self._burst is not None:
            self._burst.close()
        self.compilation.close()
        self.lowered.model.close()

    def _executed(self, inputs: Sequence[Any], rooms: Sequence[tuple[int, ...] | int]) -> list[Array]:
        """The outputs, with so much room for each. OutputTooSmallError where that is not enough."""
        outputs = self.lowered.outputs
        results = [np.empty(room, _dtype(v)) for v, room in zip(outputs, rooms, strict=True)]
        with nnapi.Execution(self.compilation) as execution:
            for index, place in enumerate(self._places):
                execution.set_input(index, np.ascontiguousarray(inputs[place]))
            for index, result in enumerate(results):
                execution.set_output(index, result)
            self._compute(execution)
            return [_shaped(execution, index, v, result) for index, (v, result) in enumerate(zip(outputs, results))]

    def _compute(self, execution: nnapi.Execution) -> None:
        """One at a time, as the execution provider does it."""
        with self._lock:
            if self._burst is not None:
                self._burst.compute(execution)
            else:
                with execution.start_compute() as event:
                    event.wait()
            self.executions += 1


def _room(value: Value) -> tuple[int, ...] | int:
    """The shape of an output, or a number of elements to try where NNAPI does not know it."""
    shape = value.static_shape
    return DYNAMIC_ROOM if shape is None or 0 in shape else shape


def _shaped(execution: nnapi.Execution, index: int, value: Value, result: Array) -> Array:
    """A result in its shape; what NNAPI has as [1] may be a number."""
    if result.shape == value.static_shape:
        return result
    dims = execution.get_output_operand_dimensions(index)
    return result[: math.prod(dims)].reshape(() if value.rank == 0 else dims)


def _is_empty(value: Value) -> bool:
    """Whether a tensor has a dimension of 0; lists of axes and the like that are empty do no harm."""
    return value.constant is None and 0 in (value.shape or ())


def _dtype(value: Value) -> np.dtype[Any]:
    assert value.dtype is not None
    return value.dtype.numpy


def _token(model: nnapi.Model) -> bytes:
    """What stands for a model in the cache: a digest of its operands, constants and operations."""
    digest = sha256(repr(([str(o) for o in model.operations], model.inputs, model.outputs, model.relaxed)).encode())
    for operand in model.operands:
        digest.update(repr(operand.kind.key).encode())
        if operand.value is not None:
            digest.update(np.ascontiguousarray(operand.value).data)
    return digest.digest()
