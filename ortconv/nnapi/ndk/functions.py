"""The NDK's functions: their C declarations, and the functions in Python that they call.

Headers, the shared library and docs/nnapi_functions.md are generated from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.event import Event
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.hardware_buffer import HardwareBuffer
from ortconv.nnapi.ndk.calls import Failed, NdkFunction, free
from ortconv.nnapi.ndk.signature import Signature

ROWS = """
3 int ANeuralNetworks_getDeviceCount(uint32_t* numDevices) -> get_device_count
3 int ANeuralNetworks_getDevice(uint32_t devIndex, ANeuralNetworksDevice** device) -> get_device
3 int ANeuralNetworksDevice_getName(const ANeuralNetworksDevice* device, const char** name) -> Device.name
3 int ANeuralNetworksDevice_getVersion(const ANeuralNetworksDevice* device, const char** version) -> Device.version
3 int ANeuralNetworksDevice_getType(const ANeuralNetworksDevice* device, int32_t* type) -> Device.type
3 int ANeuralNetworksDevice_getFeatureLevel(const ANeuralNetworksDevice* device,
    int64_t* featureLevel) -> Device.feature_level
4 int ANeuralNetworksDevice_wait(const ANeuralNetworksDevice* device) -> Device.wait
4 uint64_t ANeuralNetworks_getDefaultLoopTimeout(void) -> get_default_loop_timeout
4 uint64_t ANeuralNetworks_getMaximumLoopTimeout(void) -> get_maximum_loop_timeout
5 int64_t ANeuralNetworks_getRuntimeFeatureLevel(void) -> get_runtime_feature_level
1 int ANeuralNetworksModel_create(ANeuralNetworksModel** model) -> Model
1 void ANeuralNetworksModel_free(ANeuralNetworksModel* model?) -> Model.close
1 int ANeuralNetworksModel_addOperand(ANeuralNetworksModel* model,
    const ANeuralNetworksOperandType* type) -> Model.add_operand
1 int ANeuralNetworksModel_setOperandValue(ANeuralNetworksModel* model, int32_t index, const void* buffer?,
    size_t length) -> Model.set_operand_value
3 int ANeuralNetworksModel_setOperandSymmPerChannelQuantParams(ANeuralNetworksModel* model, int32_t index,
    const ANeuralNetworksSymmPerChannelQuantParams* channelQuant) -> Model.set_operand_symm_per_channel_quant_params
1 int ANeuralNetworksModel_setOperandValueFromMemory(ANeuralNetworksModel* model, int32_t index,
    const ANeuralNetworksMemory* memory, size_t offset, size_t length) -> Model.set_operand_value_from_memory
4 int ANeuralNetworksModel_setOperandValueFromModel(ANeuralNetworksModel* model, int32_t index,
    const ANeuralNetworksModel* value) -> Model.set_operand_value_from_model
1 int ANeuralNetworksModel_addOperation(ANeuralNetworksModel* model, ANeuralNetworksOperationType type,
    uint32_t inputCount, const uint32_t* inputs, uint32_t outputCount, const uint32_t* outputs) -> Model.add_operation
1 int ANeuralNetworksModel_identifyInputsAndOutputs(ANeuralNetworksModel* model, uint32_t inputCount,
    const uint32_t* inputs, uint32_t outputCount, const uint32_t* outputs) -> Model.identify_inputs_and_outputs
2 int ANeuralNetworksModel_relaxComputationFloat32toFloat16(ANeuralNetworksModel* model,
    bool allow) -> Model.relax_computation_float32_to_float16
1 int ANeuralNetworksModel_finish(ANeuralNetworksModel* model) -> Model.finish
3 int ANeuralNetworksModel_getSupportedOperationsForDevices(const ANeuralNetworksModel* model,
    const ANeuralNetworksDevice* const* devices, uint32_t numDevices,
    bool* supportedOps) -> get_supported_operations_for_devices
1 int ANeuralNetworksMemory_createFromFd(size_t size, int protect, int fd, size_t offset,
    ANeuralNetworksMemory** memory=0) -> Memory.from_fd
3 int ANeuralNetworksMemory_createFromAHardwareBuffer(const AHardwareBuffer* ahwb,
    ANeuralNetworksMemory** memory=0) -> Memory.from_hardware_buffer
4 int ANeuralNetworksMemory_createFromDesc(const ANeuralNetworksMemoryDesc* desc,
    ANeuralNetworksMemory** memory=0) -> Memory.from_desc
