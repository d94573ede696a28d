"""Confidence intervals of ratios: Student's interval on logarithms, with one number from each block."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
    2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
"""Quantiles of Student's distribution at 0.975, for 1 and more degrees of freedom."""

NORMAL = 1.96
"""The same for many degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and its confidence interval, which is not known after a single block."""

    ratio: float
    low: float | None
    high: float | None

    @property
    def spread(self) -> float:
        """Half of the interval's width as a logarithm; infinite if the interval is not known."""
        if self.low is None or self.high is None:
            return math.inf
        return (math.log(self.high) - math.log(self.low)) / 2


def interval(logs: Sequence[float]) -> Interval:
    """The ratio with its interval of 95 % confidence, from one logarithm for each block."""
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), None, None)
    quantile = STUDENT[len(logs) - 2] if len(logs) - 2 < len(STUDENT) else NORMAL
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def log_ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """The logarithm of the ratio between a block's times and those of the base: the median of the pairs."""
    return statistics.median(math.log(own / other) for own, other in zip(times, base, strict=True))
