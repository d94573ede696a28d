"""Compilations: a model prepared for devices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ortconv.nnapi.answers import prepared_model
from ortconv.nnapi.arguments import Nanoseconds
from ortconv.nnapi.caching import TOKEN_LENGTH, CacheFiles, derived_token
from ortconv.nnapi.codes import Preference, Priority, ResultCode
from ortconv.nnapi.device import Device, PreparedModel, PrepareOptions
from ortconv.nnapi.driver_guard import driver
from ortconv.nnapi.errors import NnapiError, bad_data, bad_state
from ortconv.nnapi.extension import add_attribute
from ortconv.nnapi.handle import Handle, api
from ortconv.nnapi.manager import check_devices, get_devices
from ortconv.nnapi.model import Model
from ortconv.nnapi.partitioning import PLAN, PartitionSteps, best_devices, partition
from ortconv.nnapi.plan import CompoundPlan, ExecutionPlan, SimplePlan, layer_of
from ortconv.nnapi.properties import PartitioningMode, properties
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.tracing.timing import mark

LEAST_ALIGNMENT = 16
"""In bytes: suits every device (kMinMemoryAlignment in Android's common/types/include/nnapi/Types.h)."""
_log = partial(vlog.message, vlog.COMPILATION)
CLIENT_FAULTS = (ResultCode.UNEXPECTED_NULL, ResultCode.BAD_DATA)


class Compilation(Handle):
    """A finished model and its compilation settings. Exactly the given `devices` are used, and the CPU does not replace
    them. Without `devices`, all devices of the runtime are used, and the CPU replaces one that fails.
    """

    @api("PC")
    def __init__(self, model: Model, devices: Sequence[Device] | None = None) -> None:
        if not model.finished or not model.valid:
            raise bad_state("the model is not finished")
        if devices is not None:
            check_devices(devices)
        self.model = model
        self.is_explicit = devices is not None
        self.devices = list(get_devices() if devices is None else devices)
        self.partitioning = PartitioningMode.WITHOUT_FALLBACK if self.is_explicit else properties().partition
        self.preference = Preference.FAST_SINGLE_ANSWER
        self.priority = Priority.MEDIUM
        self.attributes: dict[tuple[str, int], bytes] = {}
        """Attributes of extensions, by the extension's name and the attribute's code."""
        self.finished = False
        self._timeout: int | None = None
        self._cache: tuple[str, bytes] | None = None
        self._plan: ExecutionPlan | None = None

    @api("PC")
    def set_preference(self, preference: int) -> None:
        self._must_be_open()
        if preference not in tuple(Preference):
            raise bad_data(f"{preference} is not a preference")
        self.preference = Preference(preference)

    @api("PC")
    def set_priority(self, priority: int) -> None:
        self._must_be_open()
        if priority not in tuple(Priority):
            raise bad_data(f"{priority} is not a priority")
        self.priority = Priority(priority)

    @api("PC")
    def set_timeout(self, nanoseconds: Nanoseconds) -> None:
        """Set the time limit of the compilation; 0 means none. Raises BAD_DATA unless one device was named."""
        self._must_be_open()
        self.require_single("a timeout")
        self._timeout = nanoseconds or None

    @api("PC")
    def set_caching(self, directory: str | os.PathLike[str], token: bytes) -> None:
        """Set the directory where devices may store prepared models. Different models need different tokens, of 32 bytes."""
        self._must_be_open()
        if len(token) != TOKEN_LENGTH:
            raise bad_data(f"a token has {TOKEN_LENGTH} bytes, not {len(token)}")
        self._cache = os.path.join(directory, ""), token

    @api("PC")
    def add_extension_attribute(self, name: str, code: int, data: bytes | None) -> None:
        """Pass an attribute, defined by the extension `name`, to the driver. Raises BAD_DATA unless one device was named."""
        self._must_be_open()
        self.require_single("an attribute")
        add_attribute(self.attributes, name, code, data)

    @api("PC")
    def finish(self) -> None:
        """Choose devices and prepare the model on them. After an error, the compilation cannot be used."""
        self._must_be_open()
        self.finished = True
        deadline = None if self._timeout is None else time.perf_counter() + self._timeout * 1e-9
        if self.partitioning is not PartitioningMode.OFF:
            try:
                self._plan = self._partitioned(deadline)
                return
            except NnapiError as error:
                is_foreign = any(one.code.is_foreign for one in self.model.operations)
                if error.code in CLIENT_FAULTS or not self.allows_fallback or is_foreign:
                    raise
                vlog.warning("CompilationBuilder", "{}", error)
        _log("CompilationBuilder", "CompilationBuilder::finish with CPU fallback")
        self._plan = self.plan_for_cpu()

    def plan_for_cpu(self) -> ExecutionPlan:
        """A plan that runs the whole model on the CPU, with default settings."""
        cpu = get_devices()[-1]
        return SimplePlan(self.model, cpu, cpu.prepare(self.model, PrepareOptions()))

    def _free(self) -> None:
        """Release the plan. Executions that were created before keep it."""
        self.finished, self._plan = True, None

    @property
    def allows_fallback(self) -> bool:
        return self.partitioning is PartitioningMode.WITH_FALLBACK

    def require_single(self, what: str) -> None:
        """Raise BAD_DATA unless exactly one device was named."""
        if not self.is_explicit or len(self.devices) != 1:
            raise bad_data(f"{what} needs a compilation for exactly one named device")

    @property
    def ready(self) -> bool:
        return self._plan is not None

    @property
    def plan(self) -> ExecutionPlan:
        """The plan. Raises BAD_STATE before `finish`."""
        if self._plan is None:
            raise bad_state(f"the compilation {'failed or is closed' if self.finished else 'is not finished'}")
        return self._plan

    @api("PC")
    def get_preferred_memory_alignment_for_input(self, index: int) -> int:
        """The preferred alignment in bytes."""
        return self._preferred(index, lambda device: device.alignment, LEAST_ALIGNMENT, is_output=False)

    @api("PC")
    def get_preferred_memory_padding_for_input(self, index: int) -> int:
        return self._preferred(index, lambda device: device.padding, 1, is_output=False)

    @api("PC")
    def get_preferred_memory_alignment_for_output(self, index: int) -> int:
        return self._preferred(index, lambda device: device.alignment, LEAST_ALIGNMENT, is_output=True)

    @api("PC")
    def get_preferred_memory_padding_for_output(self, index: int) -> int:
        return self._preferred(index, lambda device: device.padding, 1, is_output=True)

    def _preferred(self, index: int, of: Callable[[Device], int], least: int, *, is_output: bool) -> int:
        plan = self.plan
        self.model.argument_type(index, is_output)  # raises for an index without an argument
        return max([least, *(of(device) for device in plan.devices_of(is_output, index))])

    def _partitioned(self, deadline: float | None) -> ExecutionPlan:
        text = "ModelBuilder::partitionTheWork: sourceModelIndex = 0, deviceCount = {}, operationCount = {}"
        _log(PLAN, text, len(self.devices), len(self.model.operations))
        best = best_devices(self.model, self.devices, self.preference)
        if len(set(best)) == 1 and best[0] < len(self.devices):
            return self._simple(best[0], deadline)
        steps = PartitionSteps(self.devices, self.preference)
        partition(self.model, steps, best)
        steps.describe()
        plan = CompoundPlan(self.model, steps)
        for step in plan.model_steps:
            operations = [(step.source, index) for index in step.operations]
            step.prepared = self._prepare(step.device, step.model, None, operations)
        vlog.info(PLAN, "ExecutionPlan::CompoundBody::finish: compilation finished successfully")
        return plan

    def _simple(self, index: int, deadline: float | None) -> ExecutionPlan:
        device = self.devices[index]
        _log(PLAN, "ModelBuilder::partitionTheWork: only one best device: {} = {}", index, device.name)
        _log(PLAN, "SIMPLE for {}", device.name)
        prepared = self._prepare(device, self.model, deadline, ())
        vlog.info(PLAN, "ExecutionPlan::SimpleBody::finish: compilation finished successfully on {}", device.name)
        return SimplePlan(self.model, device, prepared)

    def _prepare(
        self, device: Device, model: Model, deadline: float | None, operations: Sequence[tuple[int, int]]
    ) -> PreparedModel:
        """The prepared model, loaded from the cache if possible."""
        cache = None
        if self._cache is not None and any(device.cache_files):
            directory, token = self._cache
            token = derived_token(token, device, self.preference, self.priority, operations, self.attributes)
            cache = CacheFiles.of(directory, token, device)
        options = PrepareOptions(self.preference, self.priority, deadline, None, self.attributes)
        if cache is not None and all(path.exists() for path in cache.paths):
            try:
                with mark(layer_of(device), "PC", device.name), driver(device, "prepare_from_cache"):
                    return prepared_model(device.prepare_from_cache(cache, options))
            except NnapiError as error:
                vlog.error("Manager", "prepareModelFromCache failed: {}", error)
        if cache is not None and not cache.create():
            cache = None
        with mark(layer_of(device), "PC", device.name), driver(device, "prepare"):
            return prepared_model(device.prepare(model, replace(options, cache=cache)))

    def _must_be_open(self) -> None:
        if self.finished:
            raise bad_state("the compilation is finished")
