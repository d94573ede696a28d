"""A check of a model against a baseline: the differences, and the conditions that hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortconv.checking.baseline import Baseline, read_baseline, stored_model, write_baseline
from ortconv.checking.facts import Facts, facts_of, lacking, notes_on
from ortconv.checking.measuring import MeasuredRatios, measure_both
from ortconv.compare.comparison import WORST, Comparison, compare, metrics, subject
from ortconv.documents import Document
from ortconv.errors import GateError, UsageError
from ortconv.files import digest
from ortconv.gates import METRICS, GateCondition, failed_gates, metrics_of, parse_gates
from ortconv.inputs.feeds import Draw
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.partition import Target
from ortconv.public import public
from ortconv.wording import counted

BACKENDS = ("onnxruntime",)
"""The backend on which outputs are compared."""

MEASURED = ("latency", "load", "memory")

SAME = {"max_abs": 0.0, "scaled": 0.0, "ulp": 0.0, "cosine": 1.0, "snr": math.inf, "outputs": 0.0}
"""The metrics of equal outputs."""

APART = {name: math.inf if worst is max else -math.inf for name, worst in WORST.items()}
"""The metrics of outputs that cannot be compared, as with NaN in other places: every condition on them holds."""

DEFAULT_GATES = (
    "onnxruntime>+0", "missing>0", "partitions>+0", "coverage<-0", "size>+5%", "outputs>0", "latency>+10%", "memory>+25%",
)  # fmt: skip
"""The conditions of a check for which the user gives none."""


@dataclass(frozen=True, slots=True)
class CheckedMetric:
    """A metric of both models, as numbers and as formatted text. None if it is not known or not a number."""

    name: str
    value: float | None
    baseline: float | None
    shown: str
    shown_baseline: str
    moved: bool
    note: str
    """The cause of a change, such as the operators that were added."""


@dataclass(frozen=True, slots=True)
class FailedCondition:
    """A condition that holds, and the message for a reviewer. If it `stays`, it would hold for the accepted model, too."""

    condition: str
    metric: str
    message: str
    stays: bool


@dataclass
class Check(Document):
    """The result of a check."""

    model: str
    baseline: str
    stored: str
    """The file of the baseline's model; empty if there was no baseline."""
    target: list[str]
    metrics: list[CheckedMetric] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    failed: list[FailedCondition] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Reasons why something could not be compared."""
    updated: bool = False
    """Whether the baseline file was written."""

    def __repr__(self) -> str:
        return f"<Check of {self.model}: {'accepted' if self.updated else self.verdict}>"

    @property
    def verdict(self) -> str:
        """Such as: 2 of 8 gates fail"""
        total, failed = len(self.conditions), len(self.failed)
        gates = f"of {total} gates"
        return counted(failed, f"{gates} fails", f"{gates} fail") if failed else f"all {total} gates pass"

    def refuse(self) -> None:
        """GateError if a condition holds."""
        if self.failed:
            raise GateError(
                f"{self.verdict}: {'; '.join(one.message for one in self.failed)}",
                file=self.model,
                hint=accepting("--update", self.failed),
            )


def accepting(option: str, failed: Sequence[FailedCondition]) -> str:
    """The hint on failed gates; `option` accepts a model."""
    if all(one.stays for one in failed):
        return f"change the model, or the condition if this is meant: {option} does not end it"
    return f"if this is meant, accept it: {option}"


@dataclass
class _Values:
    """Values of both models by metric, causes of changes, and the ends of the confidence interval for measured metrics."""

    now: dict[str, float]
    then: dict[str, float]
    notes: dict[str, str]
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How both models are run: given inputs, inputs to generate, and limits. With `measure`, time and memory are measured."""

    arrays: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Draw] = field(default_factory=dict)
    seed: int = 0
    custom_op_library: Path | None = None
    measure: bool = True


@public
def check(
    model: str | Path,
    baseline: str | Path,
    *,
    target: Target | None = None,
    fail_on: Sequence[str] = (),
    update: bool = False,
    app_config: str | Path | None = None,
    runs: RunSettings | None = None,
) -> Check:
    """Compare a model with a baseline or, with `update`, accept it as the new one.

    Facts are compared with those that the baseline file has; outputs, time and memory with the copy of the model that it names:
    both run here, in turns, on the same inputs. `fail_on` are conditions, by default DEFAULT_GATES. `app_config` is the operator
    config that an app in use was built with; by default operators are compared with those of the baseline. A difference in time
    counts only if the whole confidence interval is beyond the limit. `target` is the accelerator that the models are divided for.

    UsageError where there is no baseline yet and `update` is not given.
    """
    model, baseline = Path(model), Path(baseline)
    conditions = parse_gates(fail_on, "check")
    now, external = facts_of(model, target or Target())
    old = read_baseline(baseline) if baseline.exists() else None
    found = Check(str(model), str(baseline), "", now.target)
    if old is not None:
        values = _static(now, old.facts, app_config)
        if not update:
            _check_target(baseline, now, old.facts)
            stored = _stored(baseline, old, found)
            if stored is not None:
                if old.model.sha256 == digest(model) and not external:
                    _add_same(values, found)
                else:
                    _run_both(model, stored, values, found, runs or RunSettings())
            _judge(found, values, conditions, {**SAME, **({} if app_config else {"missing": 0.0})})
        found.metrics = _rows(values)
    elif not update:
        raise UsageError("there is no baseline yet", file=baseline, hint="write one of the present model: --update")
    if update:
        write_baseline(baseline, model, external, now, old)
        found.updated = True
    return found


