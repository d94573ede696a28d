"""Proof by running: does a converted model still compute what the source computes?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortconv.compare.feeds import Feeds, first_run
from ortconv.compare.tolerance import Difference, difference, limit, worst
from ortconv.errors import BackendError, MismatchError, OrtconvError
from ortconv.ir.model import Model
from ortconv.ir.schema import draws
from ortconv.session import Session

PREFERENCE = ("numpy", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Validation:
    """What a validation found. `skipped` says why there was none; `excused` names rewrites that may exceed the limit."""

    backend: str = ""
    max_abs: float = 0.0
    scaled: float = 0.0
    limit: float = 0.0
    skipped: str | None = None
    excused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """A source model's outputs for some feeds, by the first backend that runs it."""

    backend: str
    feeds: Feeds
    outputs: list[Any]
    names: list[str]
    limit: float


def reference(
    model: Model, source: Path, feeds: Mapping[str, Any] | None = None, custom_op_library: Path | None = None
) -> Reference | str:
    """Run a source model on the user's feeds, or on feeds made up for it; why not, where no backend can."""
    drawing = next((n.label for n in model.graph.walk() if draws(n)), None)
    if drawing is not None:
        return f"{drawing} draws random numbers"
    reasons = []
    for name in PREFERENCE:
        try:
            session = Session(
                model if name == "numpy" else source, backends=[name], custom_op_library=custom_op_library
            )
            return _first_that_runs(session, name, feeds)
        except BackendError as error:
            reasons.append(error.message)
        except OrtconvError as error:
            if feeds is not None and error.exit_code == 2:
                raise
            reasons.append(f"{name}: {error}")
    return "; ".join(reasons)


def _first_that_runs(session: Session, name: str, feeds: Mapping[str, Any] | None) -> Reference:
    graph = session.model.graph
    allowed = limit(graph, [v.dtype for v in graph.outputs])
    names = [v.name for v in graph.outputs]
    return Reference(name, *first_run(session, None, feeds), names, allowed)


def validate(
    expected: Reference, converted: Path, custom_op_library: Path | None = None, excused: Collection[str] = ()
) -> Validation:
    """Hold a converted file against the source's outputs.

    MismatchError where they differ by more than rounding explains, unless rewrites are excused: then only where the types or
    shapes differ.
    """
    session = Session(converted, backends=[expected.backend], custom_op_library=custom_op_library)
    hint = "nothing was written; --verify-each names the pass at fault, --no-validate writes it all the same"
    found = _held(expected, session, "", hint, excused)
    return Validation(expected.backend, found.max_abs, found.scaled, expected.limit, excused=tuple(excused))


def hold(expected: Reference, model: Model, stage: str, excused: Collection[str] = (), hint: str = "") -> None:
    """Run a model as it is after a stage of the pipeline. MismatchError naming the stage where `validate` would raise one."""
    _held(expected, Session(model), f"after {stage}: ", hint or f"leave it out with --disable-pass {stage}", excused)


def _held(expected: Reference, session: Session, where: str, hint: str, excused: Collection[str]) -> Difference:
    got = session.run(None, expected.feeds)
    each = [difference(a, b) for a, b in zip(expected.outputs, got, strict=True)]
    found = worst(each)
    if found.mismatch is not None or not (excused or found.within(expected.limit)):
        name, bad = max(zip(expected.names, each, strict=True), key=lambda p: (p[1].mismatch is not None, p[1].scaled))
        raise MismatchError(
            f"{where}output '{name}' differs from the source's: {_text(bad)}, allowed {expected.limit:.1e}", hint=hint
        )
    return found


def _text(d: Difference) -> str:
    return d.mismatch or f"max abs {d.max_abs:.3g}, scaled {d.scaled:.3g}"
