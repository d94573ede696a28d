"""External data: payloads in separate files, which must be regular files below the model's directory."""

from __future__ import annotations

import errno
import math
import os
import stat
from pathlib import Path

from ortconv.errors import FormatError, ModelError, UnsafeInputError
from ortconv.files import mapped
from ortconv.ir.types import DType
from ortconv.onnxproto import TensorProto

SMALL = 1 << 16
"""Files up to this number of bytes are read instead of mapped: a mapping keeps a file descriptor open."""

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE |= getattr(os, "O_BINARY", 0)
_JUNCTION = 0xA0000003
"""IO_REPARSE_TAG_MOUNT_POINT of Windows."""

_COPY = "if you trust it, copy the file itself into the model's directory (cp -L)"


class ExternalData:
    """The external files of one model. Each is opened when first needed and mapped once."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = os.fspath(directory) or "."
        self._files: dict[str, memoryview] = {}

    def payload(self, tensor: TensorProto) -> memoryview:
        """The bytes that a tensor's external_data entries refer to.

        Raises UnsafeInputError if they are not in a regular file below the directory, ModelError if the file does not exist.
        """
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        data = self._open(location)
        offset = _number(entries.get("offset") or "0", "offset", tensor)
        length = _needed(tensor) if "length" not in entries else _number(entries["length"], "length", tensor)
        if length is None:
            length = max(data.nbytes - offset, 0)
        if offset + length > data.nbytes:
            raise UnsafeInputError(
                f"tensor '{tensor.name}': bytes {offset} to {offset + length} of '{location}', which has {data.nbytes}",
                hint="the external data file is truncated or belongs to another model",
            )
        return data[offset : offset + length]

    @property
    def nbytes(self) -> int:
        """The size of all files used so far."""
        return sum(data.nbytes for data in self._files.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The files used so far, relative to the directory."""
        return tuple(self._files)

    def _open(self, location: str) -> memoryview:
        parts = components(location)
        key = "/".join(parts)
        if key not in self._files:
            self._files[key] = _map(self.directory, parts, location)
        return self._files[key]


def components(location: str) -> list[str]:
    """Split a relative path into its components. Raises UnsafeInputError for a path that could leave the directory."""
    parts = [p for p in location.split("/") if p not in ("", ".")]
    if location.startswith("/") or "\\" in location or "\0" in location or ".." in parts or location[1:2] == ":":
        raise UnsafeInputError(
            f"external data location '{location}' is not a plain path below the model's directory",
            hint="external data must lie in the model's directory or below it",
        )
    if not parts:
        raise FormatError(f"external data location '{location}' names no file")
    return parts


def _map(directory: str, parts: list[str], location: str) -> memoryview:
    """The contents of a file. No symbolic link is followed."""
    file = (_descend if os.open in os.supports_dir_fd else _look_and_open)(directory, parts, location)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _not_regular(location)
        if status.st_nlink > 1:
            raise UnsafeInputError(f"external data '{location}' is a hard link ({status.st_nlink} names)", hint=_COPY)
        if status.st_size <= SMALL:
            return memoryview(_read(file, status.st_size))
        return mapped(file)
    except OSError as error:
        raise _system_error(error, location) from error
    finally:
        os.close(file)


def _descend(directory: str, parts: list[str], location: str) -> int:
    """Open each part in the directory opened before it, so that nobody can replace one by a link in between."""
    try:
        at = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise _system_error(error, location) from error
    for i, part in enumerate(parts):
        try:
            inner = os.open(part, _FILE if i == len(parts) - 1 else _DIRECTORY, dir_fd=at)
        except OSError as error:
            try:
                is_link = _is_link(os.stat(part, dir_fd=at, follow_symlinks=False))
            except OSError:
                is_link = False
            raise _link(part, location) if is_link else _refusal(error, location, directory) from error
        finally:
            os.close(at)
        at = inner
    return at


def _look_and_open(directory: str, parts: list[str], location: str) -> int:
    """The same on systems that open no directories, such as Windows: look at each part, then open the file."""
    path = directory
    try:
        for part in parts:
            path = os.path.join(path, part)
            if _is_link(os.lstat(path)):
                raise _link(part, location)
        if os.path.isdir(path):
            raise _not_regular(location)
        return os.open(path, _FILE)
    except OSError as error:
        raise _refusal(error, location, directory) from error


def _not_regular(location: str) -> UnsafeInputError:
    return UnsafeInputError(f"external data '{location}' is not a regular file")


def _is_link(status: os.stat_result) -> bool:
    """Whether a part is a symbolic link or a junction of Windows."""
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def _link(part: str, location: str) -> UnsafeInputError:
    return UnsafeInputError(f"external data '{location}': '{part}' is a symbolic link", hint=_COPY)


def _read(file: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(file, size - len(data))):
        data += more
    return data


def _refusal(error: OSError, location: str, directory: str) -> ModelError | UnsafeInputError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ModelError(
            f"external data '{location}' does not exist in '{directory}'",
            hint="keep the model and its data files together, under their original names",
        )
    if error.errno == errno.ENXIO:
        return _not_regular(location)
    return _system_error(error, location)


def _system_error(error: OSError, location: str) -> ModelError:
    hint = "raise the limit of open files (ulimit -n)" if error.errno in (errno.EMFILE, errno.ENFILE) else None
    return ModelError(f"external data '{location}': {error.strerror}", hint=hint)


def _number(text: str, key: str, tensor: TensorProto) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise FormatError(f"tensor '{tensor.name}': external data {key} is '{text[:40]}', not a number of bytes")
    return int(text)


def _needed(tensor: TensorProto) -> int | None:
    """Bytes for a tensor of this shape and element type; None if these are invalid."""
    try:
        bits = DType(tensor.data_type).bits
    except ValueError:
        return None
    return (math.prod(tensor.dims) * bits + 7) // 8 if bits and all(d >= 0 for d in tensor.dims) else None
