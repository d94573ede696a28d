"""A layered drawing of a directed acyclic graph: layers from top to bottom, few crossings, straight long edges.

A net goes from one node to several. Below its source it is one line, which passes the layers that it skips, and each target
has a branch off it. Layers come from longest paths, their order from barycenters, positions from an exact least-squares fit.
Time is linear in nodes and in layers that nets pass, but for sorting.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
Point = tuple[float, float]

GAP_X = 18.0
GAP_Y = 30.0
GRAVITY = 0.2
"""How strongly joined lines are drawn to the middle, so that long graphs do not drift to one side."""
LINE = 6.0
"""The width that is kept free for a line that passes a layer."""
SWEEPS = 8
FITS = 9
"""Number of fits of the positions. It is odd so that the last one goes down, which leaves chains straight."""


@dataclass(frozen=True, slots=True)
class Net:
    """An edge from a node to others, all by index. A source comes before its targets in topological order."""

    source: int
    targets: tuple[int, ...]


def between(makers: Mapping[K, int], read: Iterable[tuple[int, K]]) -> tuple[list[Net], list[K]]:
    """A net for each value from the node that makes it to those that read it, and these values. `read` has node and value."""
    targets: dict[K, dict[int, None]] = {}
    for node, value in read:
        if value in makers and makers[value] != node:
            targets.setdefault(value, {})[node] = None
    return [Net(makers[v], tuple(found)) for v, found in targets.items()], list(targets)


@dataclass(frozen=True, slots=True)
class Route:
    """A line from `source` to `target`, its ends at shares of the width of both boxes, and the points between them."""

    net: int
    source: int
    target: int
    leaves_at: float
    arrives_at: float
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Left and top of every box, and the routes between them. Routes leave at the bottom and arrive at the top. Layouts are
    compared by identity.
    """

    width: float
    height: float
    sizes: tuple[tuple[float, float], ...]
    corners: tuple[Point, ...]
    routes: tuple[Route, ...]

    def line(self, route: Route) -> list[Point]:
        """All points of a route, including its ends."""
        (x, y), (w, h) = self.corners[route.source], self.sizes[route.source]
        (u, v), (width, _) = self.corners[route.target], self.sizes[route.target]
        return [(x + w * route.leaves_at, y + h), *route.points, (u + width * route.arrives_at, v)]


def layered(
    sizes: Sequence[tuple[float, float]], nets: Sequence[Net], first: Sequence[int] = (), last: Sequence[int] = ()
) -> Layout:
    """Place boxes of these sizes (width, height), numbered in topological order.

    `first` and `last` are the top and the bottom layer where given, in this order.
    """
    work = _Layers(sizes, nets, first, last)
    work.order()
    work.place()
    return work.layout()