4 int ANeuralNetworksMemory_copy(const ANeuralNetworksMemory* src, const ANeuralNetworksMemory* dst) -> Memory.copy
1 void ANeuralNetworksMemory_free(ANeuralNetworksMemory* memory?) -> Memory.close
4 int ANeuralNetworksMemoryDesc_create(ANeuralNetworksMemoryDesc** desc=0) -> MemoryDesc
4 void ANeuralNetworksMemoryDesc_free(ANeuralNetworksMemoryDesc* desc?) -> MemoryDesc.close
4 int ANeuralNetworksMemoryDesc_addInputRole(ANeuralNetworksMemoryDesc* desc,
    const ANeuralNetworksCompilation* compilation, uint32_t index, float frequency) -> MemoryDesc.add_input_role
4 int ANeuralNetworksMemoryDesc_addOutputRole(ANeuralNetworksMemoryDesc* desc,
    const ANeuralNetworksCompilation* compilation, uint32_t index, float frequency) -> MemoryDesc.add_output_role
4 int ANeuralNetworksMemoryDesc_setDimensions(ANeuralNetworksMemoryDesc* desc, uint32_t rank,
    const uint32_t* dimensions?) -> MemoryDesc.set_dimensions
4 int ANeuralNetworksMemoryDesc_finish(ANeuralNetworksMemoryDesc* desc) -> MemoryDesc.finish
3 int AHardwareBuffer_allocate(const AHardwareBuffer_Desc* desc, AHardwareBuffer** outBuffer=0) -> HardwareBuffer
3 void AHardwareBuffer_acquire(AHardwareBuffer* buffer) -> HardwareBuffer.acquire
3 void AHardwareBuffer_release(AHardwareBuffer* buffer?) -> HardwareBuffer.close
3 void AHardwareBuffer_describe(const AHardwareBuffer* buffer, AHardwareBuffer_Desc* outDesc) -> HardwareBuffer.desc
3 int AHardwareBuffer_lock(AHardwareBuffer* buffer, uint64_t usage, int32_t fence, const ARect* rect?,
    void** outVirtualAddress=0) -> HardwareBuffer.lock
3 int AHardwareBuffer_unlock(AHardwareBuffer* buffer, int32_t* fence?) -> HardwareBuffer.lock
1 int ANeuralNetworksCompilation_create(ANeuralNetworksModel* model,
    ANeuralNetworksCompilation** compilation=0) -> Compilation
3 int ANeuralNetworksCompilation_createForDevices(ANeuralNetworksModel* model,
    const ANeuralNetworksDevice* const* devices, uint32_t numDevices,
    ANeuralNetworksCompilation** compilation=0) -> Compilation
1 void ANeuralNetworksCompilation_free(ANeuralNetworksCompilation* compilation?) -> Compilation.close
1 int ANeuralNetworksCompilation_setPreference(ANeuralNetworksCompilation* compilation,
    int32_t preference) -> Compilation.set_preference
4 int ANeuralNetworksCompilation_setPriority(ANeuralNetworksCompilation* compilation,
    int priority) -> Compilation.set_priority
4 int ANeuralNetworksCompilation_setTimeout(ANeuralNetworksCompilation* compilation,
    uint64_t duration) -> Compilation.set_timeout
3 int ANeuralNetworksCompilation_setCaching(ANeuralNetworksCompilation* compilation, const char* cacheDir,
    const uint8_t* token) -> Compilation.set_caching
1 int ANeuralNetworksCompilation_finish(ANeuralNetworksCompilation* compilation) -> Compilation.finish
5 int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput(const ANeuralNetworksCompilation* compilation,
    uint32_t index, uint32_t* alignment) -> Compilation.get_preferred_memory_alignment_for_input
5 int ANeuralNetworksCompilation_getPreferredMemoryPaddingForInput(const ANeuralNetworksCompilation* compilation,
    uint32_t index, uint32_t* padding) -> Compilation.get_preferred_memory_padding_for_input
5 int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForOutput(const ANeuralNetworksCompilation* compilation,
    uint32_t index, uint32_t* alignment) -> Compilation.get_preferred_memory_alignment_for_output
5 int ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput(const ANeuralNetworksCompilation* compilation,
    uint32_t index, uint32_t* padding) -> Compilation.get_preferred_memory_padding_for_output
1 int ANeuralNetworksExecution_create(ANeuralNetworksCompilation* compilation,
    ANeuralNetworksExecution** execution=0) -> Execution
1 void ANeuralNetworksExecution_free(ANeuralNetworksExecution* execution?) -> Execution.close
1 int ANeuralNetworksExecution_setInput(ANeuralNetworksExecution* execution, int32_t index,
    const ANeuralNetworksOperandType* type?, const void* buffer?, size_t length) -> Execution.set_input
