"""Arithmetic on dimensions that may be symbols."""

from __future__ import annotations

import pytest

from ortconv.ir.symbols import at_most, broadcast_dims, minus, plus, quotient, stated_size, stretches_to, times
from ortconv.ir.types import Dim
from tests.batches import batched


@pytest.mark.parametrize(
    ("dims", "product"),
    [((2, "a", 3, "b"), "6·a·b"), (("a", 1), "a"), (("2·a", "3·a"), "6·a·a"), ((0, "a"), 0), ((), 1), (("a", None), None),
     (("7", "a"), None), (("9" * 5000 + "·a", 2), None), ((-1, "a"), None)],
)  # fmt: skip
def test_products_of_dimensions(dims: tuple[Dim, ...], product: Dim) -> None:
    assert times(*dims) == product


@pytest.mark.parametrize(
    ("dims", "total"),
    [((2, "b", 3, "a"), "a + b + 5"), (("a", 0), "a"), ((), 0), ((2, 3), 5), (("a", None), None), (("a", -1), None)],
)
def test_sums_of_dimensions(dims: tuple[Dim, ...], total: Dim) -> None:
    assert plus(*dims) == total


def test_quotients_of_dimensions() -> None:
    assert quotient(["6·a·b"], [2, "b"]) == "3·a"
    assert quotient(["a"], ["a"]) == 1
    for dims, others in ((["5·a"], [2]), (["a"], ["b"]), ([None], [1]), (["a"], [0])):
        assert quotient(dims, others) is None


def test_the_lesser_of_two_dimensions() -> None:
    assert at_most(3, 5) == 3
    assert at_most("a", "a") == "a"
    assert at_most("a", 5) == at_most(5, "a") == "min(5,a)"
    assert at_most(0, "a") is at_most("a", "b") is at_most(None, 3) is None
    assert broadcast_dims(["a", "min(5,a)"]) == "a"
    assert broadcast_dims(["min(5,a)", 1]) == "min(5,a)"
    assert broadcast_dims(["b", "min(5,a)"]) is None
    assert broadcast_dims([3, 4]) is None
    assert stretches_to("min(5,a)", "a")
    assert not stretches_to("min(1,a)", "a")
    assert not stretches_to("min(5,b)", "a")


@batched
@pytest.mark.parametrize(
    ("whole", "part", "rest"),
    [
        ("N", 0, "N"), ("N", "N", 0), (7, 3, 4), (3, 7, None), ("N + past", "past", "N"), ("N+past", "N+past", 0),
        ("N+past+1", 1, "N + past"), ("N+past", "M", None), ("N+past", None, None), (None, None, None), ("N+N", "N", "N"),
        ("min(4,N+1)", "1)", None), ("min(4,N)", "min(4,N)", 0), ("N", 2, None), ("N+3", 2, None), ("2·N", "N", None),
    ],
)  # fmt: skip
def test_what_is_left_of_a_sum(whole: Dim, part: Dim, rest: Dim) -> None:
    assert minus(whole, part) == rest


@batched
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("past + rows", 7), ("past+1", 4), ("((s16//4)) + 1", 101), ("4*((s16//4)) + 8", 408), ("s16 - 1", 399), ("s16 % 7", 1),
        ("batch-size*2", 10), ("s16", None), ("5", None), ("min(3,s16)", None), ("other + 1", None), ("s16//0", None),
        ("1 - s16", None), ("s16 + ", None), ("1.5*s16", None), ("s16.real + 1", None), ("(" * 150, None), ("1+" * 200 + "1", None),
    ],
)  # fmt: skip
def test_names_that_state_a_size(name: str, size: int | None) -> None:
    assert stated_size(name, {"past": 3, "rows": 4, "s16": 400, "batch-size": 5}) == size