class _Layers:
    """Items are boxes, then lines that pass a layer. `up` and `down` hold the neighbors of each item in the layers around it,
    `passing` the items of each net below its source, layer by layer.
    """

    def __init__(
        self, sizes: Sequence[tuple[float, float]], nets: Sequence[Net], first: Sequence[int], last: Sequence[int]
    ) -> None:
        self.sizes, self.nets, self.boxes = list(sizes), nets, len(sizes)
        self.layer_of = assign_layers(self.boxes, nets, first, last)
        self.layers: list[list[int]] = [[] for _ in range(max(self.layer_of, default=-1) + 1)]
        for i, layer in enumerate(self.layer_of):
            self.layers[layer].append(i)
        self.frozen = set()
        for group, layer in ((first, 0), (last, len(self.layers) - 1)):
            if group:
                self.layers[layer] = list(group)
                self.frozen.add(layer)
        self.up: list[list[int]] = [[] for _ in sizes]
        self.down: list[list[int]] = [[] for _ in sizes]
        self.passing = [self._thread(net) for net in nets]
        self.x = [0.0] * len(self.sizes)

    def _thread(self, net: Net) -> list[int]:
        start = self.layer_of[net.source]
        end = max(self.layer_of[t] for t in net.targets)
        trunk = []
        above = net.source
        for layer in range(start + 1, end):
            item = len(self.sizes)
            self.sizes.append((LINE, 0.0))
            self.layer_of.append(layer)
            self.layers[layer].append(item)
            self.up.append([])
            self.down.append([])
            self._join(above, item)
            trunk.append(item)
            above = item
        for target in dict.fromkeys(net.targets):
            self._join(self._above(net, trunk, target), target)
        return trunk

    def _above(self, net: Net, trunk: list[int], target: int) -> int:
        """The item of the net in the layer above a target."""
        steps = self.layer_of[target] - self.layer_of[net.source] - 1
        return trunk[steps - 1] if steps else net.source

    def _join(self, a: int, b: int) -> None:
        self.down[a].append(b)
        self.up[b].append(a)

    # ------------------------------------------------------------------ order

    def order(self) -> None:
        """Reorder the layers by barycenters, down and up in turn, and keep the order with the fewest crossings."""
        best, fewest = [list(layer) for layer in self.layers], self.crossings()
        down, up = range(1, len(self.layers)), range(len(self.layers) - 2, -1, -1)
        for sweep in range(SWEEPS):
            if not fewest:
                break
            place = self._places()
            for i in up if sweep % 2 else down:
                if i not in self.frozen:
                    self._sort(i, self.down if sweep % 2 else self.up, place)
            count = self.crossings()
            if count < fewest:
                best, fewest = [list(layer) for layer in self.layers], count
        self.layers = best

    def _sort(self, i: int, neighbors: list[list[int]], place: list[int]) -> None:
        def key(item: int) -> float:
            near = neighbors[item]
            return sum(place[n] for n in near) / len(near) if near else place[item]

        self.layers[i].sort(key=key)
        for p, item in enumerate(self.layers[i]):
            place[item] = p

    def _places(self) -> list[int]:
        place = [0] * len(self.sizes)
        for layer in self.layers:
            for p, item in enumerate(layer):
                place[item] = p
        return place

    def crossings(self) -> int:
        """Number of crossings between lines of neighboring layers."""
        place = self._places()
        total = 0
        for layer in self.layers:
            ends: list[int] = []
            for item in layer:
                targets = sorted(place[t] for t in self.down[item])
                total += sum(len(ends) - bisect_right(ends, t) for t in targets)
                for t in targets:
                    insort(ends, t)
        return total

    # ------------------------------------------------------------------ places

    def place(self) -> None:
        """Horizontal centers: every layer in turn is fitted to its neighbors, lines that pass layers with more weight."""
        for layer in self.layers:
            self._fit(layer, [0.0] * len(layer), [1.0] * len(layer))
        for sweep in range(FITS):
            wish = self._wish_above if sweep % 2 else self._wish_below
            for layer in reversed(self.layers) if sweep % 2 else self.layers:
                wishes = [wish(item) for item in layer]
                self._fit(layer, [at for at, _ in wishes], [weight for _, weight in wishes])

    def _wish_above(self, item: int) -> tuple[float, float]:
        """The position above an item's consumers that it prefers, and how strongly."""
        near = self.down[item] or self.up[item]
        pulls = [self._pull(item, n) for n in near]
        if not near:
            return self.x[item], 0.1
        return self._mean(near, pulls) * (1 - GRAVITY * (len(near) > 1)), sum(pulls)

    def _wish_below(self, item: int) -> tuple[float, float]:
        """The position below an item's sources that it prefers, and how strongly. An item without sources prefers that of its
        partners.
        """
        near = self.up[item]
        if near:
            pulls = [self._pull(item, n) * (1.0 if self.up[n] else 0.01) for n in near]
            joins = sum(bool(self.up[n]) for n in near) > 1
            return self._mean(near, pulls) * (1 - GRAVITY * joins), sum(pulls)
        partners = [p for d in self.down[item][:1] for p in self.up[d] if self.up[p]]
        if partners:
            return self._wish_below(partners[0])[0], 0.1
        return self._wish_above(item)

    def _mean(self, items: list[int], weights: list[float]) -> float:
        return sum(w * self.x[i] for i, w in zip(items, weights, strict=True)) / sum(weights)

    def _pull(self, a: int, b: int) -> float:
        return 8.0 if a >= self.boxes and b >= self.boxes else 1.0

    def _fit(self, layer: list[int], wanted: list[float], weights: list[float]) -> None:
        """The centers nearest to the preferred ones that keep order and distance: isotonic regression by pooling."""
        offset = 0.0
        offsets = []
        pools: list[list[float]] = []  # [weighted mean, weight, members]
        for i, item in enumerate(layer):
            if i:
                offset += (self.sizes[layer[i - 1]][0] + self.sizes[item][0]) / 2 + GAP_X
            offsets.append(offset)
            pools.append([wanted[i] - offset, weights[i], 1])
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                mean, weight, count = pools.pop()
                p = pools[-1]
                p[0] = (p[0] * p[1] + mean * weight) / (p[1] + weight)
                p[1] += weight
                p[2] += count
        i = 0
        for mean, _, count in pools:
            for _ in range(int(count)):
                self.x[layer[i]] = mean + offsets[i]
                i += 1

    # ------------------------------------------------------------------ result

    def layout(self) -> Layout:
        left = min((x - width / 2 for x, (width, _) in zip(self.x, self.sizes)), default=0.0)
        self.x = [x - left for x in self.x]
        right = max((x + width / 2 for x, (width, _) in zip(self.x, self.sizes)), default=0.0)
        tops, heights = self._rows()
        sizes, corners = self.sizes[: self.boxes], []
        for x, (width, height), layer in zip(self.x, sizes, self.layer_of):
            corners.append((x - width / 2, tops[layer] + (heights[layer] - height) / 2))
        bottom = tops[-1] + heights[-1] if tops else 0.0
        return Layout(right, bottom, tuple(sizes), tuple(corners), tuple(self._routes(tops, heights)))

    def _rows(self) -> tuple[list[float], list[float]]:
        """Top and height of the layers. The more lines run sideways between two layers, the farther they are apart."""
        tops, heights = [], []
        y = 0.0
        for layer in self.layers:
            tops.append(y)
            heights.append(max(self.sizes[i][1] for i in layer))
            aside = max((abs(self.x[i] - self.x[d]) for i in layer for d in self.down[i]), default=0.0)
            y += heights[-1] + GAP_Y + min(aside * 0.12, 90.0)
        return tops, heights

    def _routes(self, tops: list[float], heights: list[float]) -> list[Route]:
        starts, ends = self._shares()
        routes = []
        for n, net in enumerate(self.nets):
            start = self.layer_of[net.source]
            for target in dict.fromkeys(net.targets):
                leaves = self.x[net.source] + (starts[n] - 0.5) * self.sizes[net.source][0]
                arrives = self.x[target] + (ends[n, target] - 0.5) * self.sizes[target][0]
                points = [(leaves, tops[start] + heights[start])]
                for item in self.passing[n][: self.layer_of[target] - start - 1]:
                    layer = self.layer_of[item]
                    points += [(self.x[item], tops[layer]), (self.x[item], tops[layer] + heights[layer])]
                points.append((arrives, tops[self.layer_of[target]]))
                routes.append(Route(n, net.source, target, starts[n], ends[n, target], tuple(points)))
        return routes

    def _shares(self) -> tuple[dict[int, float], dict[tuple[int, int], float]]:
        """Where lines meet boxes, as shares of the widths: their starts by net, their ends by net and target."""
        place = self._places()
        leaving: dict[int, list[tuple[int, int]]] = {}
        arriving: dict[int, list[tuple[int, int]]] = {}
        for n, net in enumerate(self.nets):
            below = self.passing[n][0] if self.passing[n] else net.targets[0]
            leaving.setdefault(net.source, []).append((place[below], n))
            for target in dict.fromkeys(net.targets):
                arriving.setdefault(target, []).append((place[self._above(net, self.passing[n], target)], n))
        starts = {n: share for nets in leaving.values() for n, share in _spread(nets)}
        ends = {(n, target): share for target, nets in arriving.items() for n, share in _spread(nets)}
        return starts, ends