1 int ANeuralNetworksExecution_setInputFromMemory(ANeuralNetworksExecution* execution, int32_t index,
    const ANeuralNetworksOperandType* type?, const ANeuralNetworksMemory* memory, size_t offset,
    size_t length) -> Execution.set_input_from_memory
1 int ANeuralNetworksExecution_setOutput(ANeuralNetworksExecution* execution, int32_t index,
    const ANeuralNetworksOperandType* type?, void* buffer?, size_t length) -> Execution.set_output
1 int ANeuralNetworksExecution_setOutputFromMemory(ANeuralNetworksExecution* execution, int32_t index,
    const ANeuralNetworksOperandType* type?, const ANeuralNetworksMemory* memory, size_t offset,
    size_t length) -> Execution.set_output_from_memory
5 int ANeuralNetworksExecution_setReusable(ANeuralNetworksExecution* execution, bool reusable) -> Execution.set_reusable
5 int ANeuralNetworksExecution_enableInputAndOutputPadding(ANeuralNetworksExecution* execution,
    bool enable) -> Execution.enable_input_and_output_padding
3 int ANeuralNetworksExecution_setMeasureTiming(ANeuralNetworksExecution* execution,
    bool measure) -> Execution.set_measure_timing
4 int ANeuralNetworksExecution_setTimeout(ANeuralNetworksExecution* execution,
    uint64_t duration) -> Execution.set_timeout
4 int ANeuralNetworksExecution_setLoopTimeout(ANeuralNetworksExecution* execution,
    uint64_t duration) -> Execution.set_loop_timeout
3 int ANeuralNetworksExecution_compute(ANeuralNetworksExecution* execution) -> Execution.compute
1 int ANeuralNetworksExecution_startCompute(ANeuralNetworksExecution* execution,
    ANeuralNetworksEvent** event=0) -> Execution.start_compute
4 int ANeuralNetworksExecution_startComputeWithDependencies(ANeuralNetworksExecution* execution,
    const ANeuralNetworksEvent* const* dependencies?, uint32_t numOfDependencies, uint64_t duration,
    ANeuralNetworksEvent** event=0) -> Execution.start_compute_with_dependencies
3 int ANeuralNetworksExecution_burstCompute(ANeuralNetworksExecution* execution,
    ANeuralNetworksBurst* burst) -> Burst.compute
3 int ANeuralNetworksExecution_getOutputOperandRank(ANeuralNetworksExecution* execution, int32_t index,
    uint32_t* rank) -> Execution.get_output_operand_rank
3 int ANeuralNetworksExecution_getOutputOperandDimensions(ANeuralNetworksExecution* execution, int32_t index,
    uint32_t* dimensions) -> Execution.get_output_operand_dimensions
3 int ANeuralNetworksExecution_getDuration(const ANeuralNetworksExecution* execution, int32_t durationCode,
    uint64_t* duration=0xffffffffffffffff) -> Execution.get_duration
3 int ANeuralNetworksBurst_create(ANeuralNetworksCompilation* compilation, ANeuralNetworksBurst** burst=0) -> Burst
3 void ANeuralNetworksBurst_free(ANeuralNetworksBurst* burst?) -> Burst.close
1 int ANeuralNetworksEvent_wait(ANeuralNetworksEvent* event) -> Event.wait
1 void ANeuralNetworksEvent_free(ANeuralNetworksEvent* event?) -> Event.close
4 int ANeuralNetworksEvent_createFromSyncFenceFd(int sync_fence_fd,
    ANeuralNetworksEvent** event=0) -> Event.from_sync_fence_fd
4 int ANeuralNetworksEvent_getSyncFenceFd(const ANeuralNetworksEvent* event,
    int* sync_fence_fd=-1) -> Event.get_sync_fence_fd
3 int ANeuralNetworksDevice_getExtensionSupport(const ANeuralNetworksDevice* device, const char* extensionName,
    bool* isExtensionSupported) -> Device.get_extension_support
3 int ANeuralNetworksModel_getExtensionOperandType(ANeuralNetworksModel* model, const char* extensionName,
    uint16_t operandCodeWithinExtension, int32_t* type) -> Model.get_extension_operand_type
3 int ANeuralNetworksModel_getExtensionOperationType(ANeuralNetworksModel* model, const char* extensionName,
    uint16_t operationCodeWithinExtension, ANeuralNetworksOperationType* type) -> Model.get_extension_operation_type
3 int ANeuralNetworksModel_setOperandExtensionData(ANeuralNetworksModel* model, int32_t index, const void* data?,
    size_t length) -> Model.set_operand_extension_data
