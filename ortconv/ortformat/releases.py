"""Releases of ONNX Runtime that load a model."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.choices import TARGET_ORT
from ortconv.errors import UsageError
from ortconv.ir.kernels import (
    first_release_of,
    first_release_of_action,
    first_release_of_imports,
    release_named,
    releases,
)
from ortconv.ir.model import Model
from ortconv.ortformat.functions import has_body, too_new
from ortconv.ortformat.subbyte import first_release_of_stored


class Oldest(NamedTuple):
    """The oldest release that loads a model, by position and by name, and the feature that older releases lack."""

    position: int
    name: str
    reason: str


def oldest_release(model: Model) -> Oldest:
    """The oldest release of ONNX Runtime that loads a model and runs it on the CPU. If all known releases do, it is the oldest
    known one.

    Nodes without a kernel in any release and operators of custom libraries are ignored.
    """
    needs = [(first_release_of(node), node.label) for node in model.graph.walk()]
    needs += [(first_release_of_action(f.action), f"saved action '{f.action}'") for f in model.saved]
    return _oldest(model, needs)


def target_release(model: Model, target: str | None) -> int:
    """The position of the release for which a source is converted: `target` if given, else TARGET_ORT or the release that the
    source needs, whichever is newer.

    Raises UnsupportedError if the target cannot run the source, even with expanded functions and Casts.
    """
    position = release_named(target or TARGET_ORT)
    needs = [
        (max(first_release_of(node, cast=True), first_release_of_stored(node)), node.label)
        for node in model.graph.walk()
        if target is None or not has_body(node)
    ]
    oldest = _oldest(model, needs)
    if target is None or oldest.position <= position:
        return max(oldest.position, position)
    raise too_new(oldest.name, target, oldest.reason)


def check_target(target: str) -> None:
    """Raise UsageError for an unknown release."""
    try:
        release_named(target)
    except ValueError:
        known = releases()
        raise UsageError(
            f"onnxruntime {target} is not one of the releases {known[0]} to {known[-1]}",
            hint=f"write a release such as {known[-1]}",
        ) from None


def _oldest(model: Model, needs: list[tuple[int, str]]) -> Oldest:
    imports = (first_release_of_imports(model.graph), f"operator set {model.graph.opset()}")
    position, reason = max([imports, *needs], key=lambda need: need[0])
    return Oldest(position, releases()[position], reason if position else "")
