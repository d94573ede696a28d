"""Repeats of a sequence are found whatever stands around them, and begin where few lines cross."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from ortconv.report.folding import Repeat, cohesion, repeats, scope, scoped, sections
from tests.counting import calls


def found(text: str, crossings: list[int] | None = None, names: list[str] | None = None) -> list[Repeat]:
    """The repeats of a text; by default every place has as many lines."""
    whole = names or [""] * len(text)
    return repeats(
        list(map(ord, text)), [1] * len(text), crossings or [1] * (len(text) + 1), lambda a, b: cohesion(whole[a:b])
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("abcdefgh", []),
        ("ab" * 5, []),
        ("ab" * 6, [Repeat(0, 2, 6)]),
        ("xyz" + "abcd" * 5 + "uvw", [Repeat(3, 4, 5)]),
        ("a" * 30, [Repeat(0, 1, 30)]),
        ("abcdefgh" * 2, [Repeat(0, 8, 2)]),
        ("abcdefg" * 2, []),
        ("q" + "aaab" * 6 + "cd" * 9 + "r", [Repeat(1, 4, 6), Repeat(25, 2, 9)]),
        ("abcab" * 12, [Repeat(0, 5, 12)]),
    ],
)
def test_repeats(text: str, expected: list[Repeat]) -> None:
    assert found(text) == expected


def test_random_text_around_a_repeat() -> None:
    draw = random.Random(7)
    for _ in range(40):
        block = "".join(draw.choices("abcdefgh", k=draw.randint(6, 30)))
        count = draw.randint(3, 40)
        before, after = ("".join(draw.choices("uvwxyz", k=draw.randint(0, 50))) for _ in range(2))
        (repeat, *_) = sorted(found(before + block * count + after), key=lambda r: r.start - r.end)
        assert repeat.period * repeat.blocks == len(block) * count
        assert repeat.start == len(before)


@pytest.mark.slow
def test_repeats_do_not_overlap() -> None:
    draw = random.Random(3)
    for _ in range(40):
        text = "".join(draw.choice(["ab", "abc", "aab", "ccc"]) * draw.randint(1, 9) for _ in range(20))
        for a, b in pairwise(found(text)):
            assert a.end <= b.start
        for repeat in found(text):
            block = text[repeat.start : repeat.start + repeat.period]
            assert text[repeat.start : repeat.end] == block * repeat.blocks


def test_blocks_begin_where_few_lines_cross() -> None:
    text = "bcd" + "abcd" * 6 + "a"
    crossings = [0 if i % 4 == 1 else 3 for i in range(len(text) + 1)]
    assert found(text, crossings) == [Repeat(1, 4, 6)]


def test_blocks_begin_where_names_belong_together() -> None:
    text = "cd" + "abcd" * 6 + "ab"
    names = ["/head/x", "/head/y", *(f"/layer.{i // 4}/{c}" for i, c in enumerate("abcd" * 6)), "/tail/x", "/tail/y"]
    assert found(text, names=names) == [Repeat(2, 4, 6)]


def test_sections_are_cut_where_few_lines_cross() -> None:
    crossings = [9] * 1001
    crossings[130] = 1
    cuts = sections(1000, crossings, 120)
    assert cuts[0] == (0, 130)
    assert cuts[-1][1] == 1000
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert max(b - a for a, b in cuts) <= 180


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/enc/layer.3/MatMul", "/enc/layer.3/att/Add"], ("enc", "layer", "3")),
        (["/a/x", "/b/x"], ()),
        (["/a/b/x"] * 9 + [""], ("a", "b")),
        (["x", "y"], ()),
        ([], ()),
    ],
)
def test_scope(names: list[str], expected: tuple[str, ...]) -> None:
    assert scope(names) == expected


def test_neighbors_of_one_scope() -> None:
    scopes = [("m", "in"), *[("m", "enc", "0")] * 6, *[("m", "enc", "1")] * 2, ("m", "out")]
    assert scoped(scopes, 6) == [(1, 9, ("m", "enc"))]
    assert scoped([*scopes[1:7], *[("m", "enc", "1")] * 4], 6) == [(0, 6, ("m", "enc", "0"))]
    assert scoped([*scopes, *[("m", "dec", "0")] * 6], 6) == [(1, 9, ("m", "enc")), (10, 16, ("m", "dec"))]
    assert scoped([()] * 5, 2) == []


@pytest.mark.slow
def test_cost_is_near_linear() -> None:
    def cost(count: int) -> int:
        return calls(lambda: found("abcdefghijklmnop" * count))

    assert cost(800) < 8 * 1.5 * cost(100)
