"""The interface of a device, and nnapi-reference, the CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ortconv.choices import REFERENCE_DEVICE
from ortconv.nnapi.arguments import checked
from ortconv.nnapi.codes import DeviceType, FeatureLevel, Operand, Operation, Preference, Priority, ResultCode
from ortconv.nnapi.cpu import CpuProgram, RunLimits
from ortconv.nnapi.errors import NnapiError, op_failed
from ortconv.nnapi.extension import Attributes
from ortconv.nnapi.model import Model
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.properties import properties
from ortconv.nnapi.registry import Extension
from ortconv.nnapi.running import OperandValue, Room
from ortconv.nnapi.tracing import vlog

if TYPE_CHECKING:
    from ortconv.nnapi.caching import CacheFiles

MAX_CACHE_FILES = 32
NO_WORK = (
    "no work while the CPU is among the devices: no performance figure is below 1, and of equal ones the CPU's wins"
)


@dataclass(frozen=True, slots=True)
class Performance:
    """Time and power relative to this CPU: 1.0 is the same, smaller is better."""

    exec_time: float
    power_usage: float

    def of(self, preference: Preference) -> float:
        return self.power_usage if preference is Preference.LOW_POWER else self.exec_time


CPU_PERFORMANCE = Performance(1.0, 1.0)
NEVER = Performance(float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
"""The performance of a type without a figure. The device is never chosen for it if another one has a figure."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Performance of a device for each type of operand; NEVER for a type that is not listed."""

    types: Mapping[Operand, Performance] = field(default_factory=dict)
    relaxed_scalar: Performance = NEVER
    relaxed_tensor: Performance = NEVER
    if_: Performance = NEVER
    while_: Performance = NEVER

    @classmethod
    def uniform(cls, performance: Performance) -> Capabilities:
        return cls(dict.fromkeys(Operand, performance), performance, performance, performance, performance)

    def of(self, kind: Operand, relaxed: bool) -> Performance:
        if relaxed and kind is Operand.TENSOR_FLOAT32:
            return self.relaxed_tensor
        if relaxed and kind is Operand.FLOAT32:
            return self.relaxed_scalar
        return self.types.get(kind, NEVER)

    @property
    def ever_beat_cpu(self) -> bool:
        """True if a figure is below the CPU's: only then does the device get work beside the CPU, which wins a tie."""
        return any(figure < 1 for figure in self.figures)

    @property
    def figures(self) -> list[float]:
        all_ = (*self.types.values(), self.relaxed_scalar, self.relaxed_tensor, self.if_, self.while_)
        return [figure for one in all_ for figure in (one.exec_time, one.power_usage)]


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    preference: Preference = Preference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    deadline: float | None = None
    cache: CacheFiles | None = None
    """The files in which the device may store prepared models."""
    attributes: Attributes = field(default_factory=dict)
    """Attributes of extensions, by the extension's name and the attribute's code."""

    def check_deadline(self) -> None:
        """Raise MISSED_DEADLINE_PERSISTENT if the deadline has passed."""
        if self.deadline is not None and time.perf_counter() >= self.deadline:
            raise NnapiError(ResultCode.MISSED_DEADLINE_PERSISTENT, "the deadline is past before the model is prepared")


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in nanoseconds; None if the device does not measure them."""

    on_hardware: int | None = None
    in_driver: int | None = None

    def __add__(self, other: Timing) -> Timing:
        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + b

        return Timing(both(self.on_hardware, other.on_hardware), both(self.in_driver, other.in_driver))


Executed = tuple[list[Tensor], Timing]
"""The outputs of a model, and the durations of its execution."""


class PreparedModel:
    def execute(self, inputs: Sequence[OperandValue], room: Room, limits: RunLimits, measure: bool = False) -> Executed:
        """Run the model."""
        raise NotImplementedError


class Device:
    """A device that runs models or parts of them."""

    name: str
    version: str
    type: DeviceType
    level: FeatureLevel
    extensions: tuple[Extension, ...] = ()
    """Extensions that the device implements."""
    capabilities: Capabilities
    cache_files: tuple[int, int] = (0, 0)
    """The cache files that the device needs: (number of model files, number of data files), each at most MAX_CACHE_FILES."""
    is_ours: bool = False
    """True if the device is part of ortconv. Exceptions of others count as driver failures: see `ortconv.nnapi.driver_guard`."""
    alignment: int = 64
    padding: int = 64

    @property
    def feature_level(self) -> FeatureLevel:
        """The device's feature level, at most that of the runtime."""
        return min(self.level, properties().feature_level)

    @property
    def is_reference(self) -> bool:
        return self.name == REFERENCE_DEVICE

    @property
    def has_fences(self) -> bool:
        """True if a fenced execution may return before it is finished."""
        return False

    @checked
    def get_extension_support(self, name: str) -> bool:
        """True if the device implements an extension."""
        return any(extension.name == name for extension in self.extensions)

    def supported_operations(self, model: Model) -> list[bool]:
        """For each operation in execution order, True if the device supports it. The model needs no level above the device's."""
        raise NotImplementedError

    def takes(self, code: Operation, kind: Operand) -> bool:
        """True if the device supports an operation with a main operand of this type; IF and WHILE also depend on their models."""
        raise NotImplementedError

    def prepare(self, model: Model, options: PrepareOptions) -> PreparedModel:
        raise NotImplementedError

    def prepare_from_cache(self, cache: CacheFiles, options: PrepareOptions) -> PreparedModel:
        """Load a prepared model. Raises NnapiError if the files are damaged or were written by another device."""
        raise op_failed(f"{self.name} caches nothing")

    def allocates(self, kind: OperandType) -> bool:
        """True if the device allocates memory for operands of this type."""
        return False

    def wait(self) -> None:
        """Wait until the device is ready."""

    def __repr__(self) -> str:
        return f"<{self.type.name} {self.name}>"


class PreparedOnCpu(PreparedModel):
    def __init__(self, model: Model) -> None:
        self.program = CpuProgram(model)

    def execute(self, inputs: Sequence[OperandValue], room: Room, limits: RunLimits, measure: bool = False) -> Executed:
        return self.program.run(inputs, room, limits), Timing()


class ReferenceDevice(Device):
    """The CPU. It supports every operation of the API with every type, and does not measure time."""

    name = REFERENCE_DEVICE
    version = "UNKNOWN"
    type = DeviceType.CPU
    capabilities = Capabilities.uniform(CPU_PERFORMANCE)
    is_ours = True

    @property
    def level(self) -> FeatureLevel:  # type: ignore[override]
        return properties().feature_level

    def supported_operations(self, model: Model) -> list[bool]:
        return [not one.code.is_foreign for one in model.operations]

    def takes(self, code: Operation, kind: Operand) -> bool:
        return not code.is_foreign

    def prepare(self, model: Model, options: PrepareOptions) -> PreparedModel:
        options.check_deadline()
        vlog.message(vlog.COMPILATION, "Manager", "CpuPreparedModel::create")
        return PreparedOnCpu(model)

    def allocates(self, kind: OperandType) -> bool:
        return kind.is_known
