"""Pictures of boxes within frames, as SVG and in the DOT language of Graphviz. Lines join boxes and frames of one frame."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ortconv.report.labels import FONT, text_width
from ortconv.report.layout import Layout, Net, layered
from ortconv.report.outline import INPUT, OUTPUT, Box
from ortconv.report.page import clean
from ortconv.report.svg import EDGE, box_svg, line_svg, num, svg_file

MARGIN = 16.0
LABEL = 26.0
SHAPES = {INPUT: "ellipse", OUTPUT: "ellipse"}


@dataclass(frozen=True, slots=True)
class Line(Net):
    """A line from an item of a frame to later ones, by index. Without a title it is not drawn and only keeps their order."""

    title: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Items in topological order with a label; all lines go from earlier items to later ones."""

    label: str
    kind: str
    items: tuple[Box | Frame, ...]
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class _Arranged:
    """A frame with its layout, and the frames inside it by item index."""

    frame: Frame
    layout: Layout
    inner: Mapping[int, _Arranged]

    @property
    def size(self) -> tuple[float, float]:
        width = max(self.layout.width, text_width(self.frame.label, FONT)) + 2 * MARGIN
        return width, self.layout.height + LABEL + 2 * MARGIN


def svg(frame: Frame, *, dark: bool = False) -> str:
    arranged = _arranged(frame)
    width, height = arranged.size
    return svg_file(width + 2 * EDGE, height + 2 * EDGE, [*_framed(arranged, EDGE, EDGE, arranged.size), ""], dark=dark)


def _arranged(frame: Frame) -> _Arranged:
    inner = {i: _arranged(item) for i, item in enumerate(frame.items) if isinstance(item, Frame)}
    sizes = [inner[i].size if isinstance(item, Frame) else item.size for i, item in enumerate(frame.items)]
    ends = [[i for i, item in enumerate(frame.items) if item.kind == kind] for kind in (INPUT, OUTPUT)]
    return _Arranged(frame, layered(sizes, frame.lines, *ends), inner)


def _framed(arranged: _Arranged, x: float, y: float, size: tuple[float, float]) -> Iterator[str]:
    frame, layout, (width, height) = arranged.frame, arranged.layout, size
    place = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
    yield f'<rect class="area {frame.kind}" {place} rx="10"/>'
    label = escape(clean(frame.label))
    start = f'x="{num(x + MARGIN)}" y="{num(y + 19)}" style="text-anchor:start"'
    yield f'<text class="label {frame.kind}" {start}>{label}</text>'
    left, top = x + (width - layout.width) / 2, y + LABEL + MARGIN
    for route in layout.routes:
        if title := frame.lines[route.net].title:
            yield line_svg([(u + left, v + top) for u, v in layout.line(route)], title)
    for i, (item, (u, v), (w, h)) in enumerate(zip(frame.items, layout.corners, layout.sizes, strict=True)):
        if isinstance(item, Frame):
            yield from _framed(arranged.inner[i], u + left, v + top, (w, h))
        else:
            yield box_svg(item, u + left, v + top, w, h, is_node=False, in_partition=False)


def dot(frame: Frame) -> str:
    """The picture in the DOT language: frames are clusters."""
    return "\n".join(["digraph {", "  compound=true; node [shape=box]", *_cluster(frame, "n", "  "), "}\n"])


def _cluster(frame: Frame, name: str, indent: str) -> Iterator[str]:
    """The lines of a frame. Its items are NAME_0, NAME_1 and so on."""
    yield f"{indent}subgraph cluster_{name} {{"
    yield f"{indent}  label={_quoted(frame.label)}"
    for i, item in enumerate(frame.items):
        if isinstance(item, Frame):
            yield from _cluster(item, f"{name}_{i}", indent + "  ")
        else:
            shape = f", shape={SHAPES[item.kind]}" if item.kind in SHAPES else ""
            label, title = _quoted("\n".join(item.lines)), _quoted(item.title)
            yield f"{indent}  {name}_{i} [label={label}, tooltip={title}{shape}]"
    for line in frame.lines:
        for target in line.targets:
            tail, head = _end(frame, name, line.source), _end(frame, name, target)
            marks = [f"ltail=cluster_{name}_{line.source}"] if isinstance(frame.items[line.source], Frame) else []
            marks += [f"lhead=cluster_{name}_{target}"] if isinstance(frame.items[target], Frame) else []
            marks.append(f"tooltip={_quoted(line.title)}" if line.title else "style=invis")
            yield f"{indent}  {tail} -> {head} [{', '.join(marks)}]"
    yield f"{indent}}}"


def _end(frame: Frame, name: str, index: int) -> str:
    """The DOT node at the end of a line: for a frame, the first box in it."""
    item: Box | Frame = frame.items[index]
    name = f"{name}_{index}"
    while isinstance(item, Frame):
        item, name = item.items[0], f"{name}_0"
    return name


def _quoted(text: str) -> str:
    """A text as a DOT string. Backslashes are doubled, since DOT expands escapes such as the graph's name."""
    escaped = re.sub(r'([\\"])', r"\\\1", clean(text)).replace("\n", "\\n")
    return f'"{escaped}"'


def in_order(items: Sequence[Box | Frame]) -> tuple[Line, ...]:
    """Invisible lines that only place items below each other."""
    return tuple(Line(i, (i + 1,)) for i in range(len(items) - 1))
