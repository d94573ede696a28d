"""The enumerations of the API, with the NDK's values."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from ortconv.nnapi import registry

LARGEST_OWN = 0xFFFF
"""Larger codes belong to extensions."""

M = TypeVar("M", bound=IntEnum)


def _foreign(kind: type[M], value: object, *facts: object) -> M:
    """The member for a code of an extension; the same object each time."""
    assert isinstance(value, int)
    found = registry.split(value)
    assert found is not None
    member = kind._new_member_(kind, value, *facts)  # type: ignore[attr-defined]
    member._name_, member._value_ = f"{found[0]}:{found[1]}", value
    return kind._value2member_map_.setdefault(value, member)  # type: ignore[return-value]


class FeatureLevel(IntEnum):
    """Levels compare as integers: Android's API level up to 31, then separate numbers."""

    LEVEL_1 = 27
    LEVEL_2 = 28
    LEVEL_3 = 29
    LEVEL_4 = 30
    LEVEL_5 = 31
    LEVEL_6 = 1000006
    LEVEL_7 = 1000007
    LEVEL_8 = 1000008

    @classmethod
    def number(cls, number: int) -> FeatureLevel:
        """The level with an ordinal from 1 to 8."""
        return _BY_NUMBER[number]

    @property
    def ordinal(self) -> int:
        return _NUMBERS[self]


_BY_NUMBER = dict(enumerate(FeatureLevel, 1))
_NUMBERS = {level: number for number, level in _BY_NUMBER.items()}


class Operand(IntEnum):
    """Operand types: the number, the type of one element in memory, the ordinal of the feature level that introduced the type, the
    zero points that a quantized type permits, and True for a scalar.
    """

    dtype: np.dtype[Any]
    level: FeatureLevel
    zero_points: range | None
    is_scalar: bool

    def __new__(
        cls, value: int, dtype: Any, level: int, zero_points: range | None = None, is_scalar: bool = False
    ) -> Operand:
        member = int.__new__(cls, value)
        member._value_, member.dtype, member.level = value, np.dtype(dtype), FeatureLevel.number(level)
        member.zero_points, member.is_scalar = zero_points, is_scalar
        return member

    FLOAT32 = 0, "<f4", 1, None, True
    INT32 = 1, "<i4", 1, None, True
    UINT32 = 2, "<u4", 1, None, True
    TENSOR_FLOAT32 = 3, "<f4", 1
    TENSOR_INT32 = 4, "<i4", 1
    TENSOR_QUANT8_ASYMM = 5, "u1", 1, range(256)
    BOOL = 6, "?", 3, None, True
    TENSOR_QUANT16_SYMM = 7, "<i2", 3, range(1)
    TENSOR_FLOAT16 = 8, "<f2", 3
    TENSOR_BOOL8 = 9, "?", 3
    FLOAT16 = 10, "<f2", 3, None, True
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11, "i1", 3, range(1)
    TENSOR_QUANT16_ASYMM = 12, "<u2", 3, range(65536)
    TENSOR_QUANT8_SYMM = 13, "i1", 3, range(1)
    TENSOR_QUANT8_ASYMM_SIGNED = 14, "i1", 4, range(-128, 128)
    MODEL = 15, "u1", 4
    OEM_SCALAR = 10000, "u1", 1, None, True
    TENSOR_OEM_BYTE = 10001, "u1", 1

    @property
    def is_tensor(self) -> bool:
        return not self.is_scalar and self is not Operand.MODEL

    @classmethod
    def _missing_(cls, value: object) -> Operand | None:
        """The member for a type of an extension that a driver has declared."""
        found = registry.operand(value) if isinstance(value, int) else None
        return None if found is None else _foreign(cls, value, found.dtype, 3, None, not found.is_tensor)

    @property
    def is_extension(self) -> bool:
        return self > LARGEST_OWN

    @property
    def is_oem(self) -> bool:
        return self in (Operand.OEM_SCALAR, Operand.TENSOR_OEM_BYTE)

    @property
    def is_quantized(self) -> bool:
        return self.zero_points is not None


class ResultCode(IntEnum):
    NO_ERROR = 0
    OUT_OF_MEMORY = 1
    INCOMPLETE = 2
    UNEXPECTED_NULL = 3
    BAD_DATA = 4
    OP_FAILED = 5
    BAD_STATE = 6
    UNMAPPABLE = 7
    OUTPUT_INSUFFICIENT_SIZE = 8
    UNAVAILABLE_DEVICE = 9
    MISSED_DEADLINE_TRANSIENT = 10
    MISSED_DEADLINE_PERSISTENT = 11
    RESOURCE_EXHAUSTED_TRANSIENT = 12
    RESOURCE_EXHAUSTED_PERSISTENT = 13
    DEAD_OBJECT = 14


MISSED_DEADLINE = (ResultCode.MISSED_DEADLINE_TRANSIENT, ResultCode.MISSED_DEADLINE_PERSISTENT)


class FuseCode(IntEnum):
    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class PaddingCode(IntEnum):
    SAME = 1
    VALID = 2


class Preference(IntEnum):
    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(IntEnum):
    LOW = 90
    MEDIUM = 100
    HIGH = 110


class DeviceType(IntEnum):
    UNKNOWN = 0
    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class DurationCode(IntEnum):
    ON_HARDWARE = 0
    IN_DRIVER = 1
    FENCED_ON_HARDWARE = 2
    FENCED_IN_DRIVER = 3


class Operation(IntEnum):
    @classmethod
    def _missing_(cls, value: object) -> Operation | None:
        """The member for an operation of an extension that has a prefix."""
        known = isinstance(value, int) and registry.split(value) is not None
        return _foreign(cls, value) if known else None

    @property
    def is_extension(self) -> bool:
        return self > LARGEST_OWN

    @property
    def is_foreign(self) -> bool:
        """True if the operation belongs to an extension, so that only drivers know it."""
        return self.is_extension or self is Operation.OEM_OPERATION

    @property
    def is_control_flow(self) -> bool:
        return self in (Operation.IF, Operation.WHILE)

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    BATCH_MATMUL = 102
    PACK = 103
    MIRROR_PAD = 104
    REVERSE = 105
    OEM_OPERATION = 10000
    DENSIFY = 20000
