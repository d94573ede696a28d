"""Simulated accelerators, described by TOML profiles.

    name = "example-npu"            # required; everything else has a default
    version = "1.0"
    type = "ACCELERATOR"            # UNKNOWN OTHER CPU GPU ACCELERATOR
    feature_level = 4               # 1 to 8
    fp16 = true                     # relaxed float32 is computed in float16

    [accept]                        # what the device supports; default: everything
    operations = ["CONV_2D"]        # only these
    types = ["TENSOR_FLOAT32"]      # main operand types
    refuse = ["SOFTMAX"]            # not these

    [performance]                   # relative to the CPU, smaller is better; with the default of 1.0 it never gets work
    default = { exec_time = 1.0, power_usage = 1.0 }
    TENSOR_FLOAT32 = { exec_time = 0.5, power_usage = 0.4 }       # also relaxed (tensors), relaxed_scalar, IF, WHILE

    [costs]                         # in the durations that the device reports
    launch_us = 80.0
    copy_gb_per_s = 8.0

    [cache]
    model_files = 1
    data_files = 0

    [memory]
    allocates = true
    alignment = 64
    padding = 64

    [faults]
    compile = "OP_FAILED"           # every compilation ends with this result code
    execute = "OP_FAILED"           # every execution ends with this result code
    good_executions = 0             # number of executions that succeed first
    dies_after = 3                  # number of executions; then the device stops responding
    slow_s = 0.5                    # additional seconds of each execution

Results are equal to those of the CPU device, except with fp16.
"""

from __future__ import annotations

import reprlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from ortconv.choices import feature_level
from ortconv.errors import UsageError
from ortconv.nnapi import caching
from ortconv.nnapi.caching import CacheFiles
from ortconv.nnapi.codes import DeviceType, FeatureLevel, Operand, Operation, ResultCode
from ortconv.nnapi.cpu import CpuProgram, RunLimits
from ortconv.nnapi.device import (
    CPU_PERFORMANCE,
    MAX_CACHE_FILES,
    Capabilities,
    Device,
    Executed,
    Performance,
    PreparedModel,
    PrepareOptions,
    Timing,
)
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.model import Model, ModelOperation
from ortconv.nnapi.operand import OperandType
from ortconv.nnapi.running import OperandValue, Room

KEYS: dict[str, frozenset[str] | None] = {
    "accept": frozenset({"operations", "types", "refuse"}),
    "performance": None,
    "costs": frozenset({"launch_us", "copy_gb_per_s"}),
    "cache": frozenset({"model_files", "data_files"}),
    "memory": frozenset({"allocates", "alignment", "padding"}),
    "faults": frozenset({"compile", "execute", "good_executions", "dies_after", "slow_s"}),
}
LARGEST = 1e15
"""Upper limit of all numbers in a profile."""
PLAIN = frozenset({"name", "version", "type", "feature_level", "fp16"})


@dataclass(frozen=True, slots=True)
class Faults:
    compile: ResultCode | None = None
    execute: ResultCode | None = None
    good_executions: int = 0
    dies_after: int | None = None
    slow_s: float = 0.0


class Metered(NamedTuple):
    """An execution on a simulated device. Times are in seconds; the first two are measured, the others simulated."""

    seconds: float
    computing: float
    """The part of `seconds` spent in operations."""
    on_hardware: float
    """`computing` scaled by the profile's performance figures."""
    overhead: float
    """Launch, copies and the profile's delay."""


