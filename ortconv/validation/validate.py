"""Validation by running: a converted model must load where it will be used, and its outputs must match those of the source."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from ortconv.errors import BackendError, MismatchError, UnsupportedError
from ortconv.inputs.feeds import Outputs
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.runtime.deadline import TimeLimitError, within
from ortconv.runtime.session import Session
from ortconv.validation.engines import message_of, runtime_name
from ortconv.validation.reference import Reference
from ortconv.validation.shrink import shrink, shrunk
from ortconv.wording import and_others


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The result on one engine. `own` is the difference between onnxruntime's own result of the source and the source; None if it
    was not computed.
    """

    name: str
    version: str = ""
    loads: bool = False
    max_abs: float = 0.0
    scaled: float = 0.0
    own: float | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a validation: for each engine, and the worst over the engines.

    `backend` names the engines on which numbers were compared. `skipped` is the reason if there were none; `excused`
    names rewrites that may exceed the limit; `notes` report omissions, and findings about the source.
    """

    backend: str = ""
    max_abs: float = 0.0
    scaled: float = 0.0
    limit: float = 0.0
    skipped: str | None = None
    excused: tuple[str, ...] = ()
    engines: tuple[EngineResult, ...] = ()
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def validate(
    expected: Reference, converted: Path, excused: Collection[str] = (), needs_provider: bool = False
) -> Validation:
    """Compare a converted file with the source on every requested engine.

    Raises MismatchError if numbers differ by more than rounding explains; with excused rewrites, only if types or shapes differ.
    Raises UnsupportedError if onnxruntime does not load or run the file, unless it `needs_provider` for some nodes.
    """
    expected.wait()
    requested, found = expected.settings.engines, list[EngineResult]()
    with expected.clock:
        if "onnxruntime" in requested:
            found.append(_on_onnxruntime(expected, converted, bool(excused), needs_provider))
        if "numpy" in requested:
            found.insert(0, _on_numpy(expected, converted, bool(excused)))
    compared = [e for e in found if e.skipped is None]
    return Validation(
        " and ".join(e.name for e in compared),
        max((e.max_abs for e in compared), default=0.0),
        max((e.scaled for e in compared), default=0.0),
        expected.limit,
        None if compared else _skipped(found),
        tuple(excused),
        tuple(found),
        tuple(t.what for t in expected.trials),
        remarks(expected),
    )


def _skipped(engines: Iterable[EngineResult]) -> str:
    """The reasons why nothing was compared."""
    reasons = dict.fromkeys(engine.skipped for engine in engines if engine.skipped is not None)
    return "; ".join(reasons) or "no engine was requested"


RANDOM = "types and shapes alone were compared where random numbers are drawn"
UNSTABLE = "off by more than the limit, but rounding alone moves the source's own results as far"


def remarks(expected: Reference) -> tuple[str, ...]:
    """Notes about the inputs, and about outputs for which the limits were not applied."""
    return (*expected.notes, *_about(expected, expected.random, RANDOM), *_about(expected, expected.unstable, UNSTABLE))


def _about(expected: Reference, outputs: Collection[int], what: str) -> list[str]:
    names = ", ".join(expected.names[k] for k in sorted(outputs)[:4])
    return [f"{what}: {names}"] if names else []


HINT = "nothing was written; --verify-each names the pass at fault, --no-validate writes it all the same"
EACH_HINT = (
    "nothing was written; no pass changes the numbers of ortconv's own kernels, so try --optimization-level basic, "
    "whose operators onnxruntime computes as in the source; --no-validate writes it all the same"
)
FLOAT16_HINT = "nothing was written; --keep-float32 OPERATOR excludes nodes, and --error-budget permits larger errors"


def _hint(expected: Reference) -> str:
    if expected.settings.error_budget is not None:
        return FLOAT16_HINT
    return EACH_HINT if expected.settings.after_each_pass else HINT


def _on_numpy(expected: Reference, converted: Path, excused: bool) -> EngineResult:
    if "numpy" not in expected.outputs:
        return EngineResult("numpy", skipped=expected.why_not_numpy)
    try:
        model = load(converted)
        if expected.is_shrunk:
            shrink(model.graph)
        results = expected.results_of(expected.runner_of(Session(model, [expected.settings.numpy])))
    except (BackendError, UnsupportedError) as error:
        return EngineResult("numpy", skipped=f"numpy does not run the result: {error}")
    except MemoryError:
        return EngineResult("numpy", skipped="numpy: a run of the result needs more memory than there is")
    found = expected.judge("numpy", results, "", _hint(expected), excused)
    return EngineResult("numpy", loads=True, max_abs=found.largest, scaled=found.scaled)


REFUSED = "try --optimization-level basic, which has standard operators only, or --target-ort; --allow-unchecked writes the file"


def _remedy(expected: Reference, reason: str) -> str:
    """The advice for a model that onnxruntime does not load, like the result, for this reason."""
    from ortconv.backends.onnxruntime_cpu import remedy

    if expected.unknown and expected.settings.custom_op_library is None:
        return (
            f"if a library has {and_others(expected.unknown)}, give it with --custom-op-library; or --allow-unchecked"
        )
    return f"the result has the same fault: {remedy(reason) or 'mend the model'}, or --allow-unchecked writes the file"


def _on_onnxruntime(expected: Reference, converted: Path, excused: bool, needs_provider: bool) -> EngineResult:
    from ortconv.backends.onnxruntime_cpu import version

    about_source = expected.reasons.get("onnxruntime")
    try:
        opened = expected.open_file(converted, default=True)
    except ImportError as error:
        return EngineResult("onnxruntime", skipped=f"onnxruntime cannot be imported: {error}")
    except BackendError as error:
        if needs_provider:
            return EngineResult("onnxruntime", skipped="onnxruntime: some nodes run only where a provider accepts them")
        if about_source is not None and "onnxruntime" not in expected.outputs:
            raise UnsupportedError(about_source, hint=_remedy(expected, about_source)) from error
        raise UnsupportedError(
            f"{runtime_name()} does not load the result: {message_of(error, converted)}", hint=REFUSED
        ) from error
    loaded = EngineResult("onnxruntime", version(), loads=True)
    expected.notes.extend(opened.notes)
    if "onnxruntime" not in expected.outputs:
        return replace(loaded, skipped=about_source or expected.why_not_numpy)
    results: list[Outputs | None] = []
    for trial, want in zip(expected.trials, expected.outputs["onnxruntime"], strict=True):
        try:
            with within(expected.clock.left, cpu=True):
                results.append(None if want is None else opened.run(trial.feeds))
        except TimeLimitError as error:
            return replace(loaded, skipped=error.message)
        except BackendError as error:
            what = f"{runtime_name()} runs the source, but not the result, {trial.what}"
            raise UnsupportedError(f"{what}: {message_of(error, converted)}", hint=REFUSED) from error
    del opened
    found = expected.judge("onnxruntime", results, "", _hint(expected), excused)
    if expected.overwrites:
        _check_later_runs(expected, converted)
    return replace(loaded, max_abs=found.largest, scaled=found.scaled, own=expected.own_scaled())


DRIFTS = (
    "later runs in a session of onnxruntime differ from the first: it writes the running statistics of a BatchNormalization in "
    "training mode over constants"
)


def _check_later_runs(expected: Reference, converted: Path) -> None:
    """Raise MismatchError if runs of the result change later runs of its session, and runs of the source do not."""
    i = next((i for i, outputs in enumerate(expected.outputs["onnxruntime"]) if outputs is not None), None)
    if i is None or expected.random or not expected.drifts(converted, i, default=True):
        return
    source = expected.source
    if not (expected.drifts(source, i, default=False) or expected.drifts(source, i, default=True, apart=True)):
        raise MismatchError(f"{DRIFTS}, and does not with the source", hint=_hint(expected))
    if DRIFTS not in expected.notes:
        expected.notes.append(DRIFTS)


def validate_stage(
    expected: Reference, model: Model, stage: str, excused: Collection[str] = (), hint: str = ""
) -> None:
    """Run a model on numpy in its state after a stage of the pipeline. Raises MismatchError, with
    the stage, if its outputs differ.
    """
    with shrunk(model.graph) if expected.is_shrunk else nullcontext():
        session = Session(model, [expected.settings.numpy])
        results = [session.run(None, trial.feeds) for trial in expected.trials]
    hint = hint or f"leave it out with --disable-pass {stage}"
    expected.judge("numpy", results, f"after {stage}: ", hint, bool(excused))
