"""Intervals, and the order of candidates."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ortconv.backends.onnxruntime_app import SessionSettings
from ortconv.errors import UsageError
from ortconv.tuning.axes import Form
from ortconv.tuning.candidate import Candidate
from ortconv.tuning.intervals import interval, log_ratio
from ortconv.tuning.making import Estimated
from ortconv.tuning.measuring import Entrant, Times
from ortconv.tuning.ranking import GOALS, LATENCY, beaten, goal_named, ranked, score
from ortconv.tuning.result import Row


def candidate(
    ratios: Sequence[float], *, bytes: int = 100, peak: int | None = 100, form: Form | None = None, threads: int = 1
) -> Candidate:
    settings = SessionSettings(threads)
    made = Candidate(Row("c", form or Form(), settings, ""), Entrant("f", settings), "d", bytes, peak=peak)
    base = Times(1.0, [1.0])
    for block, ratio in enumerate(ratios):
        made.note(block, Times(1.0, [ratio]), base)
    return made


def test_interval_of_known_numbers() -> None:
    found = interval([math.log(0.9), math.log(1.0), math.log(1.1)])
    assert found.ratio == pytest.approx((0.9 * 1.0 * 1.1) ** (1 / 3))
    deviation = 0.10033  # of the three logarithms
    assert found.spread == pytest.approx(4.303 * deviation / math.sqrt(3), rel=1e-3)
    assert found.low == pytest.approx(found.ratio * math.exp(-found.spread))


def test_one_block_gives_no_interval() -> None:
    found = interval([0.0])
    assert (found.ratio, found.low, found.high) == (1.0, None, None)
    assert found.spread == math.inf


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draw = random.Random(1)
    found = [interval([draw.gauss(0.2, 0.05) for _ in range(4)]) for _ in range(2000)]
    hits = sum(i.low <= math.exp(0.2) <= i.high for i in found if i.low is not None and i.high is not None)
    assert 0.93 < hits / len(found) < 0.97


def test_a_block_counts_by_its_median_pair() -> None:
    assert log_ratio([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]) == pytest.approx(math.log(2))


def test_what_slows_a_block_down_slows_both() -> None:
    slow, fast = candidate([1.2, 2.4, 1.8]), candidate([1.0, 2.0, 1.5])
    assert beaten([slow, fast], LATENCY) == [slow]
    apart = candidate([1.2, 1.6, 2.2])
    assert beaten([apart, fast], LATENCY) == []


def test_one_block_makes_nobody_hopeless() -> None:
    assert beaten([candidate([3.0]), candidate([1.0])], LATENCY) == []


def test_the_plainest_of_equal_ones_wins() -> None:
    plain, odd = candidate([1.003, 1.005, 1.004]), candidate([1.0, 1.0, 1.0], form=Form("basic", aware="nnapi"))
    assert ranked([odd, plain], LATENCY)[0] is plain
    threads = candidate([0.995, 0.995, 0.995], threads=4)
    assert ranked([threads, plain], LATENCY)[0] is plain
    faster = candidate([0.97, 0.971, 0.97], form=Form("basic"))
    assert ranked([plain, faster, odd], LATENCY)[0] is faster


def test_a_difference_that_may_be_none_does_not_count_up_to_three_percent() -> None:
    plain, noisy = candidate([1.10, 0.97, 1.0]), candidate([1.0, 1.0, 1.0], form=Form("basic"))
    assert ranked([noisy, plain], LATENCY)[0] is plain
    plain = candidate([1.02, 1.021, 1.02])
    assert ranked([noisy, plain], LATENCY)[0] is noisy


def test_an_uncertain_number_does_not_win() -> None:
    sure, unsure = candidate([0.99, 0.99, 0.991]), candidate([0.7, 1.4, 0.8], form=Form("basic"), threads=2)
    assert ranked([unsure, sure], LATENCY) == [sure, unsure]


def test_among_equal_sizes_the_faster_file_wins() -> None:
    small, large, fast = candidate([1.0] * 3), candidate([0.5] * 3, bytes=200), candidate([0.8] * 3, form=Form("basic"))
    assert [c.row.rank for c in (small, large, fast)] == [None] * 3
    assert ranked([small, large, fast], GOALS["size"]) == [fast, small, large]
    assert [c.row.rank for c in (small, large, fast)] == [2, 3, 1]


def test_the_balance_is_a_geometric_mean() -> None:
    found = score(candidate([4.0], bytes=16, peak=81), GOALS["balanced"])
    assert found == pytest.approx(0.5 * math.log(4) + 0.25 * math.log(16) + 0.25 * math.log(81))


def test_the_accelerator_counts_where_it_is_faster_than_the_cpu() -> None:
    a, b = candidate([1.0]), candidate([1.0])
    a.row.estimated = Estimated("nnapi", 0.010, 0.020, 3, 5, 10)
    b.row.estimated = Estimated("nnapi", 0.040, 0.008, 1, 10, 10)
    assert ranked([a, b], GOALS["accelerator"]) == [b, a]
    assert a.row.score == pytest.approx(0.010)


def test_what_is_not_known_has_no_rank() -> None:
    unknown, failed = candidate([]), candidate([1.0])
    failed.row.error = "refused"
    assert ranked([unknown, failed], LATENCY) == []
    assert ranked([candidate([1.0], peak=None)], GOALS["memory"]) == []


def test_goals_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="there is no goal 'speed'"):
        goal_named("speed")
