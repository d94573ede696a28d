"""Goals, and the order of candidates for each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ortconv.errors import UsageError, known_names
from ortconv.tuning.candidate import Candidate
from ortconv.tuning.intervals import Interval, interval

TIE = 1.01
"""Candidates whose scores differ by less are equal. Then latency decides, and at last the shorter command."""

UNCLEAR = 1.03
"""The same limit for candidates whose interval of the difference contains zero."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The weights of the criteria, which are summed as logarithms into the score, and a description."""

    name: str
    weights: Mapping[str, float]
    what: str


LATENCY = Goal("latency", {"latency": 1.0}, "measured latency on the CPU of this machine")

ALL = (
    LATENCY,
    Goal("size", {"bytes": 1.0}, "size of the file"),
    Goal("memory", {"peak": 1.0}, "measured peak memory"),
    Goal("accelerator", {"accelerator": 1.0}, "time estimated with the device profile"),
    Goal(
        "balanced",
        {"latency": 0.5, "bytes": 0.25, "peak": 0.25},
        "measured latency, size and peak memory, as a geometric mean in which the latency counts twice",
    ),
)
GOALS = {goal.name: goal for goal in ALL}


def goal_named(name: str) -> Goal:
    """The goal of a name. UsageError if the name is unknown."""
    if name not in GOALS:
        raise UsageError(f"there is no goal '{name}'", hint=known_names(name, GOALS))
    return GOALS[name]


def score(candidate: Candidate, goal: Goal) -> float | None:
    """The weighted sum of logarithms, lower is better; None if a criterion of the goal is not known."""
    found = [(weight, _criterion(candidate, name)) for name, weight in goal.weights.items()]
    if candidate.row.error is not None or any(value is None for _, value in found):
        return None
    return sum(weight * value for weight, value in found if value is not None)


def bound(candidate: Candidate, goal: Goal) -> tuple[float, float]:
    """The key of the order: the upper end of the score's interval, or the score if there is no interval.

    So an uncertain number wins only if it is better with confidence.
    """
    found, weight = score(candidate, goal), goal.weights.get("latency", 0.0)
    assert found is not None
    spread = interval(list(candidate.logs.values())).spread if weight else 0.0
    return found + weight * spread, found


def _criterion(candidate: Candidate, name: str) -> float | None:
    """The logarithm of the quantity of a criterion: seconds or bytes."""
    estimated = candidate.row.estimated
    if name == "latency":
        return statistics.fmean(candidate.logs.values()) if candidate.logs else None
    if name == "accelerator":
        return None if estimated is None else math.log(max(min(estimated.seconds, estimated.cpu_seconds), 1e-12))
    count = candidate.bytes if name == "bytes" else candidate.peak
    return None if count is None else math.log(max(count, 1))


def ratio(candidate: Candidate, other: Candidate, goal: Goal) -> Interval:
    """How much worse a candidate is than another one, both with a score; 1 for equal.

    Latencies are compared block by block, since a disturbance slows both candidates of a block.
    """
    blocks = candidate.logs.keys() & other.logs.keys()
    weight = goal.weights.get("latency", 0.0)
    exact = replace(goal, weights={name: w for name, w in goal.weights.items() if name != "latency"})
    rest = (score(candidate, exact) or 0.0) - (score(other, exact) or 0.0)
    if not weight:
        return Interval(math.exp(rest), math.exp(rest), math.exp(rest))
    if not blocks:
        return interval([rest + weight * (_mean(candidate) - _mean(other))])
    return interval([rest + weight * (candidate.logs[b] - other.logs[b]) for b in sorted(blocks)])


def _mean(candidate: Candidate) -> float:
    return statistics.fmean(candidate.logs.values())


def beaten(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """The candidates that are worse than the best one by more than TIE with confidence. They cannot win."""
    known = [c for c in candidates if score(c, goal) is not None]
    best = min(known, key=lambda c: bound(c, goal), default=None)
    if best is None:
        return []
    others = [(c, ratio(c, best, goal)) for c in known if c is not best]
    return [c for c, over in others if over.low is not None and over.low > TIE]


def ranked(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """The candidates with a score, the best first, the stopped ones last. Their rows get ranks and scores."""
    for c in candidates:
        found = score(c, goal)
        c.row.score, c.row.rank = None if found is None else round(math.exp(found), 6), None
    known = [c for c in candidates if c.row.score is not None]
    if not known:
        return []
    best = _best(known, goal)
    order = sorted(known, key=lambda c: (c is not best, c.is_stopped, bound(c, goal)))
    for rank, c in enumerate(order, 1):
        c.row.rank = rank
    return order


def _best(candidates: Sequence[Candidate], goal: Goal) -> Candidate:
    """The candidate with the lowest bound; among equal ones that with the lowest latency, and then the plainest one."""
    equal = _equal_to(min(candidates, key=lambda c: bound(c, goal)), candidates, goal)
    timed = [c for c in equal if c.logs]
    if timed and goal is not LATENCY:
        equal = _equal_to(min(timed, key=lambda c: bound(c, LATENCY)), timed, LATENCY)
    return min(equal, key=_distance_from_defaults)


def _equal_to(best: Candidate, candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """The candidates that do not differ significantly from the best one, including itself."""
    found = []
    for c in candidates:
        over = ratio(c, best, goal)
        is_unclear = over.low is not None and over.low <= 1 and over.ratio <= UNCLEAR
        if c is best or over.ratio <= TIE or is_unclear:
            found.append(c)
    return found


def _distance_from_defaults(candidate: Candidate) -> tuple[int, ...]:
    """How far a candidate is from the defaults: session options, threads, conversion options."""
    settings = candidate.row.settings
    return settings.direct + (not settings.saved), settings.threads, len(candidate.row.form.unusual)