8 int ANeuralNetworksCompilation_addExtensionAttribute(ANeuralNetworksCompilation* compilation,
    const char* extensionName, uint16_t attributeCodeWithinExtension, const void* data?,
    size_t length) -> Compilation.add_extension_attribute
8 int ANeuralNetworksExecution_addExtensionAttribute(ANeuralNetworksExecution* execution, const char* extensionName,
    uint16_t attributeCodeWithinExtension, const void* data?, size_t length) -> Execution.add_extension_attribute
"""
"""One row for each function: the feature level that introduced it, its declaration in C, and its counterpart in Python.

`name?` marks a pointer that may be NULL; one with a count may be NULL only if the count is 0. `name=0` is the result that is
written before any check. The counterpart gets handles as objects, structs and strings as Python values, and a pointer with its
count as one list or array; its return value is written to the address in the result parameter. ADAPTED has functions that are
called instead where the parameters differ.
"""


def buffer_lock(buffer: HardwareBuffer, usage: int, fence: int, rect: int | None) -> int:
    if fence > 0:
        Event.from_sync_fence_fd(fence).wait()
    return int(buffer.lock(usage).ctypes.data)


def output_rank(execution: Execution, index: int) -> int | Failed:
    found = output_dimensions(execution, index)
    return Failed(found.code, len(found.value)) if isinstance(found, Failed) else len(found)  # type: ignore[arg-type]


def output_dimensions(execution: Execution, index: int) -> Sequence[int] | Failed:
    try:
        return execution.get_output_operand_dimensions(index)
    except NnapiError as error:
        if error.dimensions is None:
            raise
        return Failed(error.code, error.dimensions)


def add_attribute(target: Compilation | Execution, name: str, code: int, data: Array | None) -> None:
    target.add_extension_attribute(name, code, _bytes(data))


def _bytes(data: Array | None) -> bytes | None:
    return None if data is None else data.tobytes()


ADAPTED: dict[str, Callable[..., Any]] = {
    "ANeuralNetworksDevice_getName": attrgetter("name"),
    "ANeuralNetworksDevice_getVersion": attrgetter("version"),
    "ANeuralNetworksDevice_getType": attrgetter("type"),
    "ANeuralNetworksDevice_getFeatureLevel": attrgetter("feature_level"),
    "ANeuralNetworksModel_setOperandSymmPerChannelQuantParams":
        lambda model, index, quant: model.set_operand_symm_per_channel_quant_params(index, *quant),
    "AHardwareBuffer_describe": attrgetter("desc"),
    "AHardwareBuffer_lock": buffer_lock,
    "AHardwareBuffer_unlock": lambda buffer: -1,
    "ANeuralNetworksExecution_setInput": lambda execution, index, kind, data: execution.set_input_bytes(index, data, kind),
    "ANeuralNetworksExecution_setInputFromMemory":
        lambda execution, index, kind, *region: execution.set_input_from_memory(index, *region, kind),
    "ANeuralNetworksExecution_setOutput": lambda execution, index, kind, data: execution.set_output(index, data, kind),
    "ANeuralNetworksExecution_setOutputFromMemory":
        lambda execution, index, kind, *region: execution.set_output_from_memory(index, *region, kind),
    "ANeuralNetworksExecution_burstCompute": lambda execution, burst: burst.compute(execution),
    "ANeuralNetworksExecution_getOutputOperandRank": output_rank,
    "ANeuralNetworksExecution_getOutputOperandDimensions": output_dimensions,
    "ANeuralNetworksModel_setOperandExtensionData":
        lambda model, index, data: model.set_operand_extension_data(index, _bytes(data)),
    "ANeuralNetworksCompilation_addExtensionAttribute": add_attribute,
    "ANeuralNetworksExecution_addExtensionAttribute": add_attribute,
}  # fmt: skip

_ROW = re.compile(r"(\d) ([^>]+) -> (.+)")


@cache
def by_name() -> dict[str, NdkFunction]:
    rows = map(_row, re.split(r"\n(?=\d)", ROWS.strip()))
    return {row.name: row for row in rows}


def _row(text: str) -> NdkFunction:
    found = _ROW.fullmatch(" ".join(text.split()))
    assert found is not None, text
    level, declaration, python = found.groups()
    signature = Signature.of(declaration)
    return NdkFunction(int(level), signature, python, ADAPTED.get(signature.name) or _counterpart(python))


def _counterpart(python: str) -> Callable[..., Any]:
    owner, _, method = python.partition(".")
    if method == "close":
        kind = getattr(nnapi, owner)
        return lambda handle: free(handle, kind)
    found: Callable[..., Any] = attrgetter(python)(nnapi)
    return found
