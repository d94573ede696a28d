"""Options of a project file as fields of Options. Keys have the names of `ortconv convert`'s flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ortconv.choices import natural
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import byte_count, read_text
from ortconv.pipeline.arguments import FLAGS
from ortconv.pipeline.options import Options

OF_BUILD = ("details", "write_config", "manifest")
"""Fields that `build` sets itself."""

KEYS = {FLAGS.get(f.name, f.name.replace("_", "-")): f.name for f in fields(Options) if f.name not in OF_BUILD}
"""The field of each key."""

Table = Mapping[str, Any]


def options_of_table(table: Table, folder: Path) -> Options:
    """The options of a table. Its keys are those of KEYS, its files relative to the folder. UsageError for a wrong value."""
    given: dict[str, Any] = {}
    for key, value in table.items():
        name = KEYS[key]
        try:
            given[name] = READERS[name](value, folder) if name in READERS else value
        except OrtconvError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{key} is {value!r}: {error}") from None
    return Options.of(given | {"write_config": False, "manifest": True})


def _list(value: Any, folder: Path) -> Any:
    return [value] if isinstance(value, str) else value


def _names(value: Any, folder: Path) -> Any:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _sizes(value: Any, folder: Path) -> dict[str, int]:
    """Sizes by name: a table, or texts NAME=N as on the command line."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = [text.rpartition("=") for text in _list(value, folder)]
    sizes = {name: size for name, _, number in pairs if (size := natural(number)) is not None}
    if "" in sizes or sizes.keys() != {name for name, _, _ in pairs}:
        raise ValueError('write ["NAME=N"] or {NAME = N}')
    return sizes


def _bytes(value: Any, folder: Path) -> int:
    return byte_count(value) if isinstance(value, str) else value


def _path(value: Any, folder: Path) -> Path:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("it must be the path of a file")
    return folder / value


def _device(value: Any, folder: Path) -> Any:
    from ortconv.partition.profile import read_device

    return read_device(_path(value, folder))


def _arrays(value: Any, folder: Path) -> Any:
    from ortconv.arrays import read_npz

    return [read_npz(_path(one, folder)) for one in _list(value, folder)]


READERS: Mapping[str, Callable[[Any, Path], Any]] = {
    "nnapi_partitioning_stop_ops": _names,
    "fix_dims": _sizes,
    "fold_limit": _bytes,
    "device": _device,
    "pipeline": lambda value, folder: read_text(_path(value, folder)),
    "validate_with": _arrays,
    "custom_op_library": _path,
    **dict.fromkeys(("enable_passes", "disable_passes", "only_passes", "keep_float32", "fail_on"), _list),
}
"""Fields whose value in the file has another form. A list with one text may be given as the text."""
