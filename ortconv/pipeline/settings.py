"""The settings of a conversion as keyword arguments: names and types for type checkers, and the same checks at run time."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ortconv.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ortconv.partition.profile import DeviceProfile


FeedSets = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One or several sets of arrays by input name."""


class Settings(TypedDict, total=False):
    """The fields of Options. Lists are accepted as tuples, and strings as paths."""

    optimization_level: str
    optimization_style: str
    target_platform: str | None
    use_nnapi: bool
    nnapi_feature_level: int
    nnapi_partitioning_stop_ops: Sequence[str] | None
    use_coreml: bool
    coreml_format: str
    coreml_version: int
    coreml_static_inputs: bool
    coreml_on_subgraphs: bool
    device: DeviceProfile | None
    max_partitions: int | None
    min_nodes: int
    only_worthwhile: bool
    maximize_offload: bool
    enable_type_reduction: bool
    save_optimized_onnx_model: bool
    write_config: bool
    fix_dims: Mapping[str, int]
    fold_limit: int
    enable_passes: Sequence[str]
    disable_passes: Sequence[str]
    only_passes: Sequence[str]
    stop_after: int | None
    pipeline: str | None
    float16: bool
    error_budget: float
    keep_float32: Sequence[str]
    details: bool
    verify_each: bool
    validate: bool
    validate_on: str
    validate_with: FeedSets | None
    validate_budget: str | None
    allow_unchecked: bool
    custom_op_library: str | Path | None
    target_ort: str | None
    manifest: bool
    stamp: bool
    fail_on: Sequence[str]


LEAST = {"min_nodes": 1, "coreml_version": 1}
"""Minimum values of numbers whose minimum is not 0."""


def check_values(options: DataclassInstance) -> None:
    """Raise UsageError for a setting of the wrong type or out of range. Lists are converted to tuples, strings to paths."""
    for field in fields(options):
        value = getattr(options, field.name)
        kind, _, optional = str(field.type).partition(" | ")
        if value is None and optional:
            continue
        wanted, parse = _KINDS[kind]
        try:
            made = parse(value)
        except (TypeError, ValueError):
            raise UsageError(f"{field.name} is {reprlib.repr(value)}: it must be {wanted}") from None
        if kind in ("int", "float") and made < LEAST.get(field.name, 0):
            raise UsageError(f"{field.name} is {value}: it must be at least {LEAST.get(field.name, 0)}")
        object.__setattr__(options, field.name, made)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return parse


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    return float(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return tuple(value)


def _sizes(value: Any) -> dict[str, int]:
    found = {name: _integer(size) for name, size in value.items()} if isinstance(value, Mapping) else None
    if found is None or not all(isinstance(name, str) and size > 0 for name, size in found.items()):
        raise ValueError
    return found


def _feed_sets(value: Any) -> FeedSets:
    if isinstance(value, Mapping):
        return value
    sets = tuple(value)
    if not all(isinstance(one, Mapping) for one in sets):
        raise TypeError
    return sets


def _path(value: Any) -> Path:
    return Path(os.fspath(value))


def _device(value: Any) -> Any:
    from ortconv.partition.profile import DeviceProfile

    if not isinstance(value, DeviceProfile):
        raise TypeError
    return value


_KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bool": ("True or False", _exactly(bool)),
    "str": ("a text", _exactly(str)),
    "int": ("a whole number", _integer),
    "float": ("a number", _number),
    "tuple[str, ...]": ("a list of texts", _names),
    "Mapping[str, int]": ("a positive whole number for each name", _sizes),
    "FeedSets": ("an array for each name, or a list of such sets", _feed_sets),
    "Path": ("a path", _path),
    "DeviceProfile": ("a device: ortconv.partition.profile.read_device(path)", _device),
}
"""For each field type: a description of its values for messages, and a function that converts a value."""
