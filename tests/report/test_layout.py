"""Layered layout: no two boxes meet, lines end at their boxes and pass no other, on random graphs and known ones."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from ortconv.report.layout import GAP_X, GAP_Y, Layout, Net, assign_layers, layered
from tests.batches import slow_except
from tests.counting import calls


def random_nets(rng: random.Random, count: int) -> list[Net]:
    nets = []
    for source in range(count - 1):
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            near = range(source + 1, min(count, source + rng.choice((2, 4, count))))
            if near:
                nets.append(Net(source, tuple(rng.sample(near, min(len(near), rng.choice((1, 1, 2, 3)))))))
    return nets


def check(layout: Layout, nets: list[Net]) -> None:
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(layout.corners, layout.sizes, strict=True)]
    ordered = sorted(range(len(boxes)), key=lambda i: boxes[i][1])
    for k, i in enumerate(ordered):
        a = boxes[i]
        assert -0.01 <= a[0] <= a[2] <= layout.width + 0.01
        assert 0 <= a[1] <= a[3] <= layout.height + 0.01
        for j in ordered[k + 1 :]:
            b = boxes[j]
            if b[1] >= a[3]:
                break
            assert a[2] + GAP_X <= b[0] + 0.01 or b[2] + GAP_X <= a[0] + 0.01, "boxes side by side keep their distance"
    assert {(r.net, r.source, r.target) for r in layout.routes} == {
        (n, net.source, t) for n, net in enumerate(nets) for t in net.targets
    }
    for route in layout.routes:
        line = layout.line(route)
        source, target = boxes[route.source], boxes[route.target]
        assert source[0] < line[0][0] < source[2]
        assert line[0][1] == source[3]
        assert target[0] < line[-1][0] < target[2]
        assert line[-1][1] == target[1]
        for (x, y), (u, v) in pairwise(line):
            assert v >= y, "lines only go down"
            # A curve stays within the rectangle of its ends; what runs sideways does so between the layers.
            low, high = min(x, u), max(x, u)
            for i, (left, top, right, bottom) in enumerate(boxes):
                if i in (route.source, route.target):
                    continue
                assert not (low < right and high > left and y < bottom - 0.01 and v > top + 0.01), "lines pass no box"


@pytest.mark.parametrize("seed", slow_except(range(4), range(12)))
def test_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 60)
    sizes = [(rng.uniform(40, 200), rng.choice((38.0, 38.0, 200.0))) for _ in range(count)]
    nets = random_nets(rng, count)
    check(layered(sizes, nets), nets)


@pytest.mark.parametrize("seed", range(6))
def test_first_and_last_layers_keep_their_order(seed: int) -> None:
    rng = random.Random(seed)
    inner = 20
    nets = [Net(rng.randrange(3), (rng.randrange(3, 3 + inner),)) for _ in range(3)]
    nets += [Net(n.source + 3, tuple(t + 3 for t in n.targets)) for n in random_nets(rng, inner)]
    nets += [Net(rng.randrange(3, 3 + inner), (3 + inner + i,)) for i in range(4)]
    sizes = [(8.0, 8.0)] * 3 + [(80.0, 38.0)] * inner + [(8.0, 8.0)] * 4
    first, last = [2, 0, 1], [24, 23, 26, 25]
    layout = layered(sizes, nets, first, last)
    check(layout, nets)
    for row in (first, last):
        places = [layout.corners[i] for i in row]
        assert places == sorted(places)
        assert len({y for _, y in places}) == 1
    others = [y for i, (_, y) in enumerate(layout.corners) if i not in first and i not in last]
    assert layout.corners[0][1] < min(others) <= max(others) < layout.corners[-1][1]


def test_chain_is_straight() -> None:
    layout = layered([(60.0 + 10 * i, 38.0) for i in range(6)], [Net(i, (i + 1,)) for i in range(5)])
    middles = [x + w / 2 for (x, _), (w, _) in zip(layout.corners, layout.sizes, strict=True)]
    assert max(middles) - min(middles) < 0.01
    tops = [y for _, y in layout.corners]
    assert tops == [i * (38 + GAP_Y) for i in range(6)]


def test_long_lines_are_straight() -> None:
    # A skip over a chain: every stretch of the long line between the first and last layer it passes is vertical.
    nets = [Net(i, (i + 1,)) for i in range(8)] + [Net(0, (8,))]
    layout = layered([(80.0, 38.0)] * 9, nets)
    line = next(layout.line(r) for r in layout.routes if r.net == 8)
    assert len({round(x, 3) for x, _ in line[2:-2]}) == 1


def test_crossings_are_removed() -> None:
    # Two columns, given crosswise.
    nets = [Net(0, (3,)), Net(1, (2,)), Net(2, (5,)), Net(3, (4,))]
    layout = layered([(60.0, 38.0)] * 6, nets)
    left = [layout.corners[i][0] for i in (0, 3, 4)]
    right = [layout.corners[i][0] for i in (1, 2, 5)]
    assert max(left) < min(right) or max(right) < min(left)


def test_lines_of_one_net_share_their_way() -> None:
    nets = [Net(i, (i + 1,)) for i in range(6)] + [Net(0, (4, 6))]
    layout = layered([(60.0, 38.0)] * 7, nets)
    short, long = sorted((layout.line(r) for r in layout.routes if r.net == 6), key=len)
    assert long[: len(short) - 2] == short[:-2]


def test_layers() -> None:
    # The node without sources stands right above its only target.
    nets = [Net(0, (1,)), Net(1, (2,)), Net(2, (4,)), Net(3, (4,))]
    assert assign_layers(5, nets) == [0, 1, 2, 2, 3]
    assert layered([], []).corners == ()


@pytest.mark.slow
def test_cost_is_linear() -> None:
    def cost(count: int) -> int:
        nets = [Net(i, (i + 1,)) for i in range(count - 1)] + [Net(i, (i + 3,)) for i in range(0, count - 3, 2)]
        return calls(lambda: layered([(80.0, 38.0)] * count, nets))

    assert cost(1600) < 4 * 1.3 * cost(400)
