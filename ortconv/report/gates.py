"""Conditions under which a run fails: `partitions>3,coverage<80%`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ortconv.errors import GateError, OrtconvError, UsageError

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

_CONDITION = re.compile(r"\s*([a-z][a-z_-]*)\s*(>=|<=|==|!=|>|<|=)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that conditions can name, with its unit ("%" or nothing) and its description for messages."""

    value: float
    unit: str = ""
    help: str = ""


@dataclass(frozen=True, slots=True)
class GateCondition:
    """One condition; where it holds, the gate fails."""

    metric: str
    compare: str
    limit: float
    percent: bool = False

    def holds(self, value: float) -> bool:
        return COMPARE[self.compare](value, self.limit)

    def __str__(self) -> str:
        return f"{self.metric}{self.compare}{_number(self.limit)}{'%' if self.percent else ''}"


def parse_gates(text: str, known: Mapping[str, Metric]) -> tuple[GateCondition, ...]:
    """The conditions of a comma separated list. UsageError names the first that is wrong, and what there is to choose from."""
    found = []
    for part in text.split(","):
        match = _CONDITION.fullmatch(part)
        if match is None or match[2] == "=":
            hint = "write NAME, one of > < >= <= == !=, and a number, such as partitions>3 or coverage<80%"
            raise UsageError(f"--fail-on does not understand '{part.strip()}'", hint=hint)
        name = match[1].replace("-", "_")
        if name not in known:
            choices = ", ".join(f"{n} ({m.help})" if m.help else n for n, m in known.items())
            raise UsageError(f"--fail-on knows no '{match[1]}'", hint=f"choose from {choices}")
        if match[4] and known[name].unit != "%":
            raise UsageError(f"--fail-on: {name} is no percentage, '{part.strip()}' has %")
        found.append(GateCondition(name, match[2], float(match[3]), bool(known[name].unit)))
    return tuple(found)


def check_gates(
    conditions: tuple[GateCondition, ...], metrics: Mapping[str, Metric], error: type[OrtconvError] = GateError
) -> None:
    """The error, with the actual values, where a condition holds. A value that is not known fails no gate."""
    failed = [c for c in conditions if not math.isnan(value := metrics[c.metric].value) and c.holds(value)]
    if failed:
        said = "; ".join(
            f"{c.metric} is {_number(metrics[c.metric].value)}{metrics[c.metric].unit} ({c})" for c in failed
        )
        raise error(f"{len(failed)} of {len(conditions)} conditions of --fail-on hold: {said}")


def _number(value: float) -> str:
    return f"{value:.10g}" if math.isfinite(value) and value == int(value) else f"{value:.4g}"
