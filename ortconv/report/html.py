"""A page to explore a graph and its partitions: one file, no network."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from ortconv.report.page import clean
from ortconv.report.partitions import refusals
from ortconv.report.scene import Scene, headline
from ortconv.report.svg import DEFS, LEGEND, STYLE, box_svg, is_copy, line_svg, opened, tensor

OPEN_AT_FIRST = 60
"""Models of at most this many nodes are shown with all groups open."""

HELP = """Click a group to open or close it, a node for its details.
Drag to move, turn the wheel to zoom.
Press Enter in the search for the next node that has all the words."""

PAGE_STYLE = """
html, body { height: 100%; margin: 0; font: 14px/1.45 system-ui, Helvetica, Arial, sans-serif; color: #1b1b1b }
body { display: grid; grid-template: auto 1fr / 1fr 24em }
header { grid-column: 1 / 3; display: flex; flex-wrap: wrap; gap: .4em 1em; align-items: center; padding: .5em 1em }
header, aside { border: 0 solid #ccc; border-bottom-width: 1px }
header h1 { font-size: 1.1em; margin: 0 }
#picture { width: 100%; height: 100%; min-height: 0; display: block; cursor: grab; background: #fff; touch-action: none }
aside { overflow: auto; padding: 0 1em 1em; border-left-width: 1px; overflow-wrap: anywhere }
aside h2 { font-size: 1em; margin: 1em 0 .3em }
#details { white-space: pre-wrap; margin: 0; font: inherit; font-size: .93em }
table { border-collapse: collapse; width: 100%; font-size: .93em }
td { vertical-align: top; padding: .25em .4em .25em 0; border-top: 1px solid #ddd }
td:not(:last-child) { overflow-wrap: normal }
td small { color: #555; display: block }
tr[data-find] { cursor: pointer } tr[data-find]:hover { background: #f3f3f6 }
.key { display: inline-block; width: 1.2em; height: .8em; border: 1px solid; margin-right: .4em }
.key.accelerator { background: #f7c9c5; border-color: #b3261e; border-radius: .3em }
.key.cpu { background: #cfead3; border: 1px dashed #2f7d3b }
.key.input { background: #eeeef3; border-color: #777; border-radius: .4em }
.key.copy { height: 0; border: 0; border-top: 2px solid #b45309; vertical-align: middle }
[data-g] .inside { display: none } [data-g].open .inside { display: inline } [data-g].open .outside { display: none }
[data-g] .node, .area { cursor: pointer }
.match > rect { stroke: #1a56db; stroke-width: 3; stroke-dasharray: none } .chosen > rect { stroke: #000; stroke-width: 3 }
"""


def page(scene: Scene, *, title: str) -> str:
    """The page with everything in it: picture, script, style, reasons."""
    keys = [f'<span><span class="key {kind}"></span>{escape(text)}</span>' for kind, text in LEGEND]
    keys.append('<span><span class="key copy"></span>tensor copied between CPU and accelerator</span>')
    script = Path(__file__).with_name("explore.js").read_text(encoding="utf-8")
    name = escape(clean(title))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{name}: partitions</title><style>{PAGE_STYLE}{STYLE}</style></head>
<body><header><h1>{name}</h1><span>{escape(headline(scene.partitioning))}</span>
<input id="search" type="search" placeholder="operator, name or rule" aria-label="search"><span id="found"></span>
<button id="open">open all</button><button id="close">close all</button><button id="fit">whole picture</button>
{"".join(keys)}</header>
<svg id="picture" xmlns="http://www.w3.org/2000/svg">{DEFS}
{_groups(scene)}
{_lines(scene)}
</svg>
<aside><h2>Details</h2><pre id="details">{HELP}</pre>{_reasons(scene)}</aside>
<script type="application/json" id="scene">{json.dumps(_geometry(scene), separators=(",", ":"))}</script>
<script>{script}</script></body></html>
"""


def _groups(scene: Scene) -> str:
    parts = []
    for i, (group, (w, h)) in enumerate(zip(scene.groups, scene.closed.sizes, strict=True)):
        outside = box_svg(group.box, 0, 0, w, h)
        inside = "" if group.inner is None else f'<g class="inside">{opened(group, *group.opened_size)}</g>'
        parts.append(f'<g data-g="{i}"><g class="outside">{outside}</g>{inside}</g>')
    return "\n".join(parts)


def _lines(scene: Scene) -> str:
    layout = scene.closed
    drawn = [
        line_svg(layout.line(r), tensor(scene, r.net), copy=is_copy(scene, r.source, r.target), index=i)
        for i, r in enumerate(layout.routes)
    ]
    return "\n".join(drawn)


def _geometry(scene: Scene) -> dict[str, Any]:
    """What the script computes with: numbers only, so that nothing in it can end the element that it stands in."""
    layout = scene.closed
    groups = []
    for group, (x, y), (w, h) in zip(scene.groups, layout.corners, layout.sizes, strict=True):
        width, height = group.opened_size if group.inner is not None else (0, 0)
        groups.append({"x": _r(x), "y": _r(y), "w": _r(w), "h": _r(h), "W": _r(width), "H": _r(height)})
    routes = [
        {
            "source": r.source, "target": r.target, "leaves": round(r.leaves_at, 4), "arrives": round(r.arrives_at, 4),
            "points": [(_r(x), _r(y)) for x, y in r.points],
        }
        for r in layout.routes
    ]  # fmt: skip
    small = scene.partitioning.total <= OPEN_AT_FIRST
    return {
        "groups": groups,
        "routes": routes,
        "open": [i for i, g in enumerate(scene.groups) if small and g.inner is not None],
    }


def _r(value: float) -> float:
    return round(value, 1)


def _reasons(scene: Scene) -> str:
    rows = []
    for row in refusals(scene.partitioning):
        advice = "".join(f"<small>{escape(clean(a))}</small>" for a in row.advice[:3])
        op, message = escape(clean(row.op)), escape(clean(row.message))
        rows.append(
            f'<tr data-find="{escape(clean(row.op.rpartition(":")[2]))} {row.rule}:"><td>{row.nodes}</td><td>{op}</td>'
            f"<td>{row.rule}<small>{message}</small>{advice}</td></tr>"
        )
    return f"<h2>Why nodes stay on the CPU</h2><table>{''.join(rows)}</table>" if rows else ""
