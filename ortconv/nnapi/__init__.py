"""The Android Neural Networks API in Python and numpy: models, memories, compilations, executions and devices.

The functions of the NDK are methods in snake_case; a call that does not return NO_ERROR raises `NnapiError` with the
result code.
"""

from ortconv.nnapi.burst import Burst
from ortconv.nnapi.codes import (
    DeviceType,
    DurationCode,
    FeatureLevel,
    FuseCode,
    Operand,
    Operation,
    PaddingCode,
    Preference,
    Priority,
    ResultCode,
)
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.device import Capabilities, Device, Performance, PreparedModel, PrepareOptions, Timing
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.event import Event
from ortconv.nnapi.execution import Execution, get_default_loop_timeout, get_maximum_loop_timeout
from ortconv.nnapi.hardware_buffer import BufferDesc, BufferFormat, BufferUsage, HardwareBuffer
from ortconv.nnapi.loading import bundled_profiles, installed_devices, load_device
from ortconv.nnapi.manager import (
    get_device,
    get_device_count,
    get_devices,
    get_runtime_feature_level,
    get_supported_operations_for_devices,
    register_device,
    registered,
    unregister_device,
)
from ortconv.nnapi.memory import Memory, MemoryDesc
from ortconv.nnapi.model import Model
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.registry import Extension, ExtensionOperand

__all__ = [
    "BufferDesc", "BufferFormat", "BufferUsage", "Burst", "Capabilities", "Compilation", "Device", "DeviceType",
    "DurationCode", "Event", "Execution", "Extension", "ExtensionOperand", "FeatureLevel", "FuseCode", "HardwareBuffer",
    "Memory", "MemoryDesc", "Model", "NnapiError", "Operand", "OperandType", "Operation", "PaddingCode", "Performance",
    "Preference", "PrepareOptions", "PreparedModel", "Priority", "ResultCode", "Tensor", "Timing", "bundled_profiles",
    "get_default_loop_timeout", "get_device", "get_device_count", "get_devices", "get_maximum_loop_timeout",
    "get_runtime_feature_level", "get_supported_operations_for_devices", "installed_devices", "load_device",
    "register_device", "registered", "unregister_device",
]  # fmt: skip
