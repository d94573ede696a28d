"""Models of both formats, in files or in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ortconv.errors import OrtconvError, UsageError
from ortconv.files import opened, renamed, temporary_folder
from ortconv.ir.model import OLDEST_OPSET, Model
from ortconv.public import public

if TYPE_CHECKING:
    from ortconv.onnxproto import GraphProto


class Message(Protocol):
    """An onnx.ModelProto."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview | Message
"""A model: a file's path, the bytes of a file, or an onnx.ModelProto."""

ORT = b"ORTM"
"""Bytes 4 to 8 of a file in ORT format."""


@public
def load(
    source: ModelSource,
    fix_dims: Mapping[str, int] | None = None,
    *,
    freeze_initializers: bool = False,
    only_to_run: bool = False,
    check: Callable[[GraphProto], None] | None = None,
) -> Model:
    """The model of an .onnx or .ort file. The name of the file decides which one it is, or its content if the name does not.

    The bytes of such a file and a ModelProto, both with their weights inside, are accepted as well. `fix_dims` gives numbers for
    symbolic dimensions of an ONNX model. With `freeze_initializers`, its inputs with a default value become constants. Operator
    sets before 7, which ONNX Runtime has few kernels for and no rewrite expects, are refused unless the model is `only_to_run`.
    `check` may refuse the graph of an ONNX model before it is built.
    """
    oldest = 1 if only_to_run else OLDEST_OPSET
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if is_ort(path):
            from ortconv.ortformat.reader import load as load_ort

            return load_ort(path)
        from ortconv.onnxio import load as onnx

        return onnx.load(path, onnx.Reading(fix_dims, freeze_initializers, oldest, check))
    data = content(source)
    if data[4:8] == ORT:
        from ortconv.ortformat.reader import parse

        return parse(data)
    from ortconv.onnxio import load as onnx

    return onnx.from_bytes(data, onnx.Reading(fix_dims, freeze_initializers, oldest, check))


def is_ort(path: Path) -> bool:
    """Whether a file is in ORT format: by its suffix, or by its content if the suffix is not that of a model."""
    suffix = path.suffix.lower()
    if suffix in (".ort", ".onnx") or not path.is_file():
        return suffix == ".ort"
    with opened(path) as file:
        return file.read(8)[4:] == ORT


def content(source: bytes | bytearray | memoryview | Message) -> memoryview:
    """The bytes of a model in memory. UsageError for an object that is not a model."""
    if isinstance(source, bytes | bytearray | memoryview):
        return memoryview(source).cast("B")
    try:
        return memoryview(source.SerializeToString())
    except AttributeError:
        hint = "give a path, the bytes of a file, or an onnx.ModelProto"
        raise UsageError(f"not a model, but of type {type(source).__name__}", hint=hint) from None
    except Exception as error:  # protobuf has a type for each reason
        raise UsageError(
            f"the {type(source).__name__} cannot be serialized: {error}", hint="save it to a file"
        ) from error


@contextmanager
def as_file(source: ModelSource) -> Iterator[tuple[Path, str]]:
    """The file of a model, and its label. A model in memory is written to a file that exists until the end of the block. Errors
    name such a model by its label.
    """
    if isinstance(source, str | os.PathLike):
        yield Path(source), str(source)
        return
    data = content(source)
    with temporary_folder() as folder:
        path = folder / f"model.{'ort' if data[4:8] == ORT else 'onnx'}"
        path.write_bytes(data)
        label = f"<{type(source).__name__}>"
        try:
            yield path, label
        except OrtconvError as error:
            raise renamed(error, path, label) from error.__cause__


def find_models(path: Path) -> list[Path]:
    """The .onnx files below a directory, sorted, without those that a conversion wrote; or the one file itself."""
    return [file for file in files_below(path, (".onnx",)) if is_source(file.name)] if path.is_dir() else [path]


def is_source(path: str) -> bool:
    """Whether a file, by its path below a folder, is a model to convert: an .onnx file that is not hidden and that no conversion
    wrote.
    """
    name = path.lower()
    return name.endswith(".onnx") and not name.endswith(".optimized.onnx") and not _is_hidden(path)


def _is_hidden(path: str) -> bool:
    """Whether the name of a file or of a folder above it begins with a dot, such as .venv."""
    return path.startswith(".") or "/." in path


def files_below(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files below a directory whose names end so, sorted, without hidden ones and those in hidden folders."""
    named = (path for path in folder.rglob("*") if path.name.lower().endswith(tuple(suffixes)))
    return sorted(p for p in named if not _is_hidden(p.relative_to(folder).as_posix()) and not p.is_dir())