def _check_target(path: Path, now: Facts, then: Facts) -> None:
    differing = [text for text in now.target if text not in then.target]
    if differing:
        before = [text for text in then.target if text not in now.target]
        raise UsageError(
            f"the baseline is for {', '.join(before) or 'another target'}, this check for {', '.join(differing)}",
            file=path,
            hint="give the options of the baseline, or accept the others with --update",
        )


def _static(now: Facts, then: Facts, app_config: str | Path | None) -> _Values:
    """Compare the metrics that need no run."""
    if app_config is None:
        config = RequiredOperators.parse("\n".join(then.required))
    else:
        config = RequiredOperators.read(app_config)
    missing = lacking(now, config)
    before = {"missing": len(lacking(then, config))}
    return _Values({**now.values(), "missing": len(missing)}, {**then.values(), **before}, notes_on(now, then, missing))


def _stored(path: Path, baseline: Baseline, found: Check) -> Path | None:
    try:
        stored = stored_model(path, baseline)
    except UsageError as error:
        found.notes.append(f"outputs, time and memory are not compared: {error}")
        return None
    found.stored = str(stored)
    return stored


def _differing(found: Comparison) -> Iterator[str]:
    for o in found.outputs:
        if not o.same:
            yield f"'{o.name}' {o.found.mismatch or f'scaled {o.found.scaled:.3g} of {o.limit:.1e} allowed'}"


def _run_both(model: Path, stored: Path, values: _Values, found: Check, runs: RunSettings) -> None:
    """Run both models on the same inputs: their outputs, times and memory."""
    first, second = (subject(str(path), BACKENDS) for path in (stored, model))
    try:
        library = runs.custom_op_library
        feeds, (one,) = compare((first, second), runs.arrays, runs.draws, runs.seed, custom_op_library=library)
    except UsageError as error:
        _add_interface(values, found, len(first.model.graph.outputs), error)
        return
    numbers = metrics([one])
    if any(o.found.mismatch for o in one.outputs):
        numbers |= APART
    values.now |= {name: numbers[name] for name in numbers if "check" in METRICS[name].verbs}
    values.then |= SAME
    values.notes |= dict.fromkeys(("outputs", "max_abs", "scaled"), ", ".join(_differing(one)))
    if runs.measure:
        _add_times(values, measure_both(model, stored, feeds, library))


def _add_same(values: _Values, found: Check) -> None:
    """Fill in the metrics of a model that is identical to the baseline's: its outputs are equal, its times are not measured."""
    values.now |= SAME | dict.fromkeys(MEASURED, math.nan)
    values.then |= SAME | dict.fromkeys(MEASURED, math.nan)
    found.notes.append("the model is that of the baseline, byte for byte: it was not run")


def _add_interface(values: _Values, found: Check, outputs: int, error: UsageError) -> None:
    """Fill in the metrics of models with different inputs: each output counts as different."""
    values.now |= {"outputs": outputs}
    values.then |= {"outputs": 0.0}
    values.notes["outputs"] = error.message
    found.notes.append(f"outputs, time and memory are not compared: {error.message}")


def _add_times(values: _Values, measured: MeasuredRatios) -> None:
    for name, (interval, base) in measured.ratios.items():
        values.then[name], values.now[name] = base, base * interval.ratio
        if interval.low is not None and interval.high is not None:
            values.ends[name] = base * interval.low, base * interval.high
            values.notes[name] = f"{interval.low:.3f} to {interval.high:.3f} times the baseline, with 95 % confidence"
    if measured.memory is not None:
        values.now["memory"], values.then["memory"] = measured.memory


def _judge(found: Check, values: _Values, conditions: Sequence[GateCondition], accepted: Mapping[str, float]) -> None:
    """Find the conditions that hold. A default condition is skipped if its metric is not known. `accepted` are metrics that an
    accepted model always has.
    """
    known = values.now.keys() & values.then.keys()
    chosen = conditions or [one for one in parse_gates(DEFAULT_GATES, "check") if one.metric.name in known]
    found.conditions = list(map(str, chosen))
    for one in failed_gates(chosen, values.now, values.then, values.notes):
        name = one.condition.metric.name
        ends = values.ends.get(name, ())
        if all(one.condition.holds(end, values.then[name]) for end in ends):
            value = accepted.get(name, one.value)
            stays = one.condition.holds(value, value)
            found.failed.append(FailedCondition(str(one.condition), name, str(one), stays))


def _rows(values: _Values) -> list[CheckedMetric]:
    return [_row(name, values) for name in metrics_of("check") if not math.isnan(values.now.get(name, math.nan))]


def _row(name: str, values: _Values) -> CheckedMetric:
    now, then = values.now[name], values.then.get(name, math.nan)
    value, baseline = (number if math.isfinite(number) else None for number in (now, then))
    shown, before = ("" if math.isnan(number) else METRICS[name].notation.show(number) for number in (now, then))
    low, high = values.ends.get(name, (now, now))
    moved = shown != before and not low <= then <= high
    return CheckedMetric(name, value, baseline, shown, before, moved, values.notes.get(name, "") if moved else "")
