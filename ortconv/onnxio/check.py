"""What must hold of a model message before onnx's C++ code and the graph builder see it."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.errors import FormatError, GraphError, UnsupportedError
from ortconv.onnxio.build import check_text
from ortconv.onnxlib import IR_VERSION, ModelProto, OperatorSetIdProto, newest_opsets

OLDEST_OPSET = 7
"""The oldest that models made for ONNX Runtime may import."""
OLDEST_IR = 3

_FOREIGN = [
    (4, b"ORTM", "is an ORT-format model, not an ONNX model", "name it .ort"),
    (4, b"TFL3", "is a TensorFlow Lite model", "convert it with tflite2onnx or tf2onnx first"),
    (0, b"version https://git-lfs", "is a Git LFS pointer, not the model itself", "run: git lfs pull"),
    (0, b"PK\x03\x04", "is a zip archive (a PyTorch checkpoint, perhaps)", "export it to ONNX first"),
    (0, b"\x80\x02", "is a Python pickle", "export it to ONNX first"),
    (0, b"\x1f\x8b", "is compressed with gzip", "unpack it first"),
    (0, b"\x89HDF", "is an HDF5 file (a Keras model, perhaps)", "convert it with tf2onnx first"),
    (0, b"<", "is HTML, XML or ONNX text", "download the raw file; parse text with onnx.parser"),
    (0, b"{", "is JSON or another text", "download the raw file"),
]
"""Offset and bytes by which other files are known, what they are, and what to do."""

_HINT = "the file is damaged or no ONNX model: export or download it again"


def not_onnx(data: memoryview, reason: str) -> FormatError:
    """The error for bytes that are no ONNX model, saying what they are where that is plain to see."""
    head = bytes(data[:512])
    for offset, magic, what, hint in _FOREIGN:
        if (head if offset else head.lstrip())[offset:].startswith(magic):
            return FormatError(f"the file {what}", hint=hint)
    return FormatError(f"not a valid ONNX model: {reason}", hint=_HINT)


def check_versions(proto: ModelProto, oldest_opset: int) -> None:
    """UnsupportedError for IR and operator set versions that are too old, or newer than the onnx package knows."""
    if proto.ir_version < OLDEST_IR:
        raise UnsupportedError(f"IR version {proto.ir_version}, the oldest supported is {OLDEST_IR}", hint=_CONVERT)
    if proto.ir_version > IR_VERSION:
        raise UnsupportedError(
            f"IR version {proto.ir_version}, onnx {version_of_onnx()} knows {IR_VERSION}", hint=_UPGRADE
        )
    if not proto.opset_import:
        raise GraphError("the model imports no operator set", hint="opset_import must name the versions it uses")
    _check_opsets(proto.opset_import, oldest_opset)
    for function in proto.functions:
        _check_opsets(function.opset_import, oldest_opset)


def version_of_onnx() -> str:
    from importlib.metadata import version

    return version("onnx")


def _check_opsets(imports: Iterable[OperatorSetIdProto], oldest_opset: int) -> None:
    newest = newest_opsets()
    versions: dict[str, int] = {}
    for entry in imports:
        check_text(entry.domain)
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        version, limit = entry.version, newest.get(domain)
        if versions.setdefault(domain, version) != version:
            raise GraphError(f"operator set '{domain}' is imported twice, as {versions[domain]} and {version}")
        if limit is not None and version > limit:
            raise UnsupportedError(
                f"opset {version} of '{domain or 'ai.onnx'}', onnx {version_of_onnx()} knows {limit}", hint=_UPGRADE
            )
        oldest = oldest_opset if domain == "" else 0
        if version < oldest or version >= 1 << 31:
            raise UnsupportedError(
                f"opset {version} of '{domain or 'ai.onnx'}', the oldest supported is {oldest}", hint=_CONVERT
            )


_CONVERT = "raise it with onnx.version_converter.convert_version"
_UPGRADE = "upgrade the onnx package (pip install --upgrade onnx), or export with an older version"
