"""The positions of an outline's boxes: one layout for the inside of each group, with its inner groups closed or all open.

Lines enter and leave a group through ports, one for each tensor, so that a port of a partition is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ortconv.ir.graph import Node, Value
from ortconv.partition import Partitioning
from ortconv.partition.cost import size
from ortconv.report.labels import FONT, byte_text, text_width
from ortconv.report.layout import Layout, Net, between, layered
from ortconv.report.outline import ACCELERATOR, PORT, Box, Part, reads
from ortconv.wording import counted

GUTTER = 26.0
PAD = 14.0
MARGIN = 36.0


@dataclass(frozen=True, slots=True)
class Inside:
    """The inside of a group: ports in, parts, ports out, numbered in this order, and lines between them.

    `values` has the value of each net. `ports_in` and `ports_out` are where the lines of the ports meet the border, as shares of
    its width.
    """

    boxes: tuple[Box, ...]
    parts: tuple[Part, ...]
    nets: tuple[Net, ...]
    values: tuple[Value, ...]
    ports_in: tuple[float, ...]
    ports_out: tuple[float, ...]
    layout: Layout
    in_partition: bool
    """Whether the whole group runs on the accelerator, so that no tensor is copied inside."""

    def part(self, i: int) -> Part | None:
        """The part that a box shows; None for a port."""
        at = i - len(self.ports_in)
        return self.parts[at] if 0 <= at < len(self.parts) else None

    def is_copy(self, source: int, target: int) -> bool:
        """Whether a tensor is copied between CPU and accelerator on the line between two boxes."""
        return not self.in_partition and ACCELERATOR in (self.boxes[source].kind, self.boxes[target].kind)

    def arranged(self, sizes: Sequence[tuple[float, float]], known: Known) -> Layout:
        """The layout for other box sizes."""
        return _layout(sizes, self.nets, len(self.ports_in), len(self.ports_out), known)


Known = dict[object, Layout]
"""Layouts by their inputs: repeated blocks share one."""


@dataclass(frozen=True)
class Scene:
    """An outline with the inside of each of its groups. That of the root has no ports."""

    root: Part
    insides: dict[Part, Inside]
    known: Known
    partitioning: Partitioning | None = None


def scene(root: Part, partitioning: Partitioning | None = None) -> Scene:
    """Arrange the inside of every group of an outline, with inner groups closed."""
    known: Known = {}
    insides: dict[Part, Inside] = {}
    waiting: list[tuple[Part, Ports, Ports, bool]] = [(root, [], [], False)]
    while waiting:
        part, ins, outs, taken = waiting.pop()
        taken = taken or part.partition is not None
        insides[part] = inside = _inside(part, ins, outs, taken, known)
        arriving, leaving = _ends(inside)
        for i, inner in enumerate(inside.parts, len(ins)):
            if inner.parts:
                waiting.append((inner, *_ports(inner, arriving.get(i, []), leaving.get(i, [])), taken))
    return Scene(root, insides, known, partitioning)


Ports = list[tuple[float, Value]]
"""Where lines meet the border of a closed group, from the left, and their values."""


def _ports(part: Part, ins: Ports, outs: Ports) -> tuple[Ports, Ports]:
    """The lines that continue inside a group. For a node with subgraphs, those that its subgraphs read."""
    if part.node is None:
        return ins, outs
    read = {v for inner in part.parts for n in inner.nodes for v in reads(n)}
    return [(at, v) for at, v in ins if v in read], []


def _inside(part: Part, ins: Ports, outs: Ports, in_partition: bool, known: Known) -> Inside:
    values_in, values_out = [v for _, v in ins], [v for _, v in outs]
    maker: dict[Value, int] = {v: p for p, v in enumerate(values_in)}
    read: list[tuple[int, Value]] = []
    for p, inner in enumerate(part.parts, len(ins)):
        for v in _made_by(inner):
            maker.setdefault(v, p)
        read += [(p, v) for v in _read_by(inner)]
    read += enumerate(values_out, len(ins) + len(part.parts))
    nets, values = between(maker, read)
    boxes = (*map(port, values_in), *(p.box for p in part.parts), *map(port, values_out))
    layout = _layout([b.size for b in boxes], nets, len(ins), len(outs), known)
    shares = tuple(at for at, _ in ins), tuple(at for at, _ in outs)
    return Inside(boxes, part.parts, tuple(nets), tuple(values), *shares, layout, in_partition)


def _made_by(part: Part) -> Iterable[Value]:
    if not part.nodes and part.value is not None:
        return (part.value,)
    return (v for n in part.nodes for v in n.present_outputs)


def _read_by(part: Part) -> Iterable[Value]:
    if not part.nodes and part.value is not None:
        return (part.value,)
    return dict.fromkeys(v for n in part.nodes for v in reads(n))


def _layout(sizes: Sequence[tuple[float, float]], nets: Sequence[Net], first: int, last: int, known: Known) -> Layout:
    key = (tuple(sizes), tuple(nets), first, last)
    if key not in known:
        known[key] = layered(sizes, nets, range(first), range(len(sizes) - last, len(sizes)))
    return known[key]


def _ends(inside: Inside) -> tuple[dict[int, Ports], dict[int, Ports]]:
    """For each box, the ends of lines on its upper and its lower border, from the left."""
    arriving: dict[int, dict[tuple[float, int], Value]] = {}
    leaving: dict[int, dict[tuple[float, int], Value]] = {}
    for r in inside.layout.routes:
        arriving.setdefault(r.target, {})[r.arrives_at, r.net] = inside.values[r.net]
        leaving.setdefault(r.source, {})[r.leaves_at, r.net] = inside.values[r.net]
    return _from_the_left(arriving), _from_the_left(leaving)


def _from_the_left(ends: Mapping[int, Mapping[tuple[float, int], Value]]) -> dict[int, Ports]:
    return {i: [(at, found[at, net]) for at, net in sorted(found)] for i, found in ends.items()}


def port(value: Value) -> Box:
    """The position at which a value enters or leaves a group."""
    return Box(PORT, (), f"{value.name}: {value.type}, {byte_text(size(value))}")


def framed(layout: Layout, label: str) -> tuple[float, float]:
    """The size of an open group: its layout, a gutter on the left for the label, and margins."""
    height = layout.height + 2 * MARGIN
    return layout.width + GUTTER + PAD, max(height, text_width(label, FONT) + 2 * MARGIN)


def all_nodes(found: Scene) -> list[Node]:
    """The nodes of a scene: those of the graph in its order, then those of subgraphs."""
    main = list(found.root.nodes)
    return [*main, *(inner for n in main for sub in n.subgraphs for inner in sub.walk())]


def headline(p: Partitioning) -> str:
    """Target, partitions and coverage in one line."""
    count = counted(len(p.partitions), "partition")
    target = p.target.label
    return f"{target}: {count}, {p.taken} of {p.total} nodes ({p.coverage:.1f} %)"