class SimulatedDevice(Device):
    """A device that computes in the same way as the CPU. Its profile defines its supported operations, costs and failures."""

    is_ours = True

    def __init__(self, profile: Mapping[str, Any], source: str = "profile") -> None:
        reader = _Profile(profile, source)
        self.name = reader.name
        self.version = str(profile.get("version", "1.0"))
        self.type = reader.member(DeviceType, profile.get("type", "ACCELERATOR"))
        self.level = reader.level(profile.get("feature_level", 8))
        self.fp16 = bool(profile.get("fp16", False))
        self.capabilities = reader.capabilities()
        self.cache_files = (reader.cache_files("model_files"), reader.cache_files("data_files"))
        self.alignment = reader.integer("memory", "alignment", 64)
        self.padding = reader.integer("memory", "padding", 64)
        self.launch_us = reader.number("costs", "launch_us", 0.0)
        self.copy_gb_per_s = reader.number("costs", "copy_gb_per_s", 0.0)
        self.faults = reader.faults()
        self._allocates = bool(reader.get("memory", "allocates", False))
        self._operations = reader.members(Operation, "operations")
        self._refused = reader.members(Operation, "refuse") or frozenset()
        self._types = reader.members(Operand, "types")
        self.meter: list[Metered] | None = None
        """The list that records executions, while `metered` is active."""
        self._executions = 0
        self._dead = False
        self._lock = threading.Lock()

    @property
    def has_fences(self) -> bool:
        return self.feature_level >= FeatureLevel.LEVEL_4

    def supported_operations(self, model: Model) -> list[bool]:
        self._check_alive(ResultCode.UNAVAILABLE_DEVICE)
        return [self._takes(model, operation) for operation in model.operations]

    def takes(self, code: Operation, kind: Operand) -> bool:
        if code in self._refused or code.is_foreign:
            return False
        if self._operations is not None and code not in self._operations:
            return False
        return code.is_control_flow or self._types is None or kind in self._types

    def _takes(self, model: Model, operation: ModelOperation) -> bool:
        if operation.code.is_foreign:
            return False
        main = model.operands[operation.inputs[main_operand(operation.code)]]
        inside = ((one, each) for one in model.inner_models(operation) for each in one.operations)
        return self.takes(operation.code, main.kind.type) and all(self._takes(*pair) for pair in inside)

    def prepare(self, model: Model, options: PrepareOptions) -> PreparedModel:
        self._check_alive(ResultCode.UNAVAILABLE_DEVICE)
        if self.faults.compile is not None:
            raise NnapiError(self.faults.compile, f"{self.name} fails to compile, as its profile says")
        options.check_deadline()
        if options.cache is not None:
            caching.save(model, options.cache, self._owner)
        return SimulatedModel(self, model)

    def prepare_from_cache(self, cache: CacheFiles, options: PrepareOptions) -> PreparedModel:
        self._check_alive(ResultCode.UNAVAILABLE_DEVICE)
        return SimulatedModel(self, caching.load(cache, self._owner))

    @property
    def _owner(self) -> str:
        return f"{self.name} {self.version}"

    def allocates(self, kind: OperandType) -> bool:
        return self._allocates

    def begin_execution(self, limits: RunLimits) -> None:
        """Count an execution, and trigger the faults of the profile."""
        with self._lock:
            self._executions += 1
            count = self._executions
            if self.faults.dies_after is not None and count > self.faults.dies_after:
                self._dead = True
        self._check_alive(ResultCode.DEAD_OBJECT)
        if self.faults.slow_s:
            _sleep(self.faults.slow_s, limits)
        if self.faults.execute is not None and count > self.faults.good_executions:
            raise NnapiError(self.faults.execute, f"{self.name} fails to execute, as its profile says")

    def _check_alive(self, code: ResultCode) -> None:
        if self._dead:
            raise NnapiError(code, f"{self.name} is dead")


def main_operand(code: Operation) -> int:
    """The index of the input whose type determines support: the first one, or for SELECT, after its mask, the second."""
    return 1 if code is Operation.SELECT else 0


def _sleep(seconds: float, limits: RunLimits) -> None:
    """Sleep. Raises MISSED_DEADLINE_TRANSIENT if the deadline comes first."""
    left = seconds if limits.deadline is None else min(seconds, max(0.0, limits.deadline - time.perf_counter()))
    time.sleep(left)
    limits.check(ResultCode.MISSED_DEADLINE_TRANSIENT)


class SimulatedModel(PreparedModel):
    def __init__(self, device: SimulatedDevice, model: Model) -> None:
        self.device = device
        self.program = CpuProgram(model, half=device.fp16 and model.relaxed)

    def execute(self, inputs: Sequence[OperandValue], room: Room, limits: RunLimits, measure: bool = False) -> Executed:
        start, meter = time.perf_counter(), self.device.meter
        self.device.begin_execution(limits)
        if not measure and meter is None:
            return self.program.run(inputs, room, limits), Timing()
        here = simulated = 0.0

        def add(model: Model, operation: ModelOperation, seconds: float) -> None:
            nonlocal here, simulated
            first = model.operands[operation.inputs[0]].kind.type
            if not operation.code.is_control_flow:
                here += seconds
                simulated += seconds * self.device.capabilities.of(first, model.relaxed).exec_time

        results = self.program.run(inputs, room, limits, add)
        overhead = self._overhead(sum(one.nbytes for one in (*inputs, *results) if one is not None))
        if meter is not None:
            meter.append(Metered(time.perf_counter() - start, here, simulated, overhead * 1e-9))
        on_hardware = int(simulated * 1e9)
        return results, Timing(on_hardware, on_hardware + overhead) if measure else Timing()

    def _overhead(self, moved: int) -> int:
        """Nanoseconds for the launch, the copied bytes, and the profile's delay."""
        copying = moved / self.device.copy_gb_per_s if self.device.copy_gb_per_s else 0.0
        return int(self.device.launch_us * 1e3 + copying + self.device.faults.slow_s * 1e9)


