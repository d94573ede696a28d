"""Plots of candidates with two costs, and the front of those that no other one beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortconv.report.page import text
from ortconv.report.sections import NOTHING, Markup

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 16, 48
RADIUS = 5
MARGIN = 0.08
"""The share of the range that stays free at each end of an axis."""

TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate with two costs, and the bounds of the first cost if they are known. One point is `chosen`."""

    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class AxisTitle:
    """The label of an axis, and the format of its numbers."""

    title: str
    form: str = "{:.3g}"


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in one cost without being worse in the other, from left to right."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not found or point.y < found[-1].y:
            found.append(point)
    return found


def pareto(points: Sequence[Point], x: AxisTitle, y: AxisTitle) -> Markup:
    """The points as an SVG, the front joined by a line. Lower is better on both axes."""
    if not points:
        return NOTHING
    across, up = _Scale([p.x for p in points], LEFT, WIDTH - RIGHT), _Scale([p.y for p in points], HEIGHT - BOTTOM, TOP)
    best = front(points)
    path = " ".join(f"{across(p.x):.1f},{up(p.y):.1f}" for p in best)
    parts = [
        *(_across_tick(across, n, x) for n in across.ticks),
        *(_up_tick(up, n, y) for n in up.ticks),
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-opacity=".4"/>',
        *(_dot(p, across, up, p in best) for p in points),
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{text(x.title)}</text>',
        f'<text class="axis" x="8" y="12">{text(y.title)}</text>',
    ]
    name = text(f"{y.title} against {x.title}")
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{name}">{"".join(parts)}</svg>'
    )


class _Scale:
    """A function from numbers to pixels."""

    def __init__(self, numbers: Sequence[float], start: float, end: float) -> None:
        low, high = min(numbers), max(numbers)
        room = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
        self._low, self._high, self._start, self._end = low - room, high + room, start, end

    def __call__(self, number: float) -> float:
        share = (number - self._low) / (self._high - self._low)
        return self._start + min(max(share, 0.0), 1.0) * (self._end - self._start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers within the range."""
        rough = (self._high - self._low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough)
        first = math.ceil(self._low / step)
        return [n * step for n in range(first, math.floor(self._high / step) + 1)]


def _across_tick(scale: _Scale, number: float, axis: AxisTitle) -> str:
    at, label = scale(number), text(axis.form.format(number))
    line = f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    return f'{line}<text class="axis" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>'


def _up_tick(scale: _Scale, number: float, axis: AxisTitle) -> str:
    at, label = scale(number), text(axis.form.format(number))
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return f'{line}<text class="axis" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'


def _dot(point: Point, across: _Scale, up: _Scale, is_best: bool) -> str:
    """A point with its interval. Its name is shown on hover; that of the chosen one is always shown."""
    x, y, kind = across(point.x), up(point.y), "good" if is_best else "plain"
    bounds = ""
    if point.low is not None and point.high is not None:
        bounds = (
            f'<line class="grid" x1="{across(point.low):.1f}" x2="{across(point.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
    ring, name = "", ""
    if point.chosen:
        ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS + 4}" fill="none" stroke="currentColor"/>'
        end = x > (LEFT + WIDTH) / 2
        anchor = ' text-anchor="end"' if end else ""
        name = f'<text x="{x + (-14 if end else 14):.1f}" y="{y - 8:.1f}"{anchor}>{text(point.label)}</text>'
    dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}"/>'
    return f"<g><title>{text(point.label)}</title>{bounds}{ring}{dot}{name}</g>"
