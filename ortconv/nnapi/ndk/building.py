"""Rows of the table of NDK functions: devices, models and memories."""

from __future__ import annotations

from ortconv.nnapi import manager
from ortconv.nnapi.device import Device
from ortconv.nnapi.event import Event
from ortconv.nnapi.execution import get_default_loop_timeout, get_maximum_loop_timeout
from ortconv.nnapi.hardware_buffer import BufferDesc, HardwareBuffer
from ortconv.nnapi.memory import Memory, MemoryDesc
from ortconv.nnapi.model import Model
from ortconv.nnapi.ndk.table import HARDWARE_BUFFER, free, frees, ndk, same
from ortconv.nnapi.operand import OperandType

# ---------------------------------------------------------------------------------------------------------------- devices

same(3, "int ANeuralNetworks_getDeviceCount(uint32_t* numDevices)", manager.get_device_count)

same(3, "int ANeuralNetworks_getDevice(uint32_t devIndex, ANeuralNetworksDevice** device)", manager.get_device)


@ndk(3, "int ANeuralNetworksDevice_getName(const ANeuralNetworksDevice* device, const char** name)", "Device.name")
def device_name(device: Device) -> str:
    return device.name


@ndk(
    3,
    "int ANeuralNetworksDevice_getVersion(const ANeuralNetworksDevice* device, const char** version)",
    "Device.version",
)
def device_version(device: Device) -> str:
    return device.version


@ndk(3, "int ANeuralNetworksDevice_getType(const ANeuralNetworksDevice* device, int32_t* type)", "Device.type")
def device_type(device: Device) -> int:
    return int(device.type)


@ndk(
    3,
    "int ANeuralNetworksDevice_getFeatureLevel(const ANeuralNetworksDevice* device, int64_t* featureLevel)",
    "Device.feature_level",
)
def device_feature_level(device: Device) -> int:
    return int(device.feature_level)


same(4, "int ANeuralNetworksDevice_wait(const ANeuralNetworksDevice* device)", Device.wait)

same(4, "uint64_t ANeuralNetworks_getDefaultLoopTimeout(void)", get_default_loop_timeout)

same(4, "uint64_t ANeuralNetworks_getMaximumLoopTimeout(void)", get_maximum_loop_timeout)

same(5, "int64_t ANeuralNetworks_getRuntimeFeatureLevel(void)", manager.get_runtime_feature_level)


# ----------------------------------------------------------------------------------------------------------------- models


@ndk(1, "int ANeuralNetworksModel_create(ANeuralNetworksModel** model)", "Model")
def model_create() -> Model:
    return Model()


frees(1, "void ANeuralNetworksModel_free(ANeuralNetworksModel* model)", Model)


@ndk(
    1,
    "int ANeuralNetworksModel_addOperand(ANeuralNetworksModel* model, const ANeuralNetworksOperandType* type)",
    Model.add_operand,
)
def add_operand(model: Model, kind: OperandType) -> None:
    model.add_operand(kind)


same(
    1,
    "int ANeuralNetworksModel_setOperandValue(ANeuralNetworksModel* model, int32_t index, const void* buffer, size_t length)",
    Model.set_operand_value,
    optional=("buffer",),
)


@ndk(
    3,
    "int ANeuralNetworksModel_setOperandSymmPerChannelQuantParams(ANeuralNetworksModel* model, int32_t index, "
    "const ANeuralNetworksSymmPerChannelQuantParams* channelQuant)",
    Model.set_operand_symm_per_channel_quant_params,
)
def set_channel_quant(model: Model, index: int, quant: tuple[int, list[float]]) -> None:
    model.set_operand_symm_per_channel_quant_params(index, *quant)


same(
    1,
    "int ANeuralNetworksModel_setOperandValueFromMemory(ANeuralNetworksModel* model, int32_t index, "
    "const ANeuralNetworksMemory* memory, size_t offset, size_t length)",
    Model.set_operand_value_from_memory,
)

same(
    4,
    "int ANeuralNetworksModel_setOperandValueFromModel(ANeuralNetworksModel* model, int32_t index, "
    "const ANeuralNetworksModel* value)",
    Model.set_operand_value_from_model,
)

same(
    1,
    "int ANeuralNetworksModel_addOperation(ANeuralNetworksModel* model, ANeuralNetworksOperationType type, "
    "uint32_t inputCount, const uint32_t* inputs, uint32_t outputCount, const uint32_t* outputs)",
    Model.add_operation,
)

same(
    1,
    "int ANeuralNetworksModel_identifyInputsAndOutputs(ANeuralNetworksModel* model, uint32_t inputCount, "
    "const uint32_t* inputs, uint32_t outputCount, const uint32_t* outputs)",
    Model.identify_inputs_and_outputs,
)

same(
    2,
    "int ANeuralNetworksModel_relaxComputationFloat32toFloat16(ANeuralNetworksModel* model, bool allow)",
    Model.relax_computation_float32_to_float16,
)

