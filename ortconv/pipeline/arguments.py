"""Options of a conversion as arguments of `ortconv convert`, for manifests and recommended commands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ortconv.errors import OrtconvError
from ortconv.files import digest
from ortconv.pipeline.options import Options

FLAGS = {
    "coreml_static_inputs": "coreml-only-static-input-shapes",
    "coreml_on_subgraphs": "coreml-enable-on-subgraph",
    "fix_dims": "fix-dim",
    "enable_passes": "enable-pass",
    "disable_passes": "disable-pass",
    "only_passes": "only-pass",
}
"""The flags of fields whose flag has another name."""

LEFT_OUT = ("details", "write_config", "manifest", "stamp")
"""Fields that do not affect the nodes of the result."""

OF_A_PIPELINE = ("optimization_level", "fold_limit", "stop_after")
"""Fields that a pipeline determines."""


def arguments(options: Options) -> list[str]:
    """The options that differ from their defaults, one argument each, in the order of the fields, such as --fix-dim=batch=1.

    Contents of files (inputs, a device, a pipeline, a library) are represented by their SHA-256.
    """
    found = []
    for field in fields(Options):
        value, name = getattr(options, field.name), field.name
        if name in LEFT_OUT or (options.pipeline is not None and name in OF_A_PIPELINE):
            continue
        write = _WRITERS.get(name, _texts)
        if (texts := write(value)) != write(getattr(DEFAULTS, name)):
            found += [_argument(FLAGS.get(name, name.replace("_", "-")), text) for text in texts]
    return found


def read_arguments(texts: Sequence[str]) -> Options | None:
    """The options that `arguments` wrote. None if one of them is the digest of a file that decides about nodes, or is unknown."""
    names = {FLAGS.get(field.name, field.name.replace("_", "-")): field.name for field in fields(Options)}
    found: dict[str, Any] = {}
    for text in texts:
        flag, _, value = text.removeprefix("--").partition("=")
        name = names.get(flag, names.get(flag.removeprefix("no-"), ""))
        if not name or name in OF_FILES:
            return None
        if name != "validate_with":
            found[name] = _read(name, value, found.get(name), is_on=flag in names)
    try:
        return Options(**found)
    except OrtconvError:
        return None


def _read(name: str, text: str, before: Any, *, is_on: bool) -> Any:
    """The value of a field with one more argument."""
    default = getattr(DEFAULTS, name)
    if name in _READERS:
        return _READERS[name](text)
    if isinstance(default, bool):
        return is_on
    if isinstance(default, tuple):
        return (*(before or ()), text)
    if isinstance(default, Mapping):
        key, _, number = text.rpartition("=")
        return {**(before or {}), key: int(number)}
    return text if default is None else type(default)(text)


_READERS: Mapping[str, Callable[[str], Any]] = {
    "nnapi_partitioning_stop_ops": lambda text: tuple(filter(None, text.split(","))),
    "max_partitions": int,
    "stop_after": int,
}
"""Fields that are read in a way of their own."""

OF_FILES = ("pipeline", "device", "custom_op_library")
"""Fields that decide about nodes and are written as digests of files."""


def _argument(flag: str, text: str) -> str:
    if text == "True":
        return f"--{flag}"
    return f"--no-{flag}" if text == "False" else f"--{flag}={text}"


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [f"{name}={one}" for name, one in value.items()]
    return list(map(str, value)) if isinstance(value, tuple) else [str(value)]


def _contents(value: Any) -> list[str]:
    """The digests of one or several sets of arrays."""
    sets = () if value is None else (value,) if isinstance(value, Mapping) else value
    return [_sha256(json.dumps(plain(one), sort_keys=True)) for one in sets]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


_WRITERS: Mapping[str, Callable[[Any], list[str]]] = {
    "nnapi_partitioning_stop_ops": lambda ops: [] if ops is None else [",".join(ops)],
    "pipeline": lambda text: [] if text is None else [_sha256(text)],
    "device": lambda device: (
        [] if device is None else [_sha256(json.dumps(asdict(device), sort_keys=True, default=str))]
    ),
    "validate_with": _contents,
    "custom_op_library": lambda path: [] if path is None else [digest(path)],
}
"""Functions for fields whose values are written in a special way."""

DEFAULTS = Options()


def plain(value: Any) -> Any:
    """The value of an option as JSON: files and arrays become digests."""
    if isinstance(value, Path):
        return digest(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if hasattr(value, "dtype"):
        content = json.dumps(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(content).hexdigest()]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
