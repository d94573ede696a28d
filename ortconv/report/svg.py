"""A picture of a graph and its partitions as one SVG file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ortconv.report.layout import Point
from ortconv.report.page import clean
from ortconv.report.scene import (
    ACCELERATOR,
    CPU,
    FONT,
    GUTTER,
    INPUT,
    OUTPUT,
    PORT,
    SMALL,
    Box,
    InnerPicture,
    PictureGroup,
    Scene,
    headline,
    text_width,
)  # fmt: skip

STYLE = """
text { font-family: Helvetica, Arial, "Liberation Sans", sans-serif; font-size: 12px; fill: #1b1b1b; text-anchor: middle }
.small { font-size: 10px; fill: #555 }
.op { font-weight: bold }
.box { stroke-width: 1.2 }
.accelerator { fill: #f7c9c5; stroke: #b3261e }
.cpu { fill: #cfead3; stroke: #2f7d3b; stroke-dasharray: 5 2 }
.input, .output { fill: #eeeef3; stroke: #777 }
.port { fill: #b45309; stroke: none }
.cpu-port { fill: #888; stroke: none }
.area { stroke-width: 1 }
.area.accelerator { fill: #fdebea; stroke: #d98f8a }
.area.cpu { fill: #eef8ef; stroke: #93c39b }
.label { font-weight: bold; stroke: none }
.label.accelerator { fill: #7a1a14; stroke: none }
.label.cpu { fill: #1f5a29; stroke: none }
.line { fill: none; stroke: #7c8494; stroke-width: 1.2 }
.line.copy { stroke: #b45309; stroke-width: 1.9 }
.head { fill: #7c8494 }
.paper { fill: #fff }
"""

DARK = """
text { fill: #e6e6ea }
.small { fill: #b0b0ba }
.accelerator { fill: #5c2723; stroke: #e58a82 }
.cpu { fill: #1f4527; stroke: #76b784 }
.input, .output { fill: #33343d; stroke: #8d8f9b }
.port { fill: #f0a04b }
.line.copy { stroke: #f0a04b }
.cpu-port { fill: #8d8f9b }
.area.accelerator { fill: #2c1917; stroke: #8f4a44 }
.area.cpu { fill: #14231a; stroke: #3f6b4a }
.label.accelerator { fill: #f3b5af; stroke: none }
.label.cpu { fill: #a9d7b3; stroke: none }
.paper { fill: #15161a }
"""
"""Rules behind STYLE that draw the same picture on a dark ground."""

DEFS = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" markerUnits="userSpaceOnUse"'
    ' orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
)

EDGE = 20.0
LABEL_EVERY = 1200.0
"""A tall area repeats its label."""
LEGEND = (
    (ACCELERATOR, "runs on the accelerator, kept as it is"),
    (CPU, "left to the CPU, open to its optimizations"),
    (INPUT, "input or output of the model"),
)


def drawing(scene: Scene, *, dark: bool = False) -> str:
    """The whole picture with all groups opened, in colors for a light or a dark page."""
    legend, legend_width, top = _legend(scene)
    layout = scene.opened
    width = max(layout.width, legend_width) + 2 * EDGE
    height = layout.height + top + 2 * EDGE
    left = (width - layout.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{num(width)}" height="{num(height)}" '
        f'viewBox="0 0 {num(width)} {num(height)}">',
        f"<style>{STYLE}{DARK if dark else ''}</style>{DEFS}",
        f'<rect class="paper" width="{num(width)}" height="{num(height)}"/>',
        legend,
        f'<g transform="translate({num(left)} {num(top + EDGE)})">',
    ]
    for group, (x, y), (w, h) in zip(scene.groups, layout.corners, layout.sizes, strict=True):
        inside = opened(group, w, h) if group.inner is not None else box_svg(group.box, 0, 0, w, h)
        parts.append(f'<g transform="translate({num(x)} {num(y)})">{inside}</g>')
    for route in layout.routes:
        title = tensor(scene, route.net)
        ends = scene.groups[route.target].inner is None
        parts.append(line_svg(layout.line(route), title, copy=is_copy(scene, route.source, route.target), head=ends))
    parts.append("</g></svg>\n")
    return "\n".join(parts)


def is_copy(scene: Scene, source: int, target: int) -> bool:
    """True for a line on which a tensor is copied between CPU and accelerator."""
    return ACCELERATOR in (scene.groups[source].box.kind, scene.groups[target].box.kind)


def tensor(scene: Scene, net: int) -> str:
    """The name and type of what a line carries."""
    value = scene.values[net]
    return f"{value.name}: {value.type}"


def _legend(scene: Scene) -> tuple[str, float, float]:
    head = headline(scene.partitioning)
    start = 'style="text-anchor:start"'
    parts = [f'<text class="op" x="{num(EDGE)}" y="{num(EDGE + 10)}" {start}>{escape(head)}</text>']
    widest = text_width(head, FONT)
    y = EDGE + 24.0
    for kind, text in LEGEND:
        parts.append(
            f'<rect class="box {kind}" x="{num(EDGE)}" y="{num(y)}" width="22" height="13" rx="{_radius(kind)}"/>'
        )
        parts.append(f'<text class="small" x="{num(EDGE + 30)}" y="{num(y + 10)}" {start}>{text}</text>')
        widest = max(widest, 30 + text_width(text, SMALL))
        y += 19
    text = "tensor copied between CPU and accelerator"
    parts.append(f'<path class="line copy" d="M{num(EDGE)} {num(y + 6)}h22"/>')
    parts.append(f'<text class="small" x="{num(EDGE + 30)}" y="{num(y + 10)}" {start}>{text}</text>')
    return "".join(parts), max(widest, 30 + text_width(text, SMALL)), y + 19


def _radius(kind: str) -> str:
    return {ACCELERATOR: "8", INPUT: "6.5", OUTPUT: "6.5"}.get(kind, "0")


def opened(group: PictureGroup, width: float, height: float) -> str:
    """The inner picture of a group, from its upper left corner on."""
    inner = group.inner
    assert inner is not None
    kind = group.box.kind
    parts = [f'<rect class="area {kind}" width="{num(width)}" height="{num(height)}" rx="10"/>']
    labels = max(1, int(height / LABEL_EVERY))
    for i in range(labels):
        place = f'transform="translate(17 {num(height * (i + 0.5) / labels)}) rotate(-90)"'
        parts.append(f'<text class="label {kind}" {place}>{escape(clean(group.label))}</text>')
    left, top = GUTTER, (height - inner.layout.height) / 2
    lines = [
        line_svg([(x + left, y + top) for x, y in inner.layout.line(r)], _title(inner, r.net))
        for r in inner.layout.routes
    ]
    parts += lines
    parts += _stubs(inner, left, top, width, height, copy=kind == ACCELERATOR)
    for box, (x, y), (w, h) in zip(inner.boxes, inner.layout.corners, inner.layout.sizes, strict=True):
        parts.append(box_svg(box, x + left, y + top, w, h, kind))
    return "".join(parts)


def _title(inner: InnerPicture, net: int) -> str:
    return f"{inner.values[net].name}: {inner.values[net].type}"


def _stubs(inner: InnerPicture, left: float, top: float, width: float, height: float, *, copy: bool) -> Iterable[str]:
    """The lines between the border and the ports."""
    for i, share in enumerate(inner.ports_in):
        (x, y), (w, _) = inner.layout.corners[i], inner.layout.sizes[i]
        yield line_svg([(share * width, 0), (x + left + w / 2, y + top)], "", copy=copy, head=False)
    first = len(inner.boxes) - len(inner.ports_out)
    for i, share in enumerate(inner.ports_out, first):
        (x, y), (w, h) = inner.layout.corners[i], inner.layout.sizes[i]
        yield line_svg([(x + left + w / 2, y + top + h), (share * width, height)], "", copy=copy, head=False)


def box_svg(box: Box, x: float, y: float, width: float, height: float, area: str = "") -> str:
    """A box with its texts."""
    title = f"<title>{escape(clean(box.title))}</title>"
    if box.kind == PORT:
        kind = "port" if area == ACCELERATOR else "cpu-port"
        return f'<circle class="{kind}" cx="{num(x + width / 2)}" cy="{num(y + height / 2)}" r="{num(width / 2)}">{title}</circle>'
    middle = x + width / 2
    radius = num(height / 2) if box.kind in (INPUT, OUTPUT) else _radius(box.kind)
    mark = "" if box.node is None else ' data-node=""'
    place = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}" rx="{radius}"'
    parts = [f'<g class="node"{mark}>{title}<rect class="box {box.kind}" {place}/>']
    for i, line in enumerate(box.lines):
        style = "small" if i else "op"
        parts.append(f'<text class="{style}" x="{num(middle)}" y="{num(y + 16 + 14 * i)}">{escape(line)}</text>')
    return "".join(parts) + "</g>"


def path(points: Sequence[Point]) -> str:
    """A curve through points, vertical at each of them."""
    (x, y), *rest = points
    parts = [f"M{num(x)} {num(y)}"]
    for u, v in rest:
        if u == x:
            parts.append(f"V{num(v)}" if v != y else "")
        else:
            half = (y + v) / 2
            parts.append(f"C{num(x)} {num(half)} {num(u)} {num(half)} {num(u)} {num(v)}")
        x, y = u, v
    return "".join(parts)


def line_svg(
    points: Sequence[Point], title: str, *, copy: bool = False, head: bool = True, index: int | None = None
) -> str:
    """A line; with an index, one that a script can find."""
    named = f"<title>{escape(clean(title))}</title>" if title else ""
    end = ' marker-end="url(#head)"' if head else ""
    mark = "" if index is None else f' data-r="{index}"'
    return f'<path{mark} class="line{" copy" if copy else ""}" d="{path(points)}"{end}>{named}</path>'


def num(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