same(1, "int ANeuralNetworksModel_finish(ANeuralNetworksModel* model)", Model.finish)

same(
    3,
    "int ANeuralNetworksModel_getSupportedOperationsForDevices(const ANeuralNetworksModel* model, "
    "const ANeuralNetworksDevice* const* devices, uint32_t numDevices, bool* supportedOps)",
    manager.get_supported_operations_for_devices,
)


# --------------------------------------------------------------------------------------------------------------- memories

same(
    1,
    "int ANeuralNetworksMemory_createFromFd(size_t size, int protect, int fd, size_t offset, ANeuralNetworksMemory** memory)",
    Memory.from_fd,
    otherwise=0,
)

same(
    3,
    "int ANeuralNetworksMemory_createFromAHardwareBuffer(const AHardwareBuffer* ahwb, ANeuralNetworksMemory** memory)",
    Memory.from_hardware_buffer,
    otherwise=0,
)

same(
    4,
    "int ANeuralNetworksMemory_createFromDesc(const ANeuralNetworksMemoryDesc* desc, ANeuralNetworksMemory** memory)",
    Memory.from_desc,
    otherwise=0,
)

same(
    4, "int ANeuralNetworksMemory_copy(const ANeuralNetworksMemory* src, const ANeuralNetworksMemory* dst)", Memory.copy
)

frees(1, "void ANeuralNetworksMemory_free(ANeuralNetworksMemory* memory)", Memory)


@ndk(4, "int ANeuralNetworksMemoryDesc_create(ANeuralNetworksMemoryDesc** desc)", "MemoryDesc", otherwise=0)
def desc_create() -> MemoryDesc:
    return MemoryDesc()


frees(4, "void ANeuralNetworksMemoryDesc_free(ANeuralNetworksMemoryDesc* desc)", MemoryDesc)

same(
    4,
    "int ANeuralNetworksMemoryDesc_addInputRole(ANeuralNetworksMemoryDesc* desc, "
    "const ANeuralNetworksCompilation* compilation, uint32_t index, float frequency)",
    MemoryDesc.add_input_role,
)

same(
    4,
    "int ANeuralNetworksMemoryDesc_addOutputRole(ANeuralNetworksMemoryDesc* desc, "
    "const ANeuralNetworksCompilation* compilation, uint32_t index, float frequency)",
    MemoryDesc.add_output_role,
)

same(
    4,
    "int ANeuralNetworksMemoryDesc_setDimensions(ANeuralNetworksMemoryDesc* desc, uint32_t rank, const uint32_t* dimensions)",
    MemoryDesc.set_dimensions,
    optional=("dimensions",),
)

same(4, "int ANeuralNetworksMemoryDesc_finish(ANeuralNetworksMemoryDesc* desc)", MemoryDesc.finish)


# ------------------------------------------------------------------------------------------------------- hardware buffers

same(
    3,
    "int AHardwareBuffer_allocate(const AHardwareBuffer_Desc* desc, AHardwareBuffer** outBuffer)",
    HardwareBuffer,
    header=HARDWARE_BUFFER,
    otherwise=0,
)

same(3, "void AHardwareBuffer_acquire(AHardwareBuffer* buffer)", HardwareBuffer.acquire, header=HARDWARE_BUFFER)


@ndk(
    3,
    "void AHardwareBuffer_release(AHardwareBuffer* buffer)",
    "HardwareBuffer.close",
    header=HARDWARE_BUFFER,
    optional=("buffer",),
)
def buffer_release(buffer: int) -> None:
    free(buffer, HardwareBuffer)


@ndk(
    3,
    "void AHardwareBuffer_describe(const AHardwareBuffer* buffer, AHardwareBuffer_Desc* outDesc)",
    "HardwareBuffer.desc",
    header=HARDWARE_BUFFER,
)
def buffer_describe(buffer: HardwareBuffer) -> BufferDesc:
    return buffer.desc


@ndk(
    3,
    "int AHardwareBuffer_lock(AHardwareBuffer* buffer, uint64_t usage, int32_t fence, const ARect* rect, "
    "void** outVirtualAddress)",
    HardwareBuffer.lock,
    header=HARDWARE_BUFFER,
    optional=("rect",),
    otherwise=0,
)
def buffer_lock(buffer: HardwareBuffer, usage: int, fence: int, rect: int | None) -> int:
    if fence > 0:
        Event.from_sync_fence_fd(fence).wait()
    return int(buffer.lock(usage).ctypes.data)


@ndk(
    3,
    "int AHardwareBuffer_unlock(AHardwareBuffer* buffer, int32_t* fence)",
    "HardwareBuffer.lock",
    header=HARDWARE_BUFFER,
    optional=("fence",),
)
def buffer_unlock(buffer: HardwareBuffer) -> int:
    return -1
