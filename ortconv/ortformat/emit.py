"""Writes FlatBuffers. It is fast because it handles only 32-bit words.

References in a FlatBuffer point forward, so the buffer is built from its end, children first. `words` holds the buffer in reverse
order, and an object is identified by the index in `words` of its first word. A negative index is in the payloads after the
metadata: -1 - q is word q after the metadata's end.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ortformat.layout import IDENTIFIER, TABLES, Field, stored

Segment = bytes | memoryview
MASK = 0xFFFFFFFF
ALIGNMENT = 4
"""The metadata is a multiple of this number of words. So alignment up to 16 bytes can be computed from indices alone."""


class TableShape(NamedTuple):
    """A table with a given set of fields: the index of its vtable, the order of its 32-bit and 64-bit fields in reverse, and its
    size in words. A 32-bit field has True if it is a reference.
    """

    key: int
    vtable: int
    narrow: list[tuple[int, bool]]
    wide: list[int]
    size: int


class Payloads:
    """Large byte vectors that are written after the metadata. Each has its length first, and its data are aligned to 16 bytes."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.nbytes = 0

    def add(self, data: memoryview) -> int:
        """Append a vector with these bytes and return its index."""
        padding = (12 - self.nbytes) % 16
        at = self.nbytes + padding
        self.segments += (bytes(padding) + struct.pack("<I", data.nbytes & MASK), data)
        self.nbytes = at + 4 + data.nbytes
        return -1 - at // 4


class Emitter:
    """The words of a FlatBuffer in reverse order, with pools of objects that can be shared."""

    def __init__(self, tables: Mapping[str, tuple[Field | None, ...]] = TABLES, identifier: bytes = IDENTIFIER) -> None:
        self._tables = tables
        self._identifier = identifier
        self.words = array("I")
        self._strings: dict[str | bytes, int] = {}
        self._pool: dict[tuple[object, ...], int] = {}
        self._shapes: dict[tuple[str, tuple[str, ...]], TableShape] = {}

    # ------------------------------------------------------------------ tables

    def shape(self, kind: str, *names: str) -> TableShape:
        """The shape of a table in which these fields, in order of slots, are present."""
        found = self._shapes.get((kind, names))
        if found is None:
            found = self._shapes[kind, names] = self._new_shape(kind, names)
        return found

    def _new_shape(self, kind: str, names: tuple[str, ...]) -> TableShape:
        fields = {f.name: (slot, stored(f.kind)) for slot, f in enumerate(self._tables[kind]) if f is not None}
        wide = [i for i, name in enumerate(names) if fields[name][1] == "i64"]
        narrow = [i for i in range(len(names)) if i not in wide]
        slots = [0] * (1 + max((fields[name][0] for name in names), default=-1))
        at = 4
        for i in wide + narrow:
            slots[fields[names[i]][0]] = at
            at += 8 if i in wide else 4
        self._put(struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), at, *slots))
        reversed_narrow = [(i, fields[names[i]][1] is None) for i in reversed(narrow)]
        size = 1 + len(narrow) + 2 * len(wide)
        return TableShape(len(self._shapes), len(self.words) - 1, reversed_narrow, wide[::-1], size)

    def table(self, shape: TableShape, *values: int) -> int:
        """Write a table. The values of its fields are indices for references, else numbers (a float as its bits)."""
        words = self.words
        if shape.wide and not (len(words) + shape.size) & 1:
            words.append(0)
        at = len(words)
        row = []
        for i, is_reference in shape.narrow:
            row.append(4 * (at - values[i]) if is_reference else values[i])
            at += 1
        for i in shape.wide:
            row += ((values[i] >> 32) & MASK, values[i] & MASK)
            at += 2
        row.append(4 * (shape.vtable - at) & MASK)
        words.extend(row)
        return at

    def pooled(self, shape: TableShape, *values: int) -> int:
        """Like table(), but a table with the same fields is written once and shared."""
        key = (shape.key, *values)
        found = self._pool.get(key)
        if found is None:
            found = self._pool[key] = self.table(shape, *values)
        return found

    # ------------------------------------------------------------------ vectors and strings

    def references(self, items: Sequence[int]) -> int:
        """Write a vector of references."""
        at = len(self.words)
        self.words.extend([4 * (at + i - item) for i, item in enumerate(reversed(items))])
        self.words.append(len(items))
        return at + len(items)

    def pooled_references(self, items: tuple[int, ...]) -> int:
        """Like references(), but an equal vector is written once and shared."""
        key = ("references", *items)
        found = self._pool.get(key)
        if found is None:
            found = self._pool[key] = self.references(items)
        return found

    def scalars(self, code: str, items: Sequence[int] | Sequence[float]) -> int:
        """Write a shared vector of numbers with this struct code, aligned to their size."""
        return self.vector(struct.pack(f"<{len(items)}{code}", *items), len(items), struct.calcsize("<" + code) // 4)

    def vector(self, data: bytes, count: int, alignment: int = 1) -> int:
        """Write a shared vector of `count` elements with these bytes. Its data are aligned to `alignment` words."""
        key = (count, data, alignment)
        found = self._pool.get(key)
        if found is None:
            self._align(-(-len(data) // 4), alignment)
            self._put(data)
            self.words.append(count)
            found = self._pool[key] = len(self.words) - 1
        return found

    def string(self, text: str | bytes) -> int:
        """Write a shared string. Surrogate escapes become the bytes that they represent."""
        found = self._strings.get(text)
        if found is None:
            data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            self._put(data + b"\0")
            self.words.append(len(data))
            found = self._strings[text] = len(self.words) - 1
        return found

    # ------------------------------------------------------------------ the whole

    def finish(self, root: int) -> memoryview:
        """The finished buffer; its size is a multiple of 16. Nothing may be added afterward."""
        self._align(2, ALIGNMENT)
        self._put(self._identifier)
        self.words.append(4 * (len(self.words) - root))
        self.words.reverse()
        return np.frombuffer(self.words, np.uint32).astype("<u4", copy=False).data.cast("B")

    def _put(self, data: bytes) -> None:
        count = -(-len(data) // 4)
        self.words.extend(struct.unpack(f"<{count}I", data.ljust(4 * count, b"\0"))[::-1])

    def _align(self, count: int, alignment: int) -> None:
        """Pad so that the block of the next `count` words starts at a multiple of `alignment` words."""
        self.words.extend([0] * (-(len(self.words) + count) % alignment))
