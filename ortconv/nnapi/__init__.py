"""The Android Neural Networks API in Python and numpy: models, compilations, executions, devices."""

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
from ortconv.nnapi.device import get_device
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.memory import Memory
from ortconv.nnapi.model import Model
from ortconv.nnapi.operand import OperandType

__all__ = [
    "Compilation", "DeviceType", "DurationCode", "Execution", "FeatureLevel", "FuseCode", "Memory", "Model", "NnapiError",
    "Operand", "OperandType", "Operation", "PaddingCode", "Preference", "Priority", "ResultCode", "get_device",
]  # fmt: skip
