"""Plots of two costs."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ortconv.report.pareto import AxisTitle, Point, front, pareto

X, Y = AxisTitle("time"), AxisTitle("memory", "{:.1f}")


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ([(1, 3), (2, 2), (3, 1)], [0, 1, 2]),
        ([(1, 3), (2, 3), (3, 1)], [0, 2]),
        ([(2, 2), (1, 1), (3, 0.5)], [1, 2]),
        ([(1, 2), (1, 1)], [1]),
    ],
)
def test_front(costs: list[tuple[float, float]], best: list[int]) -> None:
    points = [Point(str(i), x, y) for i, (x, y) in enumerate(costs)]
    assert [int(p.label) for p in front(points)] == best


def test_each_point_is_drawn_once_within_the_plot() -> None:
    points = [Point("<a>", 1, 10, 0.5, 1.5, chosen=True), Point("b", 2, 5), Point("c", 2, 20)]
    drawn = ElementTree.fromstring(pareto(points, X, Y))
    titles = [title.text for title in drawn.iter("title")]
    assert titles == ["<a>", "b", "c"]
    dots = [c for c in drawn.iter("circle") if c.get("class")]
    assert [c.get("class") for c in dots] == ["good", "good", "plain"]
    assert all(0 < float(c.get("cx", 0)) < 640 and 0 < float(c.get("cy", 0)) < 320 for c in dots)
    assert len(list(drawn.iter("circle"))) == 4  # the chosen one has a ring


def test_equal_costs_and_none() -> None:
    assert pareto([], X, Y) == ""
    ElementTree.fromstring(pareto([Point("a", 1, 1), Point("b", 1, 1)], X, Y))
    ElementTree.fromstring(pareto([Point("a", 0, 0)], X, Y))
