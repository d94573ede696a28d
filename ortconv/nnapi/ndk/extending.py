"""Rows of the table of NDK functions: extensions."""

from __future__ import annotations

from ortconv.ir.tensor import Array
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.device import Device
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.model import Model
from ortconv.nnapi.ndk.table import EXTENSIONS, ndk, same

same(
    3,
    "int ANeuralNetworksDevice_getExtensionSupport(const ANeuralNetworksDevice* device, const char* extensionName, "
    "bool* isExtensionSupported)",
    Device.get_extension_support,
    header=EXTENSIONS,
)

same(
    3,
    "int ANeuralNetworksModel_getExtensionOperandType(ANeuralNetworksModel* model, const char* extensionName, "
    "uint16_t operandCodeWithinExtension, int32_t* type)",
    Model.get_extension_operand_type,
    header=EXTENSIONS,
)

same(
    3,
    "int ANeuralNetworksModel_getExtensionOperationType(ANeuralNetworksModel* model, const char* extensionName, "
    "uint16_t operationCodeWithinExtension, ANeuralNetworksOperationType* type)",
    Model.get_extension_operation_type,
    header=EXTENSIONS,
)


@ndk(
    3,
    "int ANeuralNetworksModel_setOperandExtensionData(ANeuralNetworksModel* model, int32_t index, const void* data, "
    "size_t length)",
    Model.set_operand_extension_data,
    header=EXTENSIONS,
    optional=("data",),
)
def set_operand_extension_data(model: Model, index: int, data: Array | None) -> None:
    model.set_operand_extension_data(index, _bytes(data))


@ndk(
    8,
    "int ANeuralNetworksCompilation_addExtensionAttribute(ANeuralNetworksCompilation* compilation, "
    "const char* extensionName, uint16_t attributeCodeWithinExtension, const void* data, size_t length)",
    Compilation.add_extension_attribute,
    header=EXTENSIONS,
    optional=("data",),
)
def add_compilation_attribute(compilation: Compilation, name: str, code: int, data: Array | None) -> None:
    compilation.add_extension_attribute(name, code, _bytes(data))


@ndk(
    8,
    "int ANeuralNetworksExecution_addExtensionAttribute(ANeuralNetworksExecution* execution, "
    "const char* extensionName, uint16_t attributeCodeWithinExtension, const void* data, size_t length)",
    Execution.add_extension_attribute,
    header=EXTENSIONS,
    optional=("data",),
)
def add_execution_attribute(execution: Execution, name: str, code: int, data: Array | None) -> None:
    execution.add_extension_attribute(name, code, _bytes(data))


def _bytes(data: Array | None) -> bytes | None:
    return None if data is None else data.tobytes()
