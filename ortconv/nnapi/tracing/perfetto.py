"""Traces of Perfetto: the texts that programs write into Linux's trace buffer, in protobuf's wire format.

A trace is a sequence of packets (field 1). A packet has the events of one CPU (field 1), or more packets in deflated form
(field 50). An event has the time in nanoseconds (1), the thread (2) and, if a program wrote it, a text (field 2 of 3). All other
fields are skipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from ortconv.errors import FormatError
from ortconv.protobuf import BYTES, fields, varint

PACKET, EVENTS, DEFLATED = 1, 1, 50
EVENT, LOST = 2, 3
TIME, THREAD, PRINT = 1, 2, 3
TEXT = 2

FIRST = bytes([PACKET << 3 | BYTES])
"""The first byte of each packet, which is also a line feed."""

LARGEST_PACKETS = 256 << 20
"""Limit on the bytes that one deflated packet may have."""

DAMAGED = "record the trace again: the file is damaged, or was cut"

_fields = partial(fields, source="the trace", hint=DAMAGED)


class Written(NamedTuple):
    """What a program wrote into a trace: its thread, its process where that is known, the time in seconds, and the text."""

    thread: int
    process: str
    at: float
    text: str


def is_perfetto(data: bytes) -> bool:
    """Whether a file begins with a packet that the next one or the end of the file follows. Text has no such lengths."""
    if data[:1] != FIRST:
        return False
    try:
        size, at = varint(memoryview(data), 1, "the trace")
    except FormatError:
        return False
    return data[at + size : at + size + 1] == FIRST or at + size == len(data)


def written(data: bytes) -> tuple[list[Written], int]:
    """All texts in the order of time, and how often a CPU's buffer lost events. FormatError for a damaged trace."""
    found: list[Written] = []
    lost = 0
    for packet in _packets(memoryview(data)):
        for number, bundle in _fields(packet):
            if number != EVENTS or isinstance(bundle, int):
                continue
            for kind, value in _fields(bundle):
                if kind == EVENT and not isinstance(value, int):
                    found += _printed(value)
                elif kind == LOST and value:
                    lost += 1
    return sorted(found, key=attrgetter("at")), lost


def _packets(data: memoryview, *, deflated: bool = False) -> Iterator[memoryview]:
    """The packets of a trace, with those that are stored in deflated form. These do not nest."""
    for number, packet in _fields(data):
        if number != PACKET or isinstance(packet, int):
            continue
        yield packet
        if deflated:
            continue
        for kind, inner in _fields(packet):
            if kind == DEFLATED and not isinstance(inner, int):
                yield from _packets(memoryview(_inflated(inner)), deflated=True)


def _inflated(data: memoryview) -> bytes:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, LARGEST_PACKETS)
    except zlib.error as error:
        raise FormatError(f"deflated packets cannot be read: {error}", hint=DAMAGED) from error
    if reader.unconsumed_tail:
        raise FormatError(f"deflated packets have more than {LARGEST_PACKETS} bytes, which is the limit here")
    return found


def _printed(event: memoryview) -> Iterator[Written]:
    """The text of an event, if it has one."""
    parts = dict(_fields(event))
    at, thread, printed = parts.get(TIME, 0), parts.get(THREAD, 0), parts.get(PRINT)
    if isinstance(printed, memoryview) and isinstance(at, int) and isinstance(thread, int):
        text = dict(_fields(printed)).get(TEXT)
        if isinstance(text, memoryview):
            yield Written(thread, "", at / 1e9, bytes(text).decode(errors="replace").rstrip("\n"))
