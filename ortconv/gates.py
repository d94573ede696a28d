"""Conditions under which a run fails: the grammar of --fail-on, and the metrics that it can name.

    CONDITIONS = CONDITION {"," CONDITION}
    CONDITION  = METRIC COMPARE LIMIT
    COMPARE    = ">" | "<" | ">=" | "<=" | "==" | "!="
    LIMIT      = NUMBER [UNIT]              the value itself             partitions>3, coverage<80%, size>5MB, latency>20ms
               | SIGN NUMBER [UNIT]         change since the baseline    partitions>+0, size>+100kB, coverage<-2%
               | SIGN NUMBER "%"            change in percent of it      size>+5%
               | NUMBER "x"                 ratio to it                  latency>1.1x
    SIGN       = "+" | "-"

For a metric in percent, a change with "%" is in points. A gate fails where its condition holds.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ortconv.errors import GateError, UsageError, nearest
from ortconv.files import byte_count, size
from ortconv.wording import milliseconds

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

_CONDITION = r"\s*([a-z][a-z0-9_-]*)\s*(>=|<=|==|!=|>|<)\s*([+-]?)\s*([^\s<>=!,][^<>=!,]*?)\s*"
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_TIME = rf"({_NUMBER})\s*(us|ms|s)"
_RELEASE = r"(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# ------------------------------------------------------------------------------------------------------------------- notations


class Notation(NamedTuple):
    """How a limit is read and a value is shown. Reading raises ValueError for a text that is no limit. `example` is a limit."""

    read: Callable[[str], float]
    show: Callable[[float], str]
    example: str


def _parts(pattern: str, text: str) -> re.Match[str]:
    parts = re.fullmatch(pattern, text)
    if parts is None:
        raise ValueError(text)
    return parts


def _number(text: str) -> float:
    return float(_parts(_NUMBER, text)[0])


def _percent(text: str) -> float:
    value = _number(text.removesuffix("%").rstrip())
    if 0 < value < 1 and not text.endswith("%"):  # a share, probably: its gate would never fail
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    parts = _parts(_TIME, text)
    return float(parts[1]) * _SECONDS[parts[2]]


def release_number(text: str) -> float:
    """A number for a release such as 1.17, greater for later ones; 0 for no change. ValueError for a text that is no release."""
    if text == "0":
        return 0.0
    parts = _parts(_RELEASE, text)
    return int(parts[1]) * 1000.0 + int(parts[2])


def _shown_number(value: float) -> str:
    return f"{value:.10g}" if math.isfinite(value) and value == int(value) else f"{value:.4g}"


def _shown_seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else milliseconds(value)


NUMBER = Notation(_number, _shown_number, "3")
PERCENT = Notation(_percent, lambda v: f"{_shown_number(v)}%", "80%")
BYTES = Notation(byte_count, lambda v: size(round(v)), "5MB")
SECONDS = Notation(_seconds, _shown_seconds, "20ms")
DECIBEL = Notation(lambda text: _number(text.removesuffix("dB").rstrip()), lambda v: f"{_shown_number(v)} dB", "40dB")
RELEASE = Notation(release_number, lambda v: f"{int(v) // 1000}.{int(v) % 1000}", "1.17")

# ----------------------------------------------------------------------------------------------------------------- metrics


class Metric(NamedTuple):
    """A number that conditions can name, and the verbs that have it. `example` is a condition without the name."""

    name: str
    notation: Notation
    verbs: tuple[str, ...]
    help: str
    example: str


DIVIDING = ("partition", "convert", "check", "nnapi export")
"""The verbs that partition a model for an accelerator."""

TABLE = (
    Metric("nodes", NUMBER, (*DIVIDING, "inspect"), "nodes of the graph", ">300"),
    Metric("size", BYTES, ("convert", "inspect", "check", "tune"), "size of the model, with its weights", ">5MB"),
    Metric("constants", BYTES, ("convert", "inspect", "check"), "bytes of the constants", ">5MB"),
    Metric("parameters", NUMBER, ("inspect",), "elements of the constants", ">2000000"),
    Metric("multiply_adds", NUMBER, ("inspect",), "multiply-adds of a run", ">300000000"),
    Metric("activations", BYTES, ("inspect",), "most bytes of activations that are alive at once", ">5MB"),
    Metric("onnxruntime", RELEASE, ("convert", "inspect", "check"), "oldest onnxruntime that loads the model", ">1.17"),
    Metric("operators", NUMBER, ("inspect", "check"), "different operators", ">30"),
    Metric("missing", NUMBER, ("check",), "operators and types that the operator config lacks", ">0"),
    Metric("partitions", NUMBER, DIVIDING, "partitions of the accelerator", ">3"),
    Metric("coverage", PERCENT, DIVIDING, "nodes in partitions, in percent", "<80%"),
    Metric("work_coverage", PERCENT, ("partition",), "multiply-adds in partitions, in percent", "<80%"),
    Metric("refused", NUMBER, DIVIDING, "nodes left to the CPU", ">10"),
    Metric("worthwhile", NUMBER, ("partition",), "partitions estimated to save time", "<1"),
    Metric("max_abs", NUMBER, ("convert", "compare", "check"), "largest absolute difference of an output", ">0.01"),
    Metric("scaled", NUMBER, ("convert", "compare", "check"), "the same over the largest magnitude", ">0.001"),
    Metric("ulp", NUMBER, ("compare", "check"), "floats between two elements, at most", ">4"),
    Metric("cosine", NUMBER, ("compare", "check"), "smallest cosine", "<0.999"),
    Metric("snr", DECIBEL, ("compare", "check"), "smallest signal to noise ratio", "<40dB"),
    Metric("outputs", NUMBER, ("compare", "check"), "outputs that differ by more than rounding", ">0"),
    Metric("layers", NUMBER, ("compare",), "inner values that differ, with --layers", ">0"),
    Metric("latency", SECONDS, ("run", "check", "tune"), "median time of a run", ">20ms"),
    Metric("p90", SECONDS, ("run",), "time that nine of ten runs do not exceed", ">20ms"),
    Metric("load", SECONDS, ("run", "check", "tune"), "time of loading the model", ">100ms"),
    Metric("memory", BYTES, ("run", "check", "tune"), "peak memory of the process", ">200MB"),
)
METRICS = {metric.name: metric for metric in TABLE}


def metrics_of(verb: str) -> tuple[str, ...]:
    """The names of the metrics that a verb has."""
    return tuple(metric.name for metric in TABLE if verb in metric.verbs)


BASELINES: Mapping[str, tuple[str, ...]] = {
    "check": metrics_of("check"),
    "tune": metrics_of("tune"),
    "convert": ("nodes", "size", "constants"),
}
"""The metrics for which a verb knows a baseline's value. The baseline of convert is its source."""


