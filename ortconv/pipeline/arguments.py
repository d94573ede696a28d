"""Options of a conversion as arguments of `ortconv convert`, for manifests and recommended commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortconv.errors import OrtconvError
from ortconv.pipeline.kinds import FLAG, Option
from ortconv.pipeline.options import OPTIONS, Options


def arguments(options: Options) -> list[str]:
    """The options that differ from their defaults, one argument each, in the order of the fields, such as --fix-dim=batch=1.

    Contents of files (inputs, a device, a pipeline, a library) are represented by their SHA-256.
    """
    found = []
    for option in OPTIONS.values():
        is_replaced = options.pipeline is not None and option.in_pipeline
        if option.flag is not None and option.recorded and not is_replaced:
            texts = _arguments(option, getattr(options, option.name))
            found += texts if texts != _arguments(option, option.default) else []
    return found


def _arguments(option: Option, value: Any) -> list[str]:
    if value is None:
        return []
    if option.kind is FLAG:
        return [f"--{option.flag}" if value else f"--no-{option.flag}"]
    return [f"--{option.flag}={text}" for text in option.kind.write(value)]


def read_arguments(texts: Sequence[str]) -> Options | None:
    """The options that `arguments` wrote. None if one of them is the digest of a file that decides about nodes, or is unknown."""
    flags = {option.flag: option for option in OPTIONS.values()}
    found: dict[str, list[str]] = {}
    for text in texts:
        flag, _, value = text.removeprefix("--").partition("=")
        option = flags.get(flag, flags.get(flag.removeprefix("no-")))
        if option is None:
            return None
        found.setdefault(option.name, []).append(str(flag in flags) if option.kind is FLAG else value)
    try:
        return Options(**{name: OPTIONS[name].kind.read(given) for name, given in found.items()})
    except (OrtconvError, ValueError):
        return None
