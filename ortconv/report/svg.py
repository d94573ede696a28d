"""A picture of a graph and its partitions as one SVG file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ortconv.report.labels import FONT, SMALL, text_width
from ortconv.report.layout import Layout, Point
from ortconv.report.outline import ACCELERATOR, CPU, INPUT, MIXED, OUTPUT, PORT, Box, Part
from ortconv.report.page import clean
from ortconv.report.scene import GUTTER, Inside, Scene, framed, headline

OPENED_LIMIT = 6000
"""Groups with more nodes stay closed, since nobody could read them."""

STYLE = """
text { font: 12px Helvetica, Arial, sans-serif; fill: #17191e; text-anchor: middle }
.small { font-size: 10px; fill: #565d6b }
.op { font-weight: bold }
.box { stroke-width: 1.2 }
.accelerator { fill: #d3f0e6; stroke: #08705c }
.cpu { fill: #fce3d0; stroke: #a8430a; stroke-dasharray: 5 2 }
.mixed { fill: #eceef3; stroke: #5b6474; stroke-dasharray: 2 2 }
.plain { fill: #eceef3; stroke: #5b6474 }
.input, .output { fill: #fff; stroke: #5b6474 }
.port { fill: #7a3fb0; stroke: none }
.cpu-port { fill: #8a93a3; stroke: none }
.area { stroke-width: 1 }
.area.accelerator { fill: #f0faf6; stroke: #6fb5a4 }
.area.cpu { fill: #fdf5ee; stroke: #d8a27c }
.area.mixed, .area.plain { fill: #f8f9fb; stroke: #b9c0cd }
.label { font-weight: bold; stroke: none }
.label.accelerator { fill: #08705c; stroke: none }
.label.cpu { fill: #a8430a; stroke: none }
.label.mixed, .label.plain { fill: #565d6b; stroke: none }
.line { fill: none; stroke: #7c8494; stroke-width: 1.2 }
.line.copy { stroke: #7a3fb0; stroke-width: 1.9 }
.head { fill: #7c8494 }
.copy-head { fill: #7a3fb0 }
.paper { fill: #fff }
"""

DARK = """
text { fill: #e7e9ee }
.small { fill: #a6adbb }
.accelerator { fill: #12443a; stroke: #56d3b4 }
.cpu { fill: #512c10; stroke: #f5ab72 }
.mixed, .plain { fill: #2b303a; stroke: #9aa3b4 }
.input, .output { fill: #13151a; stroke: #9aa3b4 }
.port { fill: #c79bf2 }
.line.copy { stroke: #c79bf2 }
.copy-head { fill: #c79bf2 }
.cpu-port { fill: #9aa3b4 }
.area.accelerator { fill: #14231f; stroke: #2f7a68 }
.area.cpu { fill: #241c15; stroke: #8a5a36 }
.area.mixed, .area.plain { fill: #1b1e25; stroke: #4a5162 }
.label.accelerator { fill: #56d3b4; stroke: none }
.label.cpu { fill: #f5ab72; stroke: none }
.label.mixed, .label.plain { fill: #a6adbb; stroke: none }
.paper { fill: #13151a }
"""
"""Rules after STYLE for a dark background."""

_MARKER = (
    '<marker id="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse"'
    ' orient="auto"><path class="{0}" d="M0 0L8 4L0 8z"/></marker>'
)
DEFS = f"<defs>{_MARKER.format('head')}{_MARKER.format('copy-head')}</defs>"

EDGE = 20.0
COPY = "copy"
LABEL_EVERY = 1200.0
"""A tall area repeats its label."""
LEGEND = (
    (ACCELERATOR, "runs on the accelerator, kept as it is"),
    (CPU, "left to the CPU, open to its optimizations"),
    (INPUT, "input or output of the model"),
    (COPY, "tensor copied between CPU and accelerator"),
)


def drawing(scene: Scene, *, dark: bool = False) -> str:
    """The whole picture with all groups open, in colors for a light or a dark page."""
    legend, legend_width, top = _legend(scene)
    layouts: dict[Part, Layout] = {}
    layout = _opened(scene, scene.root, layouts)
    width = max(layout.width, legend_width) + 2 * EDGE
    height = layout.height + top + 2 * EDGE
    left = (width - layout.width) / 2
    place = f'<g transform="translate({num(left)} {num(top + EDGE)})">'
    return svg_file(width, height, [legend, place, *_inside(scene, scene.root, layouts, 0, 0), "</g>"], dark=dark)


def svg_file(width: float, height: float, parts: Iterable[str], *, dark: bool) -> str:
    """A picture as a file, in colors for a light or a dark page."""
    size = f'width="{num(width)}" height="{num(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {num(width)} {num(height)}">',
        f"<style>{STYLE}{DARK if dark else ''}</style>{DEFS}",
        f'<rect class="paper" {size}/>',
        *parts,
    ]
    return "\n".join(lines) + "</svg>\n"


def _opened(scene: Scene, part: Part, layouts: dict[Part, Layout]) -> Layout:
    """The layout of a group with all its groups open. It and its groups' layouts are added to `layouts`."""
    inside = scene.insides[part]
    sizes = [box.size for box in inside.boxes]
    for i, inner in enumerate(inside.parts, len(inside.ports_in)):
        if inner.parts and inner.node is None and len(inner.nodes) <= OPENED_LIMIT:
            sizes[i] = framed(_opened(scene, inner, layouts), inner.box.lines[0])
    layouts[part] = inside.arranged(sizes, scene.known)
    return layouts[part]


def _inside(scene: Scene, part: Part, layouts: dict[Part, Layout], left: float, top: float) -> Iterator[str]:
    """The lines and boxes of an open group, and of its groups."""
    inside, layout = scene.insides[part], layouts[part]
    for route in layout.routes:
        line = [(x + left, y + top) for x, y in layout.line(route)]
        copy, value = inside.is_copy(route.source, route.target), inside.values[route.net]
        head = inside.part(route.target) not in layouts
        yield line_svg(line, f"{value.name}: {value.type}", copy=copy, head=head)
    for i, (box, (x, y), (w, h)) in enumerate(zip(inside.boxes, layout.corners, layout.sizes, strict=True)):
        inner = inside.part(i)
        if inner is None or inner not in layouts:
            is_node = inner is not None and inner.node is not None
            yield box_svg(box, x + left, y + top, w, h, is_node=is_node, in_partition=part.partition is not None)
        else:
            yield f'<g transform="translate({num(x + left)} {num(y + top)})">'
            yield from _area(scene, inner, layouts, w, h)
            yield "</g>"


def _area(scene: Scene, part: Part, layouts: dict[Part, Layout], width: float, height: float) -> Iterator[str]:
    """An open group at its upper left corner."""
    kind, inside, layout = part.box.kind, scene.insides[part], layouts[part]
    yield f'<rect class="area {kind}" width="{num(width)}" height="{num(height)}" rx="10"/>'
    labels = max(1, int(height / LABEL_EVERY))
    for i in range(labels):
        place = f'transform="translate(17 {num(height * (i + 0.5) / labels)}) rotate(-90)"'
        yield f'<text class="label {kind}" {place}>{escape(clean(part.box.lines[0]))}</text>'
    left, top = GUTTER, (height - layout.height) / 2
    for start, end in _stubs(inside, layout, left, top, width, height):
        yield line_svg([start, end], "", copy=part.partition is not None, head=False)
    yield from _inside(scene, part, layouts, left, top)


def _stubs(
    inside: Inside, layout: Layout, left: float, top: float, width: float, height: float
) -> Iterator[tuple[Point, Point]]:
    """The lines between the border of an open group and its ports."""
    for i, share in enumerate(inside.ports_in):
        (x, y), (w, _) = layout.corners[i], layout.sizes[i]
        yield (share * width, 0), (x + left + w / 2, y + top)
    for i, share in enumerate(inside.ports_out, len(inside.boxes) - len(inside.ports_out)):
        (x, y), (w, h) = layout.corners[i], layout.sizes[i]
        yield (x + left + w / 2, y + top + h), (share * width, height)


def _legend(scene: Scene) -> tuple[str, float, float]:
    head = "" if scene.partitioning is None else headline(scene.partitioning)
    start = 'style="text-anchor:start"'
    parts = [f'<text class="op" x="{num(EDGE)}" y="{num(EDGE + 10)}" {start}>{escape(head)}</text>']
    widest = text_width(head, FONT)
    y = EDGE + 24.0
    for kind, text in LEGEND:
        place = f'x="{num(EDGE)}" y="{num(y)}" width="22" height="13" rx="{_radius(kind)}"'
        line = f'<path class="line copy" d="M{num(EDGE)} {num(y + 6)}h22"/>'
        parts.append(line if kind == COPY else f'<rect class="box {kind}" {place}/>')
        parts.append(f'<text class="small" x="{num(EDGE + 30)}" y="{num(y + 10)}" {start}>{text}</text>')
        widest = max(widest, 30 + text_width(text, SMALL))
        y += 19
    return "".join(parts), widest, y


def _radius(kind: str) -> str:
    return {ACCELERATOR: "8", INPUT: "6.5", OUTPUT: "6.5", MIXED: "3"}.get(kind, "0")


def box_svg(box: Box, x: float, y: float, width: float, height: float, *, is_node: bool, in_partition: bool) -> str:
    title = f"<title>{escape(clean(box.title))}</title>"
    if box.kind == PORT:
        kind = "port" if in_partition else "cpu-port"
        return f'<circle class="{kind}" cx="{num(x + width / 2)}" cy="{num(y + height / 2)}" r="{num(width / 2)}">{title}</circle>'
    middle = x + width / 2
    radius = num(height / 2) if box.kind in (INPUT, OUTPUT) else _radius(box.kind)
    mark = ' data-node=""' if is_node else ""
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


def line_svg(points: Sequence[Point], title: str, *, copy: bool = False, head: bool = True) -> str:
    """A line, with an arrowhead in its own color where it ends at a box."""
    named = f"<title>{escape(clean(title))}</title>" if title else ""
    marker = "copy-head" if copy else "head"
    end = f' marker-end="url(#{marker})"' if head else ""
    return f'<path class="line{" copy" if copy else ""}" d="{path(points)}"{end}>{named}</path>'


def num(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
