"""The conversion that led from an ONNX model to an .ort file, repeated to explain the changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ortconv.differences.changes import Change, between
from ortconv.documents import read_as
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import temporary_folder
from ortconv.ir.model import Model
from ortconv.ir.types import DType
from ortconv.models import load
from ortconv.pipeline import Options, convert
from ortconv.pipeline.arguments import arguments, read_arguments
from ortconv.pipeline.config import STAMP

LEVELS = ("all", "extended", "basic", "disable")
"""The levels at which a conversion is replayed if none is given, until one ends at the .ort file."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite of a conversion: its rule, the node where it applied, and the nodes that it removed and added."""

    rule: str
    root: str
    removed: list[str]
    made: list[str]


@dataclass
class Replay:
    """The repeated conversion of `a`. `ends_at_b` is True if its result is the given .ort file."""

    level: str
    options: list[str]
    """The options beyond their defaults, as arguments of `ortconv convert`."""
    ends_at_b: bool
    rewrites: dict[str, int]
    """Number of applications by rule."""
    steps: list[Step]
    left: list[Change]
    """The changes from the result of the replay to `b`."""
    failure: str | None = None
    """The reason why the conversion could not be repeated."""


def replayed(path: Path, source: Model, target: Model, options: Options | None) -> Replay:
    """The conversion of a source to a target. Without options, those that the target records, or the likeliest ones.

    UsageError for options that no conversion of the source can have.
    """
    recorded = _recorded(target.metadata.pop(STAMP, None))
    choices = _likely(source, target) if options is None and recorded is None else [options or recorded or Options()]
    found: list[Replay] = []
    for chosen in choices:
        found.append(_replayed(path, target, chosen, asked=options is not None))
        if found[-1].ends_at_b:
            break
    return min(found, key=lambda replay: (replay.failure is not None, len(replay.left)))


def _recorded(stamp: str | None) -> Options | None:
    """The options in the stamp of an .ort file; None without a stamp of a conversion that can be repeated."""
    if stamp is None:
        return None
    try:
        return read_arguments(read_as(list[str], json.loads(stamp)["options"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _likely(source: Model, target: Model) -> Iterator[Options]:
    """The options that an .ort file without a stamp may have been made with, the likeliest first."""
    providers = {node.ep for node in target.graph.walk()}
    nnapi, coreml = (f"{name}ExecutionProvider" in providers for name in ("Nnapi", "CoreML"))
    first = Options(
        optimization_style="Runtime" if target.saved else "Fixed",
        fix_dims=_fixed(source, target),
        freeze_initializers=_has_defaults(source) and not _has_defaults(target),
        float16=_has_half(target) and not _has_half(source),
        use_nnapi=nnapi,
        use_coreml=coreml,
    )
    for level in LEVELS:
        chosen = replace(first, optimization_level=level)
        yield chosen
        if nnapi != coreml and level != "disable":
            yield replace(chosen, maximize_offload=True)


def _has_defaults(model: Model) -> bool:
    """True if a caller may override an initializer."""
    return bool(model.graph.overridable)


def _fixed(source: Model, target: Model) -> dict[str, int]:
    """The dimensions that have a name in the inputs of the source and a size in those of the target."""
    sizes = {v.name: v.shape or () for v in target.graph.inputs}
    pairs = [(v.shape or (), sizes.get(v.name, ())) for v in source.graph.inputs]
    dims = chain.from_iterable(zip(ours, theirs, strict=True) for ours, theirs in pairs if len(ours) == len(theirs))
    return {name: size for name, size in dims if isinstance(name, str) and isinstance(size, int)}


def _has_half(model: Model) -> bool:
    """Whether a node makes float16 values."""
    return any(v is not None and v.dtype is DType.FLOAT16 for node in model.graph.walk() for v in node.outputs)


def _replayed(source: Path, target: Model, options: Options, *, asked: bool) -> Replay:
    again = replace(
        options, details=True, validate=False, write_config=False, save_optimized_onnx_model=False,
        manifest=False, stamp=False, fail_on=(),
    )  # fmt: skip
    given = arguments(replace(again, validate=True, optimization_level=LEVELS[0]))
    with temporary_folder() as folder:
        try:
            done = convert(source, folder / "replay.ort", options=again)
        except OrtconvError as error:
            if asked and isinstance(error, UsageError):
                raise
            return Replay(options.optimization_level, given, False, {}, [], [], error.message)
        left = between(load(folder / "replay.ort", only_to_run=True), target)[1]
    steps = [
        Step(r.rule, r.root, list(r.change.consumed), list(r.change.made)) for r in done.trace if r.change is not None
    ]
    return Replay(options.optimization_level, given, not left, done.rewrites, steps, left)
