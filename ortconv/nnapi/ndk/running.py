"""Rows of the table of NDK functions: compilations, executions, bursts and events."""

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
from ortconv.nnapi.ndk.table import Failed, frees, ndk, same
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


frees(1, "void ANeuralNetworksCompilation_free(ANeuralNetworksCompilation* compilation)", Compilation)

same(
    1,
    "int ANeuralNetworksCompilation_setPreference(ANeuralNetworksCompilation* compilation, int32_t preference)",
    Compilation.set_preference,
)

same(
    4,
    "int ANeuralNetworksCompilation_setPriority(ANeuralNetworksCompilation* compilation, int priority)",
    Compilation.set_priority,
)

same(
    4,
    "int ANeuralNetworksCompilation_setTimeout(ANeuralNetworksCompilation* compilation, uint64_t duration)",
    Compilation.set_timeout,
)

same(
    3,
    "int ANeuralNetworksCompilation_setCaching(ANeuralNetworksCompilation* compilation, const char* cacheDir, "
    "const uint8_t* token)",
    Compilation.set_caching,
)

same(1, "int ANeuralNetworksCompilation_finish(ANeuralNetworksCompilation* compilation)", Compilation.finish)

same(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* alignment)",
    Compilation.get_preferred_memory_alignment_for_input,
)

same(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryPaddingForInput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* padding)",
    Compilation.get_preferred_memory_padding_for_input,
)

same(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForOutput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* alignment)",
    Compilation.get_preferred_memory_alignment_for_output,
)

same(
    5,
    "int ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput(const ANeuralNetworksCompilation* compilation, "
    "uint32_t index, uint32_t* padding)",
    Compilation.get_preferred_memory_padding_for_output,
)


# ------------------------------------------------------------------------------------------------------------- executions


@ndk(
    1,
    "int ANeuralNetworksExecution_create(ANeuralNetworksCompilation* compilation, ANeuralNetworksExecution** execution)",
    "Execution",
    otherwise=0,
)
def execution_create(compilation: Compilation) -> Execution:
    return Execution(compilation)


frees(1, "void ANeuralNetworksExecution_free(ANeuralNetworksExecution* execution)", Execution)


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


same(
    5,
    "int ANeuralNetworksExecution_setReusable(ANeuralNetworksExecution* execution, bool reusable)",
    Execution.set_reusable,
)

same(
    5,
    "int ANeuralNetworksExecution_enableInputAndOutputPadding(ANeuralNetworksExecution* execution, bool enable)",
    Execution.enable_input_and_output_padding,
)

same(
    3,
    "int ANeuralNetworksExecution_setMeasureTiming(ANeuralNetworksExecution* execution, bool measure)",
    Execution.set_measure_timing,
)

same(
    4,
    "int ANeuralNetworksExecution_setTimeout(ANeuralNetworksExecution* execution, uint64_t duration)",
    Execution.set_timeout,
)

same(
    4,
    "int ANeuralNetworksExecution_setLoopTimeout(ANeuralNetworksExecution* execution, uint64_t duration)",
    Execution.set_loop_timeout,
)

same(3, "int ANeuralNetworksExecution_compute(ANeuralNetworksExecution* execution)", Execution.compute)

same(
    1,
    "int ANeuralNetworksExecution_startCompute(ANeuralNetworksExecution* execution, ANeuralNetworksEvent** event)",
    Execution.start_compute,
    otherwise=0,
)

same(
    4,
    "int ANeuralNetworksExecution_startComputeWithDependencies(ANeuralNetworksExecution* execution, "
    "const ANeuralNetworksEvent* const* dependencies, uint32_t numOfDependencies, uint64_t duration, "
    "ANeuralNetworksEvent** event)",
    Execution.start_compute_with_dependencies,
    optional=("dependencies",),
    otherwise=0,
)


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


same(
    3,
    "int ANeuralNetworksExecution_getDuration(const ANeuralNetworksExecution* execution, int32_t durationCode, "
    "uint64_t* duration)",
    Execution.get_duration,
    otherwise=NO_DURATION,
)


# ------------------------------------------------------------------------------------------------------ bursts and events


@ndk(
    3,
    "int ANeuralNetworksBurst_create(ANeuralNetworksCompilation* compilation, ANeuralNetworksBurst** burst)",
    "Burst",
    otherwise=0,
)
def burst_create(compilation: Compilation) -> Burst:
    return Burst(compilation)


frees(3, "void ANeuralNetworksBurst_free(ANeuralNetworksBurst* burst)", Burst)

same(1, "int ANeuralNetworksEvent_wait(ANeuralNetworksEvent* event)", Event.wait)

frees(1, "void ANeuralNetworksEvent_free(ANeuralNetworksEvent* event)", Event)

same(
    4,
    "int ANeuralNetworksEvent_createFromSyncFenceFd(int sync_fence_fd, ANeuralNetworksEvent** event)",
    Event.from_sync_fence_fd,
    otherwise=0,
)

same(
    4,
    "int ANeuralNetworksEvent_getSyncFenceFd(const ANeuralNetworksEvent* event, int* sync_fence_fd)",
    Event.get_sync_fence_fd,
    otherwise=-1,
)
