"""Reads and writes .npy and .npz files. A header is checked before any memory is allocated for it."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from ortconv.errors import FormatError, OrtconvError, UnsafeInputError, UsageError
from ortconv.files import created, opened, replacing
from ortconv.ir.tensor import Array
from ortconv.process import usable_memory

ArrayCheck = Callable[[str, np.dtype[Any], tuple[int, ...]], None]
"""Raises UsageError for an array whose name, dtype or shape is not acceptable."""

PIECE_BYTES = 1 << 20
MOST_ARRAYS = 10_000
MOST_AXES = 64

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""The functions that read a header, by the version of the format."""


def read_npz(path: Path, check: ArrayCheck | None = None) -> dict[str, Array]:
    """The arrays of an .npz file by name.

    Raises FormatError if it is not an .npz file or is damaged, UnsafeInputError for pickled objects, UsageError for arrays that
    `check` refuses or that do not fit into memory.
    """
    hint = "write one with numpy.savez(path, name=array)"
    with _reading(".npz archive", path, hint), opened(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MOST_ARRAYS:
            raise FormatError(f"holds {len(members)} arrays, more than {MOST_ARRAYS}")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as stream:
                found[name] = _array(stream, member.file_size, name, check)
        return found


def read_npy(path: Path, name: str, check: ArrayCheck | None = None) -> Array:
    """The array of an .npy file; `check` is called with `name`. Raises the same errors as `read_npz`."""
    hint = "write one with numpy.save(path, array)"
    with _reading(".npy file", path, hint), opened(path) as file:
        return _array(file, path.stat().st_size, name, check)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as .npz; strings as fixed-width text, and elements of types that numpy lacks as their bytes."""
    lists = [name for name, a in arrays.items() if a is None or isinstance(a, list | dict)]
    if lists:
        raise UsageError(f"'{lists[0]}' is not a tensor, and .npz files hold nothing else", file=path)
    plain = {name: _plain(np.asarray(a)) for name, a in arrays.items()}
    with replacing(path) as draft, created(draft) as file:
        np.savez(file, **plain)  # type: ignore[arg-type]


def _plain(array: Array) -> Array:
    type = array.dtype
    if type.kind == "O":
        return array.astype(str)
    return array if type.isbuiltin != 2 else array.view(f"V{type.itemsize}")


def check_room(count: int, what: str) -> None:
    """Raise UsageError if this process cannot allocate this number of bytes."""
    room = _room()
    if count > room:
        raise UsageError(f"{what} takes {count} bytes, and there are {room} bytes of memory")


@contextmanager
def _reading(kind: str, path: Path, hint: str) -> Iterator[None]:
    """Convert exceptions that zipfile, zlib and numpy raise for damaged files, of any type, to an error with the file's name."""
    try:
        yield
    except OrtconvError as error:
        error.at(file=path)
        raise
    except MemoryError as error:
        raise UsageError("does not fit into memory", file=path) from error
    except Exception as error:
        raise FormatError(f"not a valid {kind}: {str(error)[:200]}", file=path, hint=hint) from error


def _array(stream: IO[bytes], length: int, name: str, check: ArrayCheck | None) -> Array:
    """Read an array in .npy format from a stream of at most `length` bytes."""
    shape, by_columns, dtype = _header(stream, name)
    count = math.prod(shape)
    if check is not None:
        check(name, dtype, shape)
    if count * dtype.itemsize > length:
        raise FormatError(f"'{name}' ends too early: {count} elements of {dtype} do not fit into {length} bytes")
    check_room(count * dtype.itemsize, f"'{name}', {shape}")
    array = np.zeros(count, dtype)
    if array.nbytes:
        _fill(array.view(np.uint8).data, stream, name)
    _check_text(array, name)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, Any]:
    """The shape of an array in the format .npy, if it is stored by columns, and its type."""
    version = np.lib.format.read_magic(stream)
    read_header = _HEADERS.get(version)
    if read_header is None:
        raise FormatError(f"'{name}' has version {version[0]}.{version[1]} of the format; 1.0 and 2.0 can be read")
    try:
        shape, by_columns, dtype = read_header(stream)
    except (ValueError, TypeError, SyntaxError, TokenError) as error:
        raise FormatError(f"the header of '{name}' is damaged") from error
    if dtype.hasobject:
        raise UnsafeInputError("holds pickled objects, which can run code when they are read")
    if dtype.fields is not None or dtype.subdtype is not None:
        raise FormatError(f"'{name}' has the type {dtype}, which no tensor has")
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MOST_AXES:
        raise FormatError(f"'{name}' has the shape {str(shape)[:80]}")
    return shape, by_columns, dtype


def _fill(view: memoryview, stream: IO[bytes], name: str) -> None:
    at = 0
    while at < len(view):
        piece = stream.read(min(PIECE_BYTES, len(view) - at))
        if not piece:
            raise FormatError(f"'{name}' ends too early: {at} of {len(view)} bytes are there")
        view[at : at + len(piece)] = piece
        at += len(piece)


def _check_text(array: Array, name: str) -> None:
    """Raise FormatError for code points that are not valid characters."""
    if array.dtype.kind == "U" and array.nbytes:
        codes = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if (codes > 0x10FFFF).any() or ((codes >= 0xD800) & (codes < 0xE000)).any():
            raise FormatError(f"'{name}' holds numbers that are not characters")


def _room() -> int:
    """Bytes that this process can allocate: the memory that it may use, or the limit of its address space."""
    found = usable_memory() or 1 << 40
    with suppress(ImportError, ValueError, OSError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        found = found if limit == resource.RLIM_INFINITY else min(limit, found)
    return found
