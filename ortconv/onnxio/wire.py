"""Reads the protobuf wire format of an ONNX model. Large payloads are cut out; the rest is left for onnx's own parser.

The metadata of large nodes, which nothing reads, is cut out as well: PyTorch's exporter writes a stack trace to each node.

`skeleton` walks only the messages that can contain tensors. A tensor with its payload cut out has `data_location: EXTERNAL` and one
external_data entry. Its location is a name that no file can have: MARKER and the payload's number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ortconv.errors import FormatError, UnsupportedError

THRESHOLD = 1024
"""Payloads of at least this number of bytes are cut out."""

MAX_DEPTH = 100
"""Maximum nesting of messages, as in protobuf itself."""

MAX_FIELDS = 20_000_000
MAX_SKELETON = (1 << 31) - 1
"""Limit of protobuf."""

MARKER = "\0"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION, _TRAINING = (
    "ModelProto", "GraphProto", "NodeProto", "AttributeProto", "TensorProto", "SparseTensorProto", "FunctionProto",
    "TrainingInfoProto",
)  # fmt: skip

_CHILDREN: dict[str, dict[int, str]] = {
    _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
}
"""By message type: the fields that can lead to tensors, with their message types."""

_UNREAD = {_NODE: 9}
"""By message type: the field that is left out, metadata_props."""

_FLOATS, _INTS = 7 << 3 | _FIXED32, 8 << 3 | _VARINT
"""The tags of an attribute's numbers that are not packed. A tree ensemble has millions of them."""

_RUN = re.compile(rb"(?s:(?:\x3d....)++|(?:\x40[\x80-\xff]{0,9}+[\x00-\x7f])++)")
"""Consecutive fields with one of these tags."""

_DATA_TYPE, _FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 2, 4, 9, 10, 13, 14

_SAME_AS_RAW = {(_FLOAT_DATA, 1), (_FLOAT_DATA, 14), (_DOUBLE_DATA, 11), (_DOUBLE_DATA, 15)}
"""The packed (field, element type) whose bytes equal those of raw_data: float, complex64, double and complex128."""


class Skeleton(NamedTuple):
    message: bytes
    payloads: list[memoryview]


def skeleton(data: memoryview, threshold: int = THRESHOLD) -> Skeleton:
    """Return a serialized ModelProto without its large payloads, and these payloads as views of `data`. Raises FormatError if the
    message is damaged.

    Parts that are copied unread are checked when the skeleton is parsed.
    """
    walk = _MessageWalk(data, max(threshold, 1))
    parts = walk.message(0, len(data), _MODEL, 0)
    size = sum(map(len, parts)) if parts is not None else len(data)
    if size > MAX_SKELETON:
        raise UnsupportedError(
            f"the model without its weights has {size} bytes, the limit is {MAX_SKELETON}",
            hint="store small tensors as raw_data, or split the model",
        )
    return Skeleton(bytes(data) if parts is None else b"".join(parts), walk.payloads)


