"""Rows of the table: devices, models and memories."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.ir.tensor import Array
from ortconv.nnapi import manager
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.device import Device
from ortconv.nnapi.event import Event
from ortconv.nnapi.execution import get_default_loop_timeout, get_maximum_loop_timeout
from ortconv.nnapi.hardware_buffer import BufferDesc, HardwareBuffer
from ortconv.nnapi.memory import Memory, MemoryDesc
from ortconv.nnapi.model import Model
from ortconv.nnapi.ndk.table import HARDWARE_BUFFER, free, ndk
from ortconv.nnapi.operand import OperandType

# ---------------------------------------------------------------------------------------------------------------- devices


@ndk(3, "int ANeuralNetworks_getDeviceCount(uint32_t* numDevices)", manager.get_device_count)
def get_device_count() -> int:
    return manager.get_device_count()


@ndk(3, "int ANeuralNetworks_getDevice(uint32_t devIndex, ANeuralNetworksDevice** device)", manager.get_device)
def get_device(index: int) -> Device:
    return manager.get_device(index)


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


@ndk(4, "int ANeuralNetworksDevice_wait(const ANeuralNetworksDevice* device)", Device.wait)
def device_wait(device: Device) -> None:
    device.wait()


@ndk(4, "uint64_t ANeuralNetworks_getDefaultLoopTimeout(void)", get_default_loop_timeout)
def default_loop_timeout() -> int:
    return get_default_loop_timeout()


@ndk(4, "uint64_t ANeuralNetworks_getMaximumLoopTimeout(void)", get_maximum_loop_timeout)
def maximum_loop_timeout() -> int:
    return get_maximum_loop_timeout()


@ndk(5, "int64_t ANeuralNetworks_getRuntimeFeatureLevel(void)", manager.get_runtime_feature_level)
def runtime_feature_level() -> int:
    return manager.get_runtime_feature_level()


# ----------------------------------------------------------------------------------------------------------------- models


@ndk(1, "int ANeuralNetworksModel_create(ANeuralNetworksModel** model)", "Model")
def model_create() -> Model:
    return Model()


@ndk(1, "void ANeuralNetworksModel_free(ANeuralNetworksModel* model)", "Model.close", optional=("model",))
def model_free(model: int) -> None:
    free(model, Model)


@ndk(
    1,
    "int ANeuralNetworksModel_addOperand(ANeuralNetworksModel* model, const ANeuralNetworksOperandType* type)",
    Model.add_operand,
)
def add_operand(model: Model, kind: OperandType) -> None:
    model.add_operand(kind)


@ndk(
    1,
    "int ANeuralNetworksModel_setOperandValue(ANeuralNetworksModel* model, int32_t index, const void* buffer, size_t length)",
    Model.set_operand_value,
    optional=("buffer",),
)
def set_operand_value(model: Model, index: int, value: Array | None) -> None:
    model.set_operand_value(index, value)


@ndk(
    3,
    "int ANeuralNetworksModel_setOperandSymmPerChannelQuantParams(ANeuralNetworksModel* model, int32_t index, "
    "const ANeuralNetworksSymmPerChannelQuantParams* channelQuant)",
    Model.set_operand_symm_per_channel_quant_params,
)
def set_channel_quant(model: Model, index: int, quant: tuple[int, list[float]]) -> None:
    model.set_operand_symm_per_channel_quant_params(index, *quant)


@ndk(
    1,
    "int ANeuralNetworksModel_setOperandValueFromMemory(ANeuralNetworksModel* model, int32_t index, "
    "const ANeuralNetworksMemory* memory, size_t offset, size_t length)",
    Model.set_operand_value_from_memory,
)
def set_operand_value_from_memory(model: Model, index: int, memory: Memory, offset: int, length: int) -> None:
    model.set_operand_value_from_memory(index, memory, offset, length)


@ndk(
    4,
    "int ANeuralNetworksModel_setOperandValueFromModel(ANeuralNetworksModel* model, int32_t index, "
    "const ANeuralNetworksModel* value)",
    Model.set_operand_value_from_model,
)
def set_operand_value_from_model(model: Model, index: int, value: Model) -> None:
    model.set_operand_value_from_model(index, value)


@ndk(
    1,
    "int ANeuralNetworksModel_addOperation(ANeuralNetworksModel* model, ANeuralNetworksOperationType type, "
    "uint32_t inputCount, const uint32_t* inputs, uint32_t outputCount, const uint32_t* outputs)",
    Model.add_operation,
)
def add_operation(model: Model, code: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    model.add_operation(code, inputs, outputs)  # type: ignore[arg-type]  # a code will do


@ndk(
    1,
    "int ANeuralNetworksModel_identifyInputsAndOutputs(ANeuralNetworksModel* model, uint32_t inputCount, "
    "const uint32_t* inputs, uint32_t outputCount, const uint32_t* outputs)",
    Model.identify_inputs_and_outputs,
)
def identify_inputs_and_outputs(model: Model, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    model.identify_inputs_and_outputs(inputs, outputs)


@ndk(
    2,
    "int ANeuralNetworksModel_relaxComputationFloat32toFloat16(ANeuralNetworksModel* model, bool allow)",
    Model.relax_computation_float32_to_float16,
)
def relax(model: Model, allow: bool) -> None:
    model.relax_computation_float32_to_float16(allow)


@ndk(1, "int ANeuralNetworksModel_finish(ANeuralNetworksModel* model)", Model.finish)
def model_finish(model: Model) -> None:
    model.finish()


@ndk(
    3,
    "int ANeuralNetworksModel_getSupportedOperationsForDevices(const ANeuralNetworksModel* model, "
    "const ANeuralNetworksDevice* const* devices, uint32_t numDevices, bool* supportedOps)",
    manager.get_supported_operations_for_devices,
)
def supported_operations(model: Model, devices: Sequence[Device]) -> list[bool]:
    return manager.get_supported_operations_for_devices(model, devices)


# --------------------------------------------------------------------------------------------------------------- memories


@ndk(
    1,
    "int ANeuralNetworksMemory_createFromFd(size_t size, int protect, int fd, size_t offset, ANeuralNetworksMemory** memory)",
    Memory.from_fd,
    otherwise=0,
)
def memory_from_fd(size: int, protection: int, fd: int, offset: int) -> Memory:
    return Memory.from_fd(size, protection, fd, offset)


@ndk(
    3,
    "int ANeuralNetworksMemory_createFromAHardwareBuffer(const AHardwareBuffer* ahwb, ANeuralNetworksMemory** memory)",
    Memory.from_hardware_buffer,
    otherwise=0,
)
def memory_from_hardware_buffer(buffer: HardwareBuffer) -> Memory:
    return Memory.from_hardware_buffer(buffer)


@ndk(
    4,
    "int ANeuralNetworksMemory_createFromDesc(const ANeuralNetworksMemoryDesc* desc, ANeuralNetworksMemory** memory)",
    Memory.from_desc,
    otherwise=0,
)
def memory_from_desc(desc: MemoryDesc) -> Memory:
    return Memory.from_desc(desc)


@ndk(
    4,
    "int ANeuralNetworksMemory_copy(const ANeuralNetworksMemory* src, const ANeuralNetworksMemory* dst)",
    Memory.copy,
)
def memory_copy(source: Memory, target: Memory) -> None:
    Memory.copy(source, target)


@ndk(1, "void ANeuralNetworksMemory_free(ANeuralNetworksMemory* memory)", "Memory.close", optional=("memory",))
def memory_free(memory: int) -> None:
    free(memory, Memory)


@ndk(4, "int ANeuralNetworksMemoryDesc_create(ANeuralNetworksMemoryDesc** desc)", "MemoryDesc", otherwise=0)
def desc_create() -> MemoryDesc:
    return MemoryDesc()


@ndk(4, "void ANeuralNetworksMemoryDesc_free(ANeuralNetworksMemoryDesc* desc)", "MemoryDesc.close", optional=("desc",))
def desc_free(desc: int) -> None:
    free(desc, MemoryDesc)


@ndk(
    4,
    "int ANeuralNetworksMemoryDesc_addInputRole(ANeuralNetworksMemoryDesc* desc, "
    "const ANeuralNetworksCompilation* compilation, uint32_t index, float frequency)",
    MemoryDesc.add_input_role,
)
def add_input_role(desc: MemoryDesc, compilation: Compilation, index: int, frequency: float) -> None:
    desc.add_input_role(compilation, index, frequency)


@ndk(
    4,
    "int ANeuralNetworksMemoryDesc_addOutputRole(ANeuralNetworksMemoryDesc* desc, "
    "const ANeuralNetworksCompilation* compilation, uint32_t index, float frequency)",
    MemoryDesc.add_output_role,
)
def add_output_role(desc: MemoryDesc, compilation: Compilation, index: int, frequency: float) -> None:
    desc.add_output_role(compilation, index, frequency)


@ndk(
    4,
    "int ANeuralNetworksMemoryDesc_setDimensions(ANeuralNetworksMemoryDesc* desc, uint32_t rank, const uint32_t* dimensions)",
    MemoryDesc.set_dimensions,
    optional=("dimensions",),
)
def set_dimensions(desc: MemoryDesc, dims: Sequence[int]) -> None:
    desc.set_dimensions(dims)


@ndk(4, "int ANeuralNetworksMemoryDesc_finish(ANeuralNetworksMemoryDesc* desc)", MemoryDesc.finish)
def desc_finish(desc: MemoryDesc) -> None:
    desc.finish()


# ------------------------------------------------------------------------------------------------------- hardware buffers


@ndk(
    3,
    "int AHardwareBuffer_allocate(const AHardwareBuffer_Desc* desc, AHardwareBuffer** outBuffer)",
    HardwareBuffer,
    header=HARDWARE_BUFFER,
    otherwise=0,
)
def buffer_allocate(desc: BufferDesc) -> HardwareBuffer:
    return HardwareBuffer(desc)


@ndk(
    3,
    "void AHardwareBuffer_acquire(AHardwareBuffer* buffer)",
    HardwareBuffer.acquire,
    header=HARDWARE_BUFFER,
)
def buffer_acquire(buffer: HardwareBuffer) -> None:
    buffer.acquire()


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
