"""Differences between results of different forms, of elements that are no numbers, and the verdict on some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortconv.compare.gap import gap, strict_gap
from ortconv.compare.measure import measure
from ortconv.compare.pairs import OTHER_FORM
from ortconv.compare.tolerance import OutputTolerance, accepts, permitted, within_errors
from ortconv.ir.types import DType

ONES, TWOS = np.ones(2, np.float32), np.full(2, 2, np.float32)
TEXTS = np.array(["a", "b"], object)

SEQUENCES: dict[str, tuple[Any, Any, str | None]] = {
    "two absent values": (None, None, None),
    "an absent value and a tensor": (None, ONES, OTHER_FORM),
    "a sequence and a tensor": ([ONES], ONES, OTHER_FORM),
    "sequences of different lengths": ([ONES], [ONES, ONES], OTHER_FORM),
    "empty sequences": ([], [], None),
    "equal sequences": ([ONES, TWOS], [ONES, TWOS], None),
    "a tensor of another shape in a sequence": ([ONES, ONES], [ONES, ONES[:1]], "float32[2] became float32[1]"),
    "a tensor of another type in a sequence": ([ONES], [ONES.astype(np.int8)], "float32[2] became int8[2]"),
    "other texts in a sequence": ([TEXTS], [TEXTS[::-1]], "2 of 2 elements differ"),
    "equal texts": (TEXTS, TEXTS.copy(), None),
    "a map in another order": ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, None),
    "a map with another key": ({"a": 1.0}, {"bc": 1.0}, "1 of 1 elements differ"),
    "a map with another key too": ({1: 1.0}, {1: 1.0, 2: 1.0}, "int64[1] became int64[2]"),
    "a map with another text": ([{1: "a"}], [{1: "bc"}], "1 of 1 elements differ"),
    "a map and a tensor": ({"a": 1.0}, ONES, OTHER_FORM),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_all_comparisons_agree_on_the_form(name: str) -> None:
    want, got, mismatch = SEQUENCES[name]
    assert [compare(want, got).mismatch for compare in (gap, strict_gap, measure)] == [mismatch] * 3


def test_the_widest_element_of_a_sequence_counts() -> None:
    want, got = [ONES, TWOS, ONES], [ONES, TWOS + 0.5, ONES + 0.25]
    assert gap(want, got).largest == strict_gap(want, got).largest == measure(want, got).max_abs == 0.5


def test_values_of_maps_are_numbers() -> None:
    want, got = [{"a": 1.0}, {"a": 4.0, "b": 2.0}], [{"a": 1.0}, {"a": 4.0, "b": 2.5}]
    assert [compare(want, got).scaled for compare in (strict_gap, measure)] == [0.125] * 2
    assert gap(want, got).largest == 0.5
    assert accepts(OutputTolerance(1e-6), gap({"a": 1.0}, {"a": 1.0 + 1e-7}))


@pytest.mark.parametrize(("got", "is_in_elements"), [(TEXTS[::-1], True), (TEXTS[:1], False), (ONES, False)])
def test_other_texts_are_no_other_form(got: Any, is_in_elements: bool) -> None:
    found = gap(TEXTS, got)
    assert found.mismatch is not None
    assert found.is_in_elements == is_in_elements


def test_no_mismatch_is_explained() -> None:
    wrong, wide = gap(ONES, None), gap(ONES, TWOS)
    assert not wrong.explained_by(wide)
    assert not gap(ONES, ONES).explained_by(wrong)
    assert gap(ONES, ONES).explained_by(wide)


@pytest.mark.parametrize(("wrong", "accepted"), [(1, True), (50, False)])
def test_quantized_sums_may_be_far_off_in_few_elements(wrong: int, accepted: bool) -> None:
    want = np.ones(100, np.float32)
    got = np.where(np.arange(100) < wrong, np.float32(1.04), want)
    assert accepts(OutputTolerance(0.05, DType.FLOAT, quantized=True), gap(want, got)) == accepted


@pytest.mark.parametrize(
    ("tolerance", "accepted"),
    [
        (OutputTolerance(0.05, DType.FLOAT), True),
        (OutputTolerance(0.05, DType.FLOAT, quantized=True), False),
        (OutputTolerance(0.05, DType.INT32), False),
    ],
)
def test_only_floats_may_be_off_by_more_than_their_errors(tolerance: OutputTolerance, accepted: bool) -> None:
    truth, errors = np.array([100, 50]), np.array([0.0, 1.0])
    assert within_errors(tolerance, truth, np.array([100, 51]), errors)
    assert within_errors(tolerance, truth, np.array([101, 50]), errors) == accepted


@pytest.mark.parametrize(
    ("tolerance", "text"),
    [
        (OutputTolerance(1e-5), "1.0e-05"),
        (OutputTolerance(0.05, DType.FLOAT, True, 0.5), "one step of 0.5 in 2 of 8 elements, where 3 differ"),
        (OutputTolerance(0.05, DType.FLOAT, True), "5.0e-02, and an RMS of 0.01, where it is 0.31"),
        (OutputTolerance(0.05, DType.UINT8, True, 1), "one step of 1 in 2 of 8 elements, where 3 differ"),
        (OutputTolerance(0.05, DType.INT64), "none"),
    ],
)
def test_what_is_permitted_is_said(tolerance: OutputTolerance, text: str) -> None:
    want = np.ones(8)
    assert permitted(tolerance, gap(want, want + 0.5 * (np.arange(8) < 3))) == text
