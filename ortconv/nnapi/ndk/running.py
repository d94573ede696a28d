"""Rows of the table: compilations, executions, bursts and events."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.ir.tensor import Array
from ortconv.nnapi.burst import Burst
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.device import Device
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.event import Event
from ortconv.nnapi.execution import NO_DURATION, Execution
from ortconv.nnapi.memory import Memory
from ortconv.nnapi.model import Model
from ortconv.nnapi.ndk.table import Failed, free, ndk
from ortconv.nnapi.operand import OperandType

# ----------------------------------------------------------------------------------------------------------- compilations


@ndk(
    1,
    "int ANeuralNetworksCompilation_create(ANeuralNetworksModel* model, ANeuralNetworksCompilation** compilation)",
    "Compilation",
    otherwise=0,
)
def compilation_create(model: Model) -> Compilation:
    return Compilation(model)


@ndk(
    3,
    "int ANeuralNetworksCompilation_createForDevices(ANeuralNetworksModel* model, "
    "const ANeuralNetworksDevice* const* devices, uint32_t numDevices, ANeuralNetworksCompilation** compilation)",
    "Compilation",
    otherwise=0,
)
def compilation_create_for_devices(model: Model, devices: Sequence[Device]) -> Compilation:
    return Compilation(model, devices)


@ndk(
    1,
    "void ANeuralNetworksCompilation_free(ANeuralNetworksCompilation* compilation)",
    "Compilation.close",
    optional=("compilation",),
)
def compilation_free(compilation: int) -> None:
    free(compilation, Compilation)


@ndk(
    1,
    "int ANeuralNetworksCompilation_setPreference(ANeuralNetworksCompilation* compilation, int32_t preference)",
    Compilation.set_preference,
)
def set_preference(compilation: Compilation, preference: int) -> None:
    compilation.set_preference(preference)


@ndk(
    4,
    "int ANeuralNetworksCompilation_setPriority(ANeuralNetworksCompilation* compilation, int priority)",
    Compilation.set_priority,
)
def set_priority(compilation: Compilation, priority: int) -> None:
    compilation.set_priority(priority)


@ndk(
    4,
    "int ANeuralNetworksCompilation_setTimeout(ANeuralNetworksCompilation* compilation, uint64_t duration)",
    Compilation.set_timeout,
)
def compilation_set_timeout(compilation: Compilation, nanoseconds: int) -> None:
    compilation.set_timeout(nanoseconds)


@ndk(
    3,
    "int ANeuralNetworksCompilation_setCaching(ANeuralNetworksCompilation* compilation, const char* cacheDir, "
    "const uint8_t* token)",
    Compilation.set_caching,
)
def set_caching(compilation: Compilation, directory: str, token: bytes) -> None:
    compilation.set_caching(directory, token)


@ndk(1, "int ANeuralNetworksCompilation_finish(ANeuralNetworksCompilation* compilation)", Compilation.finish)
def compilation_finish(compilation: Compilation) -> None:
    compilation.finish()


@ndk(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* alignment)",
    Compilation.get_preferred_memory_alignment_for_input,
)
def alignment_for_input(compilation: Compilation, index: int) -> int:
    return compilation.get_preferred_memory_alignment_for_input(index)


@ndk(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryPaddingForInput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* padding)",
    Compilation.get_preferred_memory_padding_for_input,
)
def padding_for_input(compilation: Compilation, index: int) -> int:
    return compilation.get_preferred_memory_padding_for_input(index)


@ndk(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForOutput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* alignment)",
    Compilation.get_preferred_memory_alignment_for_output,
)
def alignment_for_output(compilation: Compilation, index: int) -> int:
    return compilation.get_preferred_memory_alignment_for_output(index)


@ndk(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* padding)",
    Compilation.get_preferred_memory_padding_for_output,
)
def padding_for_output(compilation: Compilation, index: int) -> int:
    return compilation.get_preferred_memory_padding_for_output(index)


# ------------------------------------------------------------------------------------------------------------- executions


@ndk(
    1,
    "int ANeuralNetworksExecution_create(ANeuralNetworksCompilation* compilation, ANeuralNetworksExecution** execution)",
    "Execution",
    otherwise=0,
)
def execution_create(compilation: Compilation) -> Execution:
    return Execution(compilation)


@ndk(
    1,
    "void ANeuralNetworksExecution_free(ANeuralNetworksExecution* execution)",
    "Execution.close",
    optional=("execution",),
)
def execution_free(execution: int) -> None:
    free(execution, Execution)


@ndk(
    1,
    "int ANeuralNetworksExecution_setInput(ANeuralNetworksExecution* execution, int32_t index, "
    "const ANeuralNetworksOperandType* type, const void* buffer, size_t length)",
    Execution.set_input,
    optional=("type", "buffer"),
)
def set_input(execution: Execution, index: int, kind: OperandType | None, buffer: Array | None) -> None:
    execution.set_input_bytes(index, buffer, kind)


@ndk(
    1,
    "int ANeuralNetworksExecution_setInputFromMemory(ANeuralNetworksExecution* execution, int32_t index, "
    "const ANeuralNetworksOperandType* type, const ANeuralNetworksMemory* memory, size_t offset, size_t length)",
    Execution.set_input_from_memory,
    optional=("type",),
)
def set_input_from_memory(
    execution: Execution, index: int, kind: OperandType | None, memory: Memory, offset: int, length: int
) -> None:
    execution.set_input_from_memory(index, memory, offset, length, kind)


@ndk(
    1,
    "int ANeuralNetworksExecution_setOutput(ANeuralNetworksExecution* execution, int32_t index, "
    "const ANeuralNetworksOperandType* type, void* buffer, size_t length)",
    Execution.set_output,
    optional=("type", "buffer"),
)
def set_output(execution: Execution, index: int, kind: OperandType | None, buffer: Array | None) -> None:
    execution.set_output(index, buffer, kind)


@ndk(
    1,
    "int ANeuralNetworksExecution_setOutputFromMemory(ANeuralNetworksExecution* execution, int32_t index, "
    "const ANeuralNetworksOperandType* type, const ANeuralNetworksMemory* memory, size_t offset, size_t length)",
    Execution.set_output_from_memory,
    optional=("type",),
)
def set_output_from_memory(
    execution: Execution, index: int, kind: OperandType | None, memory: Memory, offset: int, length: int
) -> None:
    execution.set_output_from_memory(index, memory, offset, length, kind)


@ndk(
    5,
    "int ANeuralNetworksExecution_setReusable(ANeuralNetworksExecution* execution, bool reusable)",
    Execution.set_reusable,
)
def set_reusable(execution: Execution, reusable: bool) -> None:
    execution.set_reusable(reusable)


@ndk(
    5,
    "int ANeuralNetworksExecution_enableInputAndOutputPadding(ANeuralNetworksExecution* execution, bool enable)",
    Execution.enable_input_and_output_padding,
)
def enable_padding(execution: Execution, enable: bool) -> None:
    execution.enable_input_and_output_padding(enable)


@ndk(
    3,
    "int ANeuralNetworksExecution_setMeasureTiming(ANeuralNetworksExecution* execution, bool measure)",
    Execution.set_measure_timing,
)
def set_measure_timing(execution: Execution, measure: bool) -> None:
    execution.set_measure_timing(measure)


@ndk(
    4,
    "int ANeuralNetworksExecution_setTimeout(ANeuralNetworksExecution* execution, uint64_t duration)",
    Execution.set_timeout,
)
def execution_set_timeout(execution: Execution, nanoseconds: int) -> None:
    execution.set_timeout(nanoseconds)


@ndk(
    4,
    "int ANeuralNetworksExecution_setLoopTimeout(ANeuralNetworksExecution* execution, uint64_t duration)",
    Execution.set_loop_timeout,
)
def set_loop_timeout(execution: Execution, nanoseconds: int) -> None:
    execution.set_loop_timeout(nanoseconds)


@ndk(3, "int ANeuralNetworksExecution_compute(ANeuralNetworksExecution* execution)", Execution.compute)
def compute(execution: Execution) -> None:
    execution.compute()


@ndk(
    1,
    "int ANeuralNetworksExecution_startCompute(ANeuralNetworksExecution* execution, ANeuralNetworksEvent** event)",
    Execution.start_compute,
    otherwise=0,
)
def start_compute(execution: Execution) -> Event:
    return execution.start_compute()


@ndk(
    4,
    "int ANeuralNetworksExecution_startComputeWithDependencies(ANeuralNetworksExecution* execution, "
    "const ANeuralNetworksEvent* const* dependencies, uint32_t numOfDependencies, uint64_t duration, "
    "ANeuralNetworksEvent** event)",
    Execution.start_compute_with_dependencies,
    optional=("dependencies",),
    otherwise=0,
)
def start_compute_with_dependencies(execution: Execution, events: Sequence[Event], duration: int) -> Event:
    return execution.start_compute_with_dependencies(events, duration)


@ndk(
    3,
    "int ANeuralNetworksExecution_burstCompute(ANeuralNetworksExecution* execution, ANeuralNetworksBurst* burst)",
    Burst.compute,
)
def burst_compute(execution: Execution, burst: Burst) -> None:
    burst.compute(execution)


@ndk(
    3,
    "int ANeuralNetworksExecution_getOutputOperandRank(ANeuralNetworksExecution* execution, int32_t index, uint32_t* rank)",
    Execution.get_output_operand_rank,
)
def output_rank(execution: Execution, index: int) -> int | Failed:
    found = output_dimensions(execution, index)
    return Failed(found.code, len(found.value)) if isinstance(found, Failed) else len(found)  # type: ignore[arg-type]


@ndk(
    3,
    "int ANeuralNetworksExecution_getOutputOperandDimensions(ANeuralNetworksExecution* execution, int32_t index, "
    "uint32_t* dimensions)",
    Execution.get_output_operand_dimensions,
)
def output_dimensions(execution: Execution, index: int) -> Sequence[int] | Failed:
    try:
        found = execution.get_output_operand_dimensions(index)
    except NnapiError as error:
        if error.dimensions is None:
            raise
        return Failed(error.code, error.dimensions)
    return found


@ndk(
    3,
    "int ANeuralNetworksExecution_getDuration(const ANeuralNetworksExecution* execution, int32_t durationCode, "
    "uint64_t* duration)",
    Execution.get_duration,
    otherwise=NO_DURATION,
)
def get_duration(execution: Execution, code: int) -> int:
    return execution.get_duration(code)


# ------------------------------------------------------------------------------------------------------ bursts and events


@ndk(
    3,
    "int ANeuralNetworksBurst_create(ANeuralNetworksCompilation* compilation, ANeuralNetworksBurst** burst)",
    "Burst",
    otherwise=0,
)
def burst_create(compilation: Compilation) -> Burst:
    return Burst(compilation)


@ndk(3, "void ANeuralNetworksBurst_free(ANeuralNetworksBurst* burst)", "Burst.close", optional=("burst",))
def burst_free(burst: int) -> None:
    free(burst, Burst)


@ndk(1, "int ANeuralNetworksEvent_wait(ANeuralNetworksEvent* event)", Event.wait)
def event_wait(event: Event) -> None:
    event.wait()


@ndk(1, "void ANeuralNetworksEvent_free(ANeuralNetworksEvent* event)", "Event.close", optional=("event",))
def event_free(event: int) -> None:
    free(event, Event)


@ndk(
    4,
    "int ANeuralNetworksEvent_createFromSyncFenceFd(int sync_fence_fd, ANeuralNetworksEvent** event)",
    Event.from_sync_fence_fd,
    otherwise=0,
)
def event_from_sync_fence_fd(fd: int) -> Event:
    return Event.from_sync_fence_fd(fd)


@ndk(
    4,
    "int ANeuralNetworksEvent_getSyncFenceFd(const ANeuralNetworksEvent* event, int* sync_fence_fd)",
    Event.get_sync_fence_fd,
    otherwise=-1,
)
def get_sync_fence_fd(event: Event) -> int:
    return event.get_sync_fence_fd()