class _Profile:
    """Reads a profile. Raises UsageError for unknown keys and values."""

    def __init__(self, profile: Mapping[str, Any], source: str) -> None:
        self.profile = profile
        self.source = source
        if not isinstance(profile.get("name"), str) or not profile["name"]:
            raise self.error("a device needs a name")
        for key, value in profile.items():
            if key in KEYS:
                self._check_table(key, value)
            elif key not in PLAIN:
                raise self.error(f"there is no setting '{key}'")
            elif isinstance(value, Mapping | list):
                raise self.error(f"'{key}' is {reprlib.repr(value)}, not one value")
        self.name = str(profile["name"])

    def _check_table(self, key: str, table: Any) -> None:
        if not isinstance(table, Mapping):
            raise self.error(f"'{key}' is a table")
        allowed = KEYS[key]
        for inner in () if allowed is None else set(table) - allowed:
            raise self.error(f"there is no setting '{key}.{inner}'")

    def error(self, message: str) -> UsageError:
        return UsageError(message, file=self.source, hint="ortconv/nnapi/simulated.py lists the settings of a profile")

    def get(self, table: str, key: str, default: Any) -> Any:
        return self.profile.get(table, {}).get(key, default)

    def number(self, table: str, key: str, default: float) -> float:
        """A number that is not negative."""
        found = self.get(table, key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < LARGEST:
            raise self.error(f"{table}.{key} is {reprlib.repr(found)}, not a number from 0 to {LARGEST:g}")
        return found

    def integer(self, table: str, key: str, default: int) -> int:
        found = self.number(table, key, default)
        if not isinstance(found, int):
            raise self.error(f"{table}.{key} is {reprlib.repr(found)}, not a whole number")
        return found

    def cache_files(self, key: str) -> int:
        found = self.integer("cache", key, 0)
        if found > MAX_CACHE_FILES:
            raise self.error(f"cache.{key} is {found}; a device has at most {MAX_CACHE_FILES} files of a kind")
        return found

    def member(self, enum: Any, name: Any) -> Any:
        try:
            return enum[name]
        except (KeyError, TypeError):
            raise self.error(f"{reprlib.repr(name)} is not a {enum.__name__}") from None

    def members(self, enum: Any, key: str) -> frozenset[Any] | None:
        names = self.get("accept", key, None)
        if names is not None and not isinstance(names, list):
            raise self.error(f"accept.{key} is a list")
        return None if names is None else frozenset(self.member(enum, name) for name in names)

    def level(self, number: Any) -> FeatureLevel:
        try:
            return FeatureLevel(feature_level(number))
        except UsageError as error:
            raise error.at(file=self.source) from None

    def capabilities(self) -> Capabilities:
        entries = {key: self.performance(key, value) for key, value in self.profile.get("performance", {}).items()}
        if not entries:
            return Capabilities.uniform(CPU_PERFORMANCE)
        default = entries.pop("default", None)
        named = {name: entries.pop(key, default) for name, key in SPECIAL.items()}
        types = {} if default is None else dict.fromkeys(Operand, default)
        types |= {self.member(Operand, key): value for key, value in entries.items()}
        return Capabilities(types, **{name: value for name, value in named.items() if value is not None})

    def performance(self, key: str, value: Any) -> Performance:
        try:
            found = Performance(float(value["exec_time"]), float(value["power_usage"]))
        except (TypeError, KeyError, ValueError, OverflowError):
            raise self.error(f"performance.{key} needs exec_time and power_usage") from None
        if not all(0 < figure < LARGEST for figure in (found.exec_time, found.power_usage)):
            raise self.error(f"performance.{key}: figures must be above 0 and below {LARGEST:g}")
        return found

    def faults(self) -> Faults:
        table = self.profile.get("faults", {})
        codes = {key: self.member(ResultCode, table[key]) for key in ("compile", "execute") if key in table}
        return Faults(
            **codes,
            good_executions=self.integer("faults", "good_executions", 0),
            dies_after=self.integer("faults", "dies_after", 0) if "dies_after" in table else None,
            slow_s=self.number("faults", "slow_s", 0.0),
        )


SPECIAL = {"relaxed_tensor": "relaxed", "relaxed_scalar": "relaxed_scalar", "if_": "IF", "while_": "WHILE"}
"""Fields of Capabilities besides the types of operands, and their keys in a profile."""


@contextmanager
def metered(devices: Iterable[Device]) -> Iterator[list[Metered]]:
    """Context manager that yields a list of all executions on simulated devices within the block."""
    found: list[Metered] = []
    simulated = [device for device in devices if isinstance(device, SimulatedDevice)]
    for device in simulated:
        device.meter = found
    try:
        yield found
    finally:
        for device in simulated:
            device.meter = None
