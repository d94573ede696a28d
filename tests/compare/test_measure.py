"""Distances between values, against plain formulas."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortconv.compare import gap as module
from ortconv.compare.measure import Measure, measure
from ortconv.compare.pairs import beyond
from ortconv.compare.tolerance import QUANTIZED_LIMIT


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_floats(dtype: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ELEMENTS", chunk)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 5, 4)).astype(dtype)
    b = (a * np.asarray(1.01, dtype)).astype(dtype)
    x, y = (v.ravel().astype(np.complex128 if dtype is np.complex64 else np.float64) for v in (a, b))
    found = measure(a, b)
    assert found.max_abs == pytest.approx(np.abs(x - y).max())
    assert found.scaled == pytest.approx(np.abs(x - y).max() / np.abs(x).max())
    assert found.cosine == pytest.approx(np.vdot(x, y).real / np.linalg.norm(x) / np.linalg.norm(y))
    assert found.snr == pytest.approx(20 * math.log10(np.linalg.norm(x) / np.linalg.norm(x - y)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulps_count_the_floats_in_between(dtype: Any) -> None:
    a = np.array([1, -1, 0, 1e-7, 6e4], dtype)
    b = a
    for _ in range(3):
        b = np.nextafter(b, np.asarray(-np.inf, dtype))
    assert measure(a, b).ulp == 3
    assert measure(dtype([0.0]), dtype([-0.0])).ulp == 0
    tiny = np.nextafter(np.zeros(1, dtype), np.ones(1, dtype))
    assert measure(tiny, -tiny).ulp == 2
    assert measure(np.array([np.finfo(dtype).max]), np.array([np.finfo(dtype).min])).ulp > 2**14


def test_equal_values() -> None:
    for value in (np.float32([1, np.nan, np.inf]), np.int8([3]), np.zeros((0, 2), np.float32), [np.ones(2)], None):
        found = measure(value, value)
        assert found.max_abs == 0
        assert found.within(0)
    assert measure(np.ones(3), np.ones(3)).snr == math.inf
    assert measure(np.array(["a"], object), np.array(["a"], object)).within(0)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.ones(2), np.ones(3), r"float64[2] became float64[3]"),
        (np.ones(2), np.ones(2, np.float32), "became float32"),
        (np.float32([1, np.nan]), np.float32([1, 2]), "NaN or infinity in other places"),
        (np.float32([1, 3]), np.float32([1, np.inf]), "NaN or infinity in other places"),
        (np.float32([np.inf]), np.float32([-np.inf]), "NaN or infinity in other places"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "1 of 2 elements differ"),
        ([np.ones(1)], [], "sequence"),
        (None, np.ones(1), "sequence or empty"),
    ],
)
def test_values_that_cannot_be_compared(a: Any, b: Any, words: str) -> None:
    found = measure(a, b)
    assert words in (found.mismatch or "")
    assert not found.within(math.inf)


def test_zeros() -> None:
    found = measure(np.zeros(3, np.float32), np.float32([0, 0, 1]))
    assert (found.scaled, found.cosine, found.snr) == (math.inf, 0, -math.inf)


def test_integers_must_agree_unless_they_are_quantized_floats() -> None:
    found = measure(np.uint8([100, 50]), np.uint8([101, 50]))
    assert (found.max_abs, math.isnan(found.ulp)) == (1, True)
    assert found.within(QUANTIZED_LIMIT)
    assert not found.within(1e-5)
    for dtype in (np.int16, np.int32, np.int64, np.uint64):
        assert not measure(dtype([100]), dtype([101])).within(QUANTIZED_LIMIT)
    assert measure(np.int64([2**62]), np.int64([-(2**62)])).max_abs == 2.0**63
    assert measure(np.uint64([0]), np.uint64([2**64 - 1])).max_abs == 2.0**64
    assert not measure(np.array([True]), np.array([False])).within(QUANTIZED_LIMIT)


def test_of_a_sequence_the_worst_counts() -> None:
    a = [np.ones(2, np.float32), np.ones(1, np.float32)]
    assert measure(a, [a[0], a[1] * 2]) == Measure(1, 1, 2**23, 1, 0, dtype="float32", shape=(1,))


@pytest.mark.parametrize(
    ("a", "b", "atol", "words"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), 0, None),
        (np.float32([1, 2]), np.float32([1, 2.5]), 0, "1 of 2 elements differ, first at [1]: 2.0 expected, 2.5"),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), 0, None),
        (np.float32([np.inf]), np.float32([-np.inf]), 0, "1 of 1"),
        (np.int64([5000]), np.int64([5001]), 0, "1 of 1"),
        (np.int64([5000]), np.int64([5001]), 1, None),
        (np.float32(1), np.float32(2), 0, "1 of 1 elements differ, first: 1.0 expected, 2.0 found"),
        (np.array(["a"]), np.array(["a"], object), 0, None),
        (np.array(["a"]), np.array(["b"], object), 0, "a expected, b found"),
        (np.array([True]), np.array([False]), 9, "1 of 1"),
        (np.ones((2, 1)), np.ones(2), 0, "float64[2, 1] expected, float64[2] found"),
        ([np.ones(1)], [np.zeros(1)], 0, "element 0: 1 of 1"),
        (None, None, 0, None),
        (None, np.ones(1), 0, "empty"),
    ],
)
def test_beyond(a: Any, b: Any, atol: float, words: str | None) -> None:
    text = beyond(a, b, 1e-3, atol)
    assert (text is None) if words is None else words in (text or "")


def test_integers_of_8_bits_may_differ_in_quantized_graphs_alone() -> None:
    found = measure(np.array([100, 100], np.int8), np.array([101, 100], np.int8))
    assert found.scaled == pytest.approx(0.01)
    assert found.within(QUANTIZED_LIMIT)
    assert not found.within(0.9 * QUANTIZED_LIMIT)
