"""Decodes the bytes of an .ort file into records, one per table. Every reference is checked before it is followed.

An object is decoded once, however often it is referenced, and all objects together may not claim more bytes than the file has. So
time and memory stay in proportion to the file size.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from ortconv.errors import FormatError
from ortconv.ortformat.layout import (
    EDGE_END_BYTES,
    ENUMS,
    IDENTIFIER,
    LARGEST_DEPTH,
    LARGEST_VISITS,
    SCALARS,
    TABLES,
    UNION,
    stored,
)

_HINT = "ortconv convert makes an .ort file of an ONNX model, which is named x.onnx"


def _not_ort(buffer: memoryview, found: bytes) -> FormatError:
    """The error for bytes without the identifier of an .ort file."""
    from ortconv.onnxio.check import foreign

    if len(buffer) < 8:
        reason = f"the file has {len(buffer)} bytes, too few for an .ort file"
    else:
        reason = f"byte 4: not an .ort file: the identifier is {found!r} instead of {IDENTIFIER!r}"
    return foreign(buffer) or FormatError(reason, hint=_HINT)


Record = Any
"""A named tuple with the fields of a table. An absent reference is None; vectors of references are lists, vectors of numbers are
tuples, and bytes and structs are memoryviews.
"""

Read = Callable[[int, int], Any]
"""Reads a field: (position of the field, depth of its table) -> content."""

FIELDS = {kind: [f for f in slots if f is not None] for kind, slots in TABLES.items()}
RECORDS: dict[str, Any] = {kind: namedtuple(kind, [f.name for f in fields]) for kind, fields in FIELDS.items()}
REQUIRED = {kind: [i for i, f in enumerate(fields) if f.required] for kind, fields in FIELDS.items()}

_u32 = struct.Struct("<I").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u16 = struct.Struct("<H").unpack_from


class Decoder:
    """Decodes one buffer. `visits` counts tables in the same way as onnxruntime's verifier."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = memoryview(buffer).cast("B").toreadonly()
        self.size = len(self.buffer)
        self.visits = 0
        self._allowance = 2 * self.size + 64
        self._deepest = 0
        self._tables: dict[str, dict[int, tuple[Record, int, int]]] = {kind: {} for kind in TABLES}
        self._plans: dict[tuple[str, int], tuple[int, list[tuple[int, int, Read]]]] = {}
        self._vectors: dict[tuple[str, int], Any] = {}
        self._kinds: dict[int, str] = {}
        self._readers = {kind: self._table_readers(kind) for kind in TABLES}
        self._defaults = {kind: [f.default for f in fields] for kind, fields in FIELDS.items()}

    def root(self) -> Record:
        """The InferenceSession record. Raises FormatError if the buffer is not a well-formed .ort file."""
        found = bytes(self.buffer[4:8])
        if found != IDENTIFIER:
            raise _not_ort(self.buffer, found)
        return self._table("InferenceSession", self._target(0, "the root"), 1)

    # ------------------------------------------------------------------ tables

    def _table(self, kind: str, at: int, depth: int) -> Record:
        known = self._tables[kind].get(at)
        if known is not None:
            record, visits, height = known
            self._count(visits, at, kind)
            self._deeper(depth + height, at, kind)
            return record
        outer, self._deepest = self._deepest, depth
        before = self.visits
        self._count(1, at, kind)
        self._deeper(depth, at, kind)
        record = self._read_table(kind, at, depth)
        self._tables[kind][at] = record, self.visits - before, self._deepest - depth
        self._deepest = max(outer, self._deepest)
        return record

    def _count(self, visits: int, at: int, kind: str) -> None:
        self.visits += visits
        if self.visits > LARGEST_VISITS:
            raise FormatError(
                f"byte {at}, {kind}: more than {LARGEST_VISITS} tables, which onnxruntime refuses to load"
            )

    def _deeper(self, depth: int, at: int, kind: str) -> None:
        if depth > LARGEST_DEPTH:
            raise FormatError(f"byte {at}, {kind}: tables are nested more than {LARGEST_DEPTH} deep")
        if depth > self._deepest:
            self._deepest = depth

    def _read_table(self, kind: str, at: int, depth: int) -> Record:
        self._check(at, 4, 4, kind)
        vtable = at - _i32(self.buffer, at)[0]
        plan = self._plans.get((kind, vtable))
        if plan is None:
            plan = self._plans[kind, vtable] = self._plan(kind, vtable, at)
        size, fields = plan
        self._check(at, size, 4, kind)
        self._claim(size, at, kind)
        values: list[Any] = list(self._defaults[kind])
        for index, offset, read in fields:
            values[index] = read(at + offset, depth)
        if kind == "TypeInfo":
            values[2] = self._union(values[1], values[2], at, depth)
        record = RECORDS[kind]._make(values)
        for index in REQUIRED[kind]:
            if record[index] is None:
                raise FormatError(f"byte {at}, {kind}.{record._fields[index]}: is missing")
        return record

    def _plan(self, kind: str, vtable: int, at: int) -> tuple[int, list[tuple[int, int, Read]]]:
        """The size of a table, and (field, offset, reader) for each field present."""
        where = f"{kind}'s vtable"
        self._check(vtable, 4, 2, where)
        length, size = _u16(self.buffer, vtable)[0], _u16(self.buffer, vtable + 2)[0]
        if length < 4 or length % 2 or size < 4:
            raise FormatError(f"byte {vtable}, {where}: lengths {length} and {size} are impossible")
        self._check(vtable, length, 2, where)
        fields = []
        for slot, reader in enumerate(self._readers[kind]):
            if 4 + 2 * slot >= length:
                break
            offset = _u16(self.buffer, vtable + 4 + 2 * slot)[0]
            if offset == 0 or reader is None:
                continue
            index, name, width, read = reader
            if offset < 4 or offset + width > size:
                raise FormatError(f"byte {vtable + 4 + 2 * slot}, {kind}.{name}: lies outside of its table")
            fields.append((index, offset, read))
        return size, fields

    def _table_readers(self, kind: str) -> list[tuple[int, str, int, Read] | None]:
        """(field, name, bytes, reader) for each slot; None for an unused slot."""
        readers: list[tuple[int, str, int, Read] | None] = []
        index = 0
        for field in TABLES[kind]:
            if field is None:
                readers.append(None)
                continue
            scalar = stored(field.kind)
            width = struct.calcsize("<" + SCALARS[scalar]) if scalar else 4
            readers.append((index, field.name, width, self._reader(field.kind, f"{kind}.{field.name}")))
            index += 1
        return readers

    # ------------------------------------------------------------------ fields

    def _reader(self, kind: str, where: str) -> Read:
        scalar = stored(kind)
        if scalar is not None:
            return self._scalar_reader(kind, scalar, where)
        if kind == "union":
            return lambda at, depth: self._target(at, where)
        if kind in ("string", "bytes"):
            return lambda at, depth: self._string(kind, self._target(at, where), where)
        if kind in TABLES:
            return lambda at, depth: self._table(kind, self._target(at, where), depth + 1)
        element = kind[1:-1]
        if element in TABLES or element in ("string", "bytes"):
            return lambda at, depth: self._references(element, self._target(at, where), where, depth)
        return lambda at, depth: self._plain(element, self._target(at, where), where)

    def _scalar_reader(self, kind: str, scalar: str, where: str) -> Read:
        unpack = struct.Struct("<" + SCALARS[scalar])
        width, buffer, limit = unpack.size, self.buffer, ENUMS[kind][1] if kind in ENUMS else None

        def read(at: int, depth: int) -> Any:
            if at % width:
                raise FormatError(f"byte {at}, {where}: is not aligned to {width} bytes")
            value = unpack.unpack_from(buffer, at)[0]
            if limit is not None and not 0 <= value < limit:
                raise FormatError(f"byte {at}, {where}: {value} is none of the {limit} values of {kind}")
            return value

        return read

    def _union(self, tag: int, at: int | None, table: int, depth: int) -> Record:
        if (tag == 0) != (at is None):
            raise FormatError(f"byte {table}, TypeInfo.value: tag {tag} and content do not fit together")
        return None if at is None else self._table(UNION[tag], at, depth + 1)

    def _string(self, kind: str, at: int, where: str) -> Any:
        """A str for kind "string", which must be UTF-8; bytes for kind "bytes"."""
        known = self._vectors.get((kind, at))
        if known is not None:
            return known
        self._has_one_kind("a string", at, where)
        count = self._length(at, 1, where, extra=1)
        end = at + 4 + count
        if self.buffer[end]:
            raise FormatError(f"byte {end}, {where}: the string does not end with a NUL")
        text: Any = bytes(self.buffer[at + 4 : end])
        if kind == "string":
            try:
                text = text.decode()
            except UnicodeDecodeError:
                raise FormatError(f"byte {at}, {where}: the string is not UTF-8") from None
        self._vectors[kind, at] = text
        return text

    def _references(self, element: str, at: int, where: str, depth: int) -> list[Any]:
        key = f"[{element}]", at
        self._has_one_kind("a vector", at, where)
        count = self._length(at, 4, where, claim=key not in self._vectors)
        self._vectors[key] = True
        places = range(at + 4, at + 4 + 4 * count, 4)
        if element in TABLES:
            return [self._table(element, self._target(place, where), depth + 1) for place in places]
        return [self._string(element, self._target(place, where), where) for place in places]

    def _plain(self, element: str, at: int, where: str) -> Any:
        known = self._vectors.get((element, at))
        if known is not None:
            return known
        self._has_one_kind("a vector", at, where)
        if element in ("u8", "EdgeEnd"):
            width = EDGE_END_BYTES if element == "EdgeEnd" else 1
            count = self._length(at, width, where)
            found: Any = self.buffer[at + 4 : at + 4 + width * count]
        else:
            count = self._length(at, struct.calcsize("<" + SCALARS[element]), where)
            found = struct.unpack_from(f"<{count}{SCALARS[element]}", self.buffer, at + 4)
        self._vectors[element, at] = found
        return found

    # ------------------------------------------------------------------ bounds

    def _has_one_kind(self, kind: str, at: int, where: str) -> None:
        """Raise FormatError if the same position is read as a string and as a vector: no writer shares memory between these."""
        known = self._kinds.setdefault(at, kind)
        if known != kind:
            raise FormatError(f"byte {at}, {where}: is {kind} here, but {known} elsewhere")

    def _target(self, at: int, where: str) -> int:
        """The position that a reference points to."""
        offset: int = _u32(self.buffer, at)[0]
        if at % 4 or offset == 0 or at + offset > self.size - 4:
            raise FormatError(f"byte {at}, {where}: the reference leads out of the file")
        return at + offset

    def _length(self, at: int, width: int, where: str, *, extra: int = 0, claim: bool = True) -> int:
        """The number of elements of a vector. Raises FormatError if they do not all lie within the file."""
        self._check(at, 4, 4, where)
        count: int = _u32(self.buffer, at)[0]
        if count * width + extra > self.size - at - 4:
            raise FormatError(f"byte {at}, {where}: {count} elements do not fit into the file")
        if claim:
            self._claim(4 + count * width + extra, at, where)
        return count

    def _check(self, at: int, size: int, alignment: int, where: str) -> None:
        if at < 0 or at + size > self.size or at % alignment:
            raise FormatError(f"byte {at}, {where}: lies outside of the file or is not aligned")

    def _claim(self, size: int, at: int, where: str) -> None:
        self._allowance -= size
        if self._allowance < 0:
            raise FormatError(f"byte {at}, {where}: objects overlap")
