"""The picture of a page: the arranged outline of a graph and the details of its nodes, for the scripts in `web/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ortconv.ir.graph import Graph
from ortconv.partition import Partitioning
from ortconv.partition.cost import Estimate
from ortconv.report.details import FAMILIES, GraphDetails
from ortconv.report.labels import FONT, text_width
from ortconv.report.layout import Layout, Route
from ortconv.report.outline import ACCELERATOR, CPU, INPUT, MIXED, Part, outline
from ortconv.report.page import Stage, text
from ortconv.report.scene import MARGIN, Inside, Scene, all_nodes, scene
from ortconv.report.sections import Markup

OPEN_AT_FIRST = 60
"""Groups are open at first, as far as the open ones show at most this many boxes."""

KEYS = {
    ACCELERATOR: "runs on the accelerator",
    CPU: "left to the CPU",
    MIXED: "some of both",
    INPUT: "input or output",
    "cost": "time on the CPU, relative to its neighbors",
    "copy": "copied between CPU and accelerator",
}
"""The legend, by class of its signs."""
WITHOUT_TARGET = (INPUT, "cost")
"""The legend of a picture without partitions."""
SEARCH = Markup(
    '<input id="search" type="search" placeholder="operator, name or rule  ( / )" aria-label="search nodes" autocomplete="off">'
    '<span id="found" role="status"></span>'
)
BUTTONS = (
    ("in", "+", "zoom in"),
    ("out", "−", "zoom out"),
    ("fit", "⤢", "whole picture"),
    ("open", "⊞", "open all groups"),
    ("close", "⊟", "close all groups"),
)
SCRIPTS = ("geometry.js", "details.js", "minimap.js", "picture.js", "pictures.js")


def drawn(graph: Graph, partitioning: Partitioning | None = None, estimate: Estimate | None = None) -> Scene:
    """An arranged graph. With a partitioning, it is grouped and colored by that."""
    return scene(outline(graph, partitioning, estimate), partitioning)


def picture(found: Scene, title: str, estimate: Estimate | None = None) -> dict[str, Any]:
    """A picture as JSON values. web/geometry.js documents them."""
    details = GraphDetails(found.partitioning, None if estimate is None else estimate.device)
    details.add(all_nodes(found))
    writer = _SceneWriter(found, details)
    target = None if found.partitioning is None else found.partitioning.target.provider.name
    return {
        "title": title,
        "target": target,
        "labels": list(writer.label_ids),
        "parts": writer.parts,
        "layouts": writer.layouts,
        "open": sorted(writer.ids[part] for part in open_at_first(found.root)),
        **details.to_dict(),
    }


def stage(
    *pictures: dict[str, Any],
    scripts: tuple[str, ...] = (),
    more: Mapping[str, Any] | None = None,
    keys: Mapping[str, str] | None = None,
) -> Stage:
    """The pictures of a page, side by side. `more` is data for other scripts; `keys` are further entries of the legend."""
    frames = "".join(_frame(i, found, len(pictures) > 1) for i, found in enumerate(pictures))
    markup = Markup(f'<div class="pictures">{frames}</div>')
    data = {"pictures": list(pictures), **(more or {})}
    with_target = any(found["target"] is not None for found in pictures)
    meanings = _legend(with_target, keys or {})
    return Stage(markup, ("picture.css",), (*scripts, *SCRIPTS), data, SEARCH, meanings)


def _legend(with_target: bool, more: Mapping[str, str]) -> Markup:
    """The meaning of colors and shapes."""
    signs = KEYS if with_target else FAMILIES | {sign: KEYS[sign] for sign in WITHOUT_TARGET}
    keys = {**signs, **more}
    spans = [f'<span><span class="key {sign}"></span>{meaning}</span>' for sign, meaning in keys.items()]
    return Markup(f'<p class="legend">{"".join(spans)}</p>')


def _frame(index: int, found: dict[str, Any], is_titled: bool) -> str:
    buttons = "".join(
        f'<button data-do="{name}" aria-label="{meaning}" title="{meaning}">{sign}</button>'
        for name, sign, meaning in BUTTONS
    )
    title = text(found["title"])
    heading = f"<h2>{title}</h2>" if is_titled else ""
    return (
        f'<figure class="picture" data-picture="{index}">{heading}'
        f'<svg role="tree" aria-label="graph of {title}; arrow keys move, Enter shows details" tabindex="-1">{_defs(index)}</svg>'
        '<canvas class="map" aria-hidden="true"></canvas>'
        f'<div class="tools" role="group" aria-label="view">{buttons}</div></figure>'
    )


def _defs(index: int) -> str:
    """Arrowheads in the colors of their lines."""
    head = (
        '<marker id="{0}{1}" class="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
    )
    return f"<defs>{''.join(head.format(kind, index) for kind in ('head', 'copy-head'))}</defs>"


def open_at_first(root: Part) -> list[Part]:
    """The groups to open, outer ones first, within the limit on boxes. Repeats are opened in small graphs only."""
    found = [root]
    shown = len(root.parts)
    is_small = len(root.nodes) <= OPEN_AT_FIRST
    for group in found:
        for part in group.parts:
            if part.parts and (is_small or not part.is_repeat) and shown + len(part.parts) - 1 <= OPEN_AT_FIRST:
                shown += len(part.parts) - 1
                found.append(part)
    return found[1:]


class _SceneWriter:
    """The parts and layouts of a scene as JSON values. The parts of a group have consecutive numbers."""

    def __init__(self, found: Scene, details: GraphDetails) -> None:
        self.scene, self.details = found, details
        self.ids: dict[Part, int] = {found.root: 0}
        self.parts: list[dict[str, Any]] = []
        self.layouts: list[dict[str, Any]] = []
        self.layout_ids: dict[Layout, int] = {}
        self.label_ids: dict[tuple[str, tuple[str, ...]], int] = {}
        order = [found.root]
        for part in order:
            first = len(order)
            self.ids.update((inner, first + i) for i, inner in enumerate(part.parts))
            order += part.parts
            self.parts.append(dict(self._part(part, first)))

    def _part(self, part: Part, first: int) -> Iterator[tuple[str, Any]]:
        label = part.box.kind, part.box.lines
        yield "label", self.label_ids.setdefault(label, len(self.label_ids))
        if part.partition is not None:
            yield "partition", part.partition
        if part.value is not None:
            yield "value", self.details.value(part.value)
        elif part.node is not None:
            yield "node", self.details.node_ids[part.node]
        if inside := self.scene.insides.get(part):
            yield from self._inside(part, inside, first)

    def _inside(self, part: Part, inside: Inside, first: int) -> Iterator[tuple[str, Any]]:
        yield "first", first
        yield "count", len(part.parts)
        yield "nodes", len(part.nodes)
        yield "least", round(text_width(part.box.lines[0], FONT) + 2 * MARGIN)
        yield "layout", self._layout(inside.layout)
        yield "values", list(map(self.details.value, inside.values))
        yield "in", [round(at, 4) for at in inside.ports_in]
        yield "out", [round(at, 4) for at in inside.ports_out]
        if inside.in_partition:
            yield "taken", True

    def _layout(self, layout: Layout) -> int:
        if layout not in self.layout_ids:
            self.layout_ids[layout] = len(self.layouts)
            places = zip(layout.corners, layout.sizes, strict=True)
            boxes = [(*map(_r, corner), *map(_r, size)) for corner, size in places]
            routes = list(map(_route, layout.routes))
            self.layouts.append({"w": _r(layout.width), "h": _r(layout.height), "boxes": boxes, "routes": routes})
        return self.layout_ids[layout]


def _route(r: Route) -> tuple[object, ...]:
    points = [_r(c) for point in r.points for c in point]
    return r.net, r.source, r.target, round(r.leaves_at, 4), round(r.arrives_at, 4), points


def _r(value: float) -> float:
    return round(value, 1)