def _spread(nets: list[tuple[int, int]]) -> Iterator[tuple[int, float]]:
    """The nets of a box, given as (place, net), with positions at equal distances."""
    for i, (_, n) in enumerate(sorted(nets), 1):
        yield n, i / (len(nets) + 1)


def assign_layers(
    count: int, nets: Sequence[Net], first: Collection[int] = (), last: Collection[int] = ()
) -> list[int]:
    """The layer of each node: as far down as its sources demand, then nearer to its targets if that shortens lines.

    Nodes of `first` are in layer 0, all others below; nodes of `last` are in the lowest, and no others.
    """
    edges = [(net.source, target) for net in nets for target in dict.fromkeys(net.targets)]
    sources: list[list[int]] = [[] for _ in range(count)]
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    top, bottom = set(first), set(last)
    layer = [0] * count
    others = [i for i in range(count) if i not in top]
    for i in others:
        layer[i] = max((layer[s] + 1 for s in sources[i]), default=1 if top else 0)
    for i in reversed(others):
        if len(targets[i]) > len(sources[i]):
            layer[i] = min(layer[t] for t in targets[i]) - 1
    lowest = max((layer[i] for i in range(count) if i not in bottom), default=-1) + 1
    for i in bottom:
        layer[i] = lowest
    return layer
