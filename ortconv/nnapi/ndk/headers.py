"""C headers of the NDK's functions and codes, generated from the table and the enumerations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from ortconv.nnapi import codes
from ortconv.nnapi.caching import TOKEN_LENGTH
from ortconv.nnapi.hardware_buffer import BufferFormat, BufferUsage
from ortconv.nnapi.model import COPY_LIMIT
from ortconv.nnapi.ndk.calls import EXTENSIONS, HARDWARE_BUFFER, KINDS, NN
from ortconv.nnapi.ndk.functions import by_name

PREFIX = "ANEURALNETWORKS_"
FOREIGN = ("OEM_SCALAR", "TENSOR_OEM_BYTE", "OEM_OPERATION", "DENSIFY")
"""Members of the enumerations that the NDK does not have."""
CODES: Mapping[str, tuple[type[IntEnum], str]] = {
    "OperandCode": (codes.Operand, ""),
    "OperationCode": (codes.Operation, ""),
    "FuseCode": (codes.FuseCode, "FUSED_"),
    "PaddingCode": (codes.PaddingCode, "PADDING_"),
    "PreferenceCode": (codes.Preference, "PREFER_"),
    "DeviceTypeCode": (codes.DeviceType, "DEVICE_"),
    "ResultCode": (codes.ResultCode, ""),
    "FeatureLevelCode": (codes.FeatureLevel, "FEATURE_"),
    "PriorityCode": (codes.Priority, "PRIORITY_"),
}
"""Names of the enumerations in C, with the prefix of the members that follows PREFIX."""
DURATIONS = {
    codes.DurationCode.ON_HARDWARE: "DURATION_ON_HARDWARE",
    codes.DurationCode.IN_DRIVER: "DURATION_IN_DRIVER",
    codes.DurationCode.FENCED_ON_HARDWARE: "FENCED_DURATION_ON_HARDWARE",
    codes.DurationCode.FENCED_IN_DRIVER: "FENCED_DURATION_IN_DRIVER",
}
STRUCTS = """
typedef struct ANeuralNetworksOperandType {
    int32_t type;               /* an OperandCode */
    uint32_t dimensionCount;    /* 0 for scalars and tensors of unknown rank */
    const uint32_t* dimensions; /* NULL if there are none; 0 is an unknown dimension */
    float scale;                /* of quantized types, else 0 */
    int32_t zeroPoint;
} ANeuralNetworksOperandType;

typedef struct ANeuralNetworksSymmPerChannelQuantParams {
    uint32_t channelDim; /* the dimension that has a scale for each index */
    uint32_t scaleCount;
    const float* scales;
} ANeuralNetworksSymmPerChannelQuantParams;

typedef int32_t ANeuralNetworksOperationType;
"""
BUFFER_STRUCTS = """
typedef struct AHardwareBuffer_Desc {
    uint32_t width;  /* in pixels; bytes of a BLOB */
    uint32_t height;
    uint32_t layers;
    uint32_t format; /* an AHardwareBuffer_Format */
    uint64_t usage;  /* AHardwareBuffer_UsageFlags */
    uint32_t stride; /* in pixels; allocation sets it */
    uint32_t rfu0;   /* 0 */
    uint64_t rfu1;   /* 0 */
} AHardwareBuffer_Desc;

typedef struct ARect {
    int32_t left, top, right, bottom;
} ARect;
"""
BUFFER_MASKS = {
    "CPU_READ_NEVER": 0,
    "CPU_READ_MASK": 0xF,
    "CPU_WRITE_NEVER": 0,
    "CPU_WRITE_MASK": 0xF0,
    "GPU_FRAMEBUFFER": 1 << 9,
}


def headers() -> dict[str, str]:
    """The files of include/android: contents by file name."""
    return {
        "NeuralNetworksTypes.h": _header("NeuralNetworksTypes.h", "", "".join(_types())),
        NN: _header(NN, _include("NeuralNetworksTypes.h", HARDWARE_BUFFER), _declarations(NN)),
        EXTENSIONS: _header(EXTENSIONS, _include(NN), _declarations(EXTENSIONS)),
        HARDWARE_BUFFER: _header(HARDWARE_BUFFER, "", "".join(_buffer_types()) + _declarations(HARDWARE_BUFFER)),
    }


def _header(name: str, includes: str, body: str) -> str:
    guard = f"ORTCONV_{name.replace('.', '_').upper()}"
    return (
        f"/* {name} of ortconv's NNAPI runtime for the PC: the NDK's declarations. Written by `ortconv nnapi ndk`. */\n"
        f"#ifndef {guard}\n#define {guard}\n\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n{includes}\n"
        f'#ifdef __cplusplus\nextern "C" {{\n#endif\n{body}\n#ifdef __cplusplus\n}}\n#endif\n\n#endif\n'
    )


def _include(*names: str) -> str:
    return "\n" + "".join(f'#include "{name}"\n' for name in names)


def _types() -> Iterator[str]:
    for name, (enumeration, prefix) in CODES.items():
        members = {one.name: one.value for one in enumeration if one.name not in FOREIGN}
        if enumeration is codes.Priority:
            members["DEFAULT"] = codes.Priority.MEDIUM.value
        yield _enum(name, PREFIX + prefix, members)
    yield _enum("DurationCode", PREFIX, {name: code.value for code, name in DURATIONS.items()})
    sizes = {"MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES": COPY_LIMIT, "BYTE_SIZE_OF_CACHE_TOKEN": TOKEN_LENGTH}
    yield _enum("", PREFIX, sizes)
    yield "\n" + "".join(f"typedef struct {kind} {kind};\n" for kind in KINDS if kind != "AHardwareBuffer")
    yield STRUCTS


def _buffer_types() -> Iterator[str]:
    yield "\ntypedef struct AHardwareBuffer AHardwareBuffer;\n"
    formats = {one.name: one.value for one in BufferFormat}
    yield _enum("AHardwareBuffer_Format", "AHARDWAREBUFFER_FORMAT_", formats)
    usages = {name: one.value for name, one in BufferUsage.__members__.items()} | BUFFER_MASKS
    yield _enum("AHardwareBuffer_UsageFlags", "AHARDWAREBUFFER_USAGE_", usages)
    yield BUFFER_STRUCTS


def _enum(name: str, prefix: str, members: Mapping[str, int]) -> str:
    lines = "".join(f"    {prefix}{member} = {value},\n" for member, value in members.items())
    return f"\ntypedef enum {{\n{lines}}} {name};\n" if name else f"\nenum {{\n{lines}}};\n"


def _declarations(header: str) -> str:
    rows = [one for one in by_name().values() if one.header == header]
    return "".join(
        f"\n/* Since feature level {one.level}. In Python: {one.python} */\n{one.signature};\n" for one in rows
    )