# -------------------------------------------------------------------------------------------------------------- conditions

Relation = Literal["value", "change", "percent", "ratio"]


class GateCondition(NamedTuple):
    """One condition. If it holds, the gate fails. `relation` is the quantity that the limit applies to."""

    metric: Metric
    compare: str
    limit: float
    relation: Relation
    text: str

    def holds(self, value: float, baseline: float = math.nan) -> bool:
        """Whether the condition holds; never for NaN."""
        measured = RELATIONS[self.relation](value, baseline)
        return not math.isnan(measured) and COMPARE[self.compare](measured, self.limit)

    def __str__(self) -> str:
        return self.text


def _ratio(value: float, baseline: float) -> float:
    if baseline:
        return value / baseline
    return math.nan if math.isnan(value) else 1.0 if value == 0 else math.inf


RELATIONS: Mapping[Relation, Callable[[float, float], float]] = {
    "value": lambda value, baseline: value,
    "change": lambda value, baseline: value - baseline,
    "percent": lambda value, baseline: 100 * (_ratio(value, baseline) - 1),
    "ratio": _ratio,
}


class FailedGate(NamedTuple):
    """A condition that holds, with the values."""

    condition: GateCondition
    value: float
    baseline: float | None
    note: str = ""
    """The cause of the value."""

    def __str__(self) -> str:
        metric = self.condition.metric
        text = f"{metric.name} is {metric.notation.show(self.value)}"
        if self.baseline is not None:
            text += f", {metric.notation.show(self.baseline)} in the baseline{_percent_more(self)}"
        return f"{text} ({self.condition})" + (f": {self.note}" if self.note else "")