class _MessageWalk:
    def __init__(self, data: memoryview, threshold: int) -> None:
        self.data = data
        self.threshold = threshold
        self.payloads: list[memoryview] = []
        self.fields = 0

    def message(self, start: int, end: int, kind: str, depth: int) -> list[memoryview | bytes] | None:
        """The pieces of a message after cutting; None if nothing is cut."""
        if depth > MAX_DEPTH:
            raise FormatError(f"messages are nested deeper than {MAX_DEPTH} levels", hint=_DAMAGED)
        if kind == _TENSOR:
            return self.tensor(start, end)
        data, threshold, children, unread = self.data, self.threshold, _CHILDREN[kind], _UNREAD.get(kind)
        parts: list[memoryview | bytes] = []
        pos = copied = start
        fields = 0
        while pos < end:
            at, tag = pos, data[pos]
            pos += 1
            if tag >= 0x80:
                tag, pos = self.varint(at, end)
            fields += 1
            if tag & 7 != _BYTES:
                run = _RUN.match(data, at, end) if kind == _ATTRIBUTE and tag in (_FLOATS, _INTS) else None
                pos = self.skip(tag, pos, end) if run is None else run.end()
                continue
            length = data[pos] if pos < end else 0x80
            pos += 1
            if length >= 0x80:
                length, pos = self.varint(pos - 1, end)
            if length > end - pos:
                raise _truncated(pos)
            if tag >> 3 == unread:
                parts.append(data[copied:at])
                copied = pos + length
            elif length >= threshold and (child := children.get(tag >> 3)) is not None:
                inner = self.message(pos, pos + length, child, depth + 1)
                if inner is not None:
                    parts.append(data[copied:at])
                    parts.append(encode(tag) + encode(sum(map(len, inner))))
                    parts += inner
                    copied = pos + length
            pos += length
        self.count(fields)
        if not parts:
            return None
        parts.append(data[copied:end])
        return parts

    def tensor(self, start: int, end: int) -> list[memoryview | bytes] | None:
        """A tensor without its payload; None if the payload is small or in several pieces."""
        found = []
        pos, data_type = start, 0
        count = 0
        while pos < end:
            at = pos
            tag, pos = self.varint(pos, end)
            field, count = tag >> 3, count + 1
            if tag & 7 != _BYTES:
                if field == _DATA_TYPE and tag & 7 == _VARINT:
                    data_type, _ = self.varint(pos, end)
                if field in (_DATA_LOCATION, _FLOAT_DATA, _DOUBLE_DATA):
                    return None
                pos = self.skip(tag, pos, end)
                continue
            length, pos = self.varint(pos, end)
            if length > end - pos:
                raise _truncated(pos)
            if field == _EXTERNAL_DATA:
                return None
            if field in (_FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA):
                found.append((field, at, pos, pos + length))
            pos += length
        self.count(count)
        if len(found) != 1:
            return None
        field, at, first, last = found[0]
        if last - first < self.threshold or (field != _RAW_DATA and (field, data_type) not in _SAME_AS_RAW):
            return None
        self.payloads.append(self.data[first:last])
        return [self.data[start:at], _reference(len(self.payloads) - 1), self.data[last:end]]

    def count(self, fields: int) -> None:
        self.fields += fields
        if self.fields > MAX_FIELDS:
            raise FormatError(f"more than {MAX_FIELDS} fields", hint=_DAMAGED)

    def skip(self, tag: int, pos: int, end: int) -> int:
        """The position after a field that is not length-delimited."""
        kind = tag & 7
        if tag < 8:
            raise FormatError(f"byte {pos}: field number 0", hint=_DAMAGED)
        if kind == _VARINT:
            return self.varint(pos, end)[1]
        if kind not in (_FIXED64, _FIXED32):
            raise FormatError(f"byte {pos}: wire type {kind} does not occur in ONNX", hint=_DAMAGED)
        pos += 8 if kind == _FIXED64 else 4
        if pos > end:
            raise _truncated(end)
        return pos

    def varint(self, pos: int, end: int) -> tuple[int, int]:
        """(number, position after it)."""
        data = self.data
        if pos + 1 < end:  # nearly all numbers have one or two bytes
            first, second = data[pos], data[pos + 1]
            if first < 0x80:
                return first, pos + 1
            if second < 0x80:
                return first & 0x7F | second << 7, pos + 2
        value = shift = 0
        for at in range(pos, min(end, pos + 10)):
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
            shift += 7
        raise _truncated(pos)


_DAMAGED = "the file is damaged or no ONNX model: export or download it again"


def _truncated(pos: int) -> FormatError:
    return FormatError(f"a field at byte {pos} runs beyond the message that holds it", hint=_DAMAGED)


def encode(number: int) -> bytes:
    """A number as varint."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _reference(number: int) -> bytes:
    """The fields data_location and external_data that replace a payload."""
    location = (MARKER + str(number)).encode()
    entry = b"\x0a\x08location\x12" + encode(len(location)) + location
    return encode(_DATA_LOCATION << 3) + b"\x01" + encode(_EXTERNAL_DATA << 3 | _BYTES) + encode(len(entry)) + entry
