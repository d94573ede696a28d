"""Protobuf's wire format: the fields of small messages, without a description of them. `onnxio/wire` reads large models."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.errors import FormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

Field = tuple[int, int | memoryview]
"""The number of a field, and its value: a number, or the bytes of a text, a message or a fixed number."""


def fields(message: memoryview, source: str, hint: str | None = None) -> Iterator[Field]:
    """The fields of a message. FormatError for a damaged one, with the name of its source and a hint."""
    at, end = 0, len(message)
    while at < end:
        tag, at = varint(message, at, source, hint)
        kind = tag & 7
        if kind == VARINT:
            value, at = varint(message, at, source, hint)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            size, at = varint(message, at, source, hint)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise FormatError(f"a field of {source} has the unknown wire type {kind}", hint=hint)
        if size > end - at:
            raise FormatError(f"{source} ends within a field", hint=hint)
        yield tag >> 3, message[at : at + size]
        at += size


def varint(message: memoryview, at: int, source: str, hint: str | None = None) -> tuple[int, int]:
    """An unsigned number, and the position after it. FormatError as for `fields`."""
    value = 0
    for shift, byte in zip(range(0, 70, 7), message[at : at + 10], strict=False):
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise FormatError(f"{source} ends within a number, or has one of more than 10 bytes", hint=hint)