def _percent_more(failed: FailedGate) -> str:
    """The change in percent; empty for counts and where a percentage has no meaning."""
    if not failed.baseline or failed.condition.metric.notation not in (BYTES, SECONDS):
        return ""
    return f", {RELATIONS['percent'](failed.value, failed.baseline):+.1f}%"


def parse_gates(text: str | Iterable[str], verb: str) -> tuple[GateCondition, ...]:
    """Parse comma separated lists of conditions. UsageError names the first wrong condition, with a hint."""
    lists = (text,) if isinstance(text, str) else text
    return tuple(_condition(part, verb) for one in lists for part in one.split(","))


def _condition(part: str, verb: str) -> GateCondition:
    match = re.fullmatch(_CONDITION, part)
    if match is None:
        hint = "write METRIC, one of > < >= <= == !=, and a limit, such as partitions>3 or coverage<80%"
        raise UsageError(f"--fail-on does not understand '{part.strip()}'", hint=hint)
    metric = _metric(match[1].replace("-", "_"), verb)
    relation, digits = _relation(metric, match[3], match[4])
    try:
        limit = (_number if relation in ("percent", "ratio") else metric.notation.read)(digits)
    except ValueError:
        hint = f"a limit of {metric.name} is such as {metric.name}{match[2]}{metric.notation.example}"
        raise UsageError(f"--fail-on does not understand the limit of '{part.strip()}'", hint=hint) from None
    if relation != "value" and metric.name not in BASELINES.get(verb, ()):
        hint = f"give a value, such as {metric.name}{match[2]}{metric.notation.example}; check compares with a baseline"
        message = f"'{part.strip()}' needs a baseline, and {verb} has none of {metric.name}"
        raise UsageError(f"--fail-on: {message}", hint=hint)
    signed = -limit if match[3] == "-" else limit
    return GateCondition(metric, match[2], signed, relation, "".join(part.split()))


def _relation(metric: Metric, sign: str, limit: str) -> tuple[Relation, str]:
    """The quantity that a limit applies to, and the limit's text without the mark for it."""
    if sign and limit.endswith("%") and metric.notation is not PERCENT:
        return "percent", limit[:-1].rstrip()
    if sign:
        return "change", limit
    return ("ratio", limit[:-1].rstrip()) if limit.endswith("x") else ("value", limit)


def _metric(name: str, verb: str) -> Metric:
    known = metrics_of(verb)
    if name in known:
        return METRICS[name]
    if name in METRICS:
        others = ", ".join(METRICS[name].verbs)
        raise UsageError(f"--fail-on: {verb} has no metric '{name}'", hint=f"it is one of {others}; {_listed(known)}")
    raise UsageError(f"--fail-on knows no metric '{name}'", hint=nearest(name, known) or _listed(known))


def _listed(names: Sequence[str]) -> str:
    return f"choose from {', '.join(f'{name} ({METRICS[name].help})' for name in names)}"


def failed_gates(
    conditions: Iterable[GateCondition],
    values: Mapping[str, float],
    baseline: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[FailedGate]:
    """The conditions that hold. None holds for NaN, a value without meaning. `notes` explain values.

    UsageError for a metric without a value: a gate that cannot be checked must not pass.
    """
    found, known = [], baseline or {}
    for condition in conditions:
        name = condition.metric.name
        if name not in values or (condition.relation != "value" and name not in known):
            what = "" if name not in values else " of the baseline"
            raise UsageError(f"--fail-on: '{condition}' cannot be checked: {name}{what} is not known")
        if condition.holds(values[name], known.get(name, math.nan)):
            found.append(FailedGate(condition, values[name], known.get(name), (notes or {}).get(name, "")))
    return found


def check_gates(
    conditions: Sequence[GateCondition],
    values: Mapping[str, float],
    baseline: Mapping[str, float] | None = None,
    *,
    file: str | Path | None = None,
) -> None:
    """GateError, with the actual values, where a condition holds."""
    failed = failed_gates(conditions, values, baseline)
    if failed:
        held = "; ".join(map(str, failed))
        raise GateError(f"{len(failed)} of {len(conditions)} conditions of --fail-on hold: {held}", file=file)
