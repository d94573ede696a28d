"""A graph and its partitions, arranged for a picture: what is drawn, in which groups, where.

The outer picture has the model's inputs and outputs, and groups: partitions, and connected nodes of the CPU between them. A
group of several nodes has an inner picture. Lines enter and leave it through ports, one for each tensor, so that a port of a
partition is a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.partition import Partitioning
from ortconv.partition.cost import Estimate, size
from ortconv.report.layout import Layout, Net, layered
from ortconv.report.page import clean

ACCELERATOR, CPU, INPUT, OUTPUT, PORT = "accelerator", "cpu", "input", "output", "port"

INNER_LIMIT = 6000
"""Groups of more nodes have no inner picture: nobody could read it."""

NODE_HEIGHT = 38.0
PORT_SIZE = (8.0, 8.0)
GUTTER = 26.0
PAD = 14.0
MARGIN = 36.0
FONT = 12.0
SMALL = 10.0
LONGEST = 30


@dataclass(frozen=True, slots=True)
class Box:
    """Something drawn with a text: one bold line, small lines below it, a title that shows on hover."""

    kind: str
    lines: tuple[str, ...]
    title: str
    node: Node | None = None

    @property
    def size(self) -> tuple[float, float]:
        if self.kind == PORT:
            return PORT_SIZE
        widths = [text_width(line, SMALL if i else FONT) for i, line in enumerate(self.lines)]
        return max(*widths, 40.0) + 2 * 12, NODE_HEIGHT if len(self.lines) <= 2 else NODE_HEIGHT + 14 * (
            len(self.lines) - 2
        )


@dataclass(frozen=True, slots=True)
class InnerPicture:
    """The inner picture of a group: ports in, nodes, ports out, numbered in this order, and for each net its value."""

    boxes: tuple[Box, ...]
    layout: Layout
    values: tuple[Value, ...]
    ports_in: tuple[float, ...]
    ports_out: tuple[float, ...]
    """Where the lines of the ports meet the border, as shares of its width."""

    @property
    def size(self) -> tuple[float, float]:
        return self.layout.width + GUTTER + PAD, self.layout.height + 2 * MARGIN


@dataclass(frozen=True, slots=True)
class PictureGroup:
    """A box of the outer picture; `label` names an opened group, `inner` is what it shows then."""

    box: Box
    nodes: tuple[Node, ...] = ()
    label: str = ""
    inner: InnerPicture | None = None

    @property
    def opened_size(self) -> tuple[float, float]:
        if self.inner is None:
            return self.box.size
        width, height = self.inner.size
        return width, max(height, text_width(self.label, FONT) + 2 * MARGIN)


@dataclass(frozen=True, slots=True)
class Scene:
    """The outer picture with all groups closed and with all opened; `values` has the value of each net."""

    groups: tuple[PictureGroup, ...]
    nets: tuple[Net, ...]
    values: tuple[Value, ...]
    closed: Layout
    opened: Layout
    partitioning: Partitioning


def scene(partitioning: Partitioning, estimate: Estimate | None = None) -> Scene:
    """Arrange the graph of a partitioning; with an estimate, partitions say what they save."""
    nodes = list(partitioning.verdicts)
    graph = nodes[0].graph if nodes else None
    groups, outer = _groups(partitioning, estimate, graph)
    nets, values = _nets(groups, outer)
    closed = layered([g.box.size for g in groups], nets)
    groups = [_opened(i, g, closed, nets, values, partitioning) for i, g in enumerate(groups)]
    opened = layered([g.opened_size for g in groups], nets)
    return Scene(tuple(groups), tuple(nets), tuple(values), closed, opened, partitioning)


def headline(p: Partitioning) -> str:
    """Target, partitions and coverage in one line."""
    count = f"{len(p.partitions)} partition{'' if len(p.partitions) == 1 else 's'}"
    target = p.target.label
    return f"{target}: {count}, {p.taken} of {p.total} nodes ({p.coverage:.1f} %)"


# ---------------------------------------------------------------------- groups


def stages(partitioning: Partitioning) -> list[list[Node]]:
    """Partitions, and what the CPU runs between them in connected parts, in topological order."""
    stage: dict[Node, int] = {}
    for node, verdict in partitioning.verdicts.items():
        before = [stage[v.producer] for v in reads(node) if v.producer in stage]
        # Even stages are the CPU's, 2k + 1 is partition k.
        stage[node] = (
            2 * verdict.partition + 1 if verdict.partition is not None else max((s + s % 2 for s in before), default=0)
        )
    connected = DisjointSets(stage)
    anchor: dict[int, Node] = {}
    for node, s in stage.items():
        if s % 2:
            connected.join(node, anchor.setdefault(s, node))
        for value in reads(node):
            if value.producer in stage and stage[value.producer] == s:
                connected.join(node, value.producer)
    return sorted(connected.sets(), key=lambda part: stage[part[0]])


def reads(node: Node) -> list[Value]:
    """What a node reads, its subgraphs included, no constants."""
    values = (*node.inputs, *captures(node)) if node.subgraphs else node.inputs
    return [v for v in values if v is not None and (v.producer is not None or v.is_input)]


def _groups(
    partitioning: Partitioning, estimate: Estimate | None, graph: Graph | None
) -> tuple[list[PictureGroup], dict[Node | Value, int]]:
    """The outer boxes, and which of them holds a node, a model input or a model output."""
    parts = stages(partitioning)
    used = dict.fromkeys(v for part in parts for n in part for v in reads(n) if v.is_input and v.producer is None)
    groups = [PictureGroup(_tensor_box(INPUT, v)) for v in used]
    where: dict[Node | Value, int] = {v: i for i, v in enumerate(used)}
    for part in parts:
        where.update(dict.fromkeys(part, len(groups)))
        index = partitioning.verdicts[part[0]].partition
        if len(part) == 1:
            groups.append(PictureGroup(node_box(part[0], partitioning), tuple(part)))
        elif index is None:
            groups.append(_cpu_group(part, partitioning))
        else:
            groups.append(_partition_group(index, part, partitioning, estimate))
    groups += [PictureGroup(_tensor_box(OUTPUT, v)) for v in ([] if graph is None else graph.outputs)]
    return groups, where


def _operators(nodes: Iterable[Node], most: int = 3) -> str:
    counts = Counter(n.op for n in nodes).most_common()
    shown = [f"{short(op, 18)} ×{count}" if count > 1 else short(op, 18) for op, count in counts[:most]]
    return ", ".join(shown) + (", …" if len(counts) > most else "")


def _cpu_group(part: Sequence[Node], partitioning: Partitioning) -> PictureGroup:
    rules = Counter(o.rule for n in part for o in partitioning.verdicts[n].objections)
    label = f"CPU · {len(part)} nodes"
    why = ", ".join(f"{rule} ×{count}" for rule, count in rules.most_common(3))
    title = "\n".join([label, f"operators: {_operators(part, 99)}", f"why: {why}"])
    return PictureGroup(Box(CPU, (label, _operators(part), why), title), tuple(part), label)


def _partition_group(
    index: int, part: Sequence[Node], partitioning: Partitioning, estimate: Estimate | None
) -> PictureGroup:
    label = f"{partitioning.target.provider.name} partition {index} · {len(part)} nodes"
    lines = [label, _operators(part)]
    if estimate is not None:
        cost = estimate.partitions[index]
        saves = (
            f"saves {cost.gain * 1e3:.3g} ms"
            if cost.is_worthwhile
            else f"costs {-cost.gain * 1e3:.3g} ms more than the CPU"
        )
        lines.append(f"{_bytes(cost.bytes_in)} in, {_bytes(cost.bytes_out)} out, {saves}")
    title = "\n".join([label, partitioning.partitions[index].name, f"operators: {_operators(part, 99)}", *lines[2:]])
    return PictureGroup(Box(ACCELERATOR, tuple(lines), title), tuple(part), label)


def node_box(node: Node, partitioning: Partitioning) -> Box:
    """A node: operator, and what it makes or why it is refused."""
    verdict = partitioning.verdicts[node]
    made = next((v for v in node.outputs if v is not None), None)
    title = [node.label, *(f"out: {v.name}: {v.type}" for v in node.outputs if v is not None)]
    title += [f"constant: {v.name}: {v.type}" for v in node.inputs if v is not None and v.constant is not None]
    title += [f"{o.rule}: {o}" for o in verdict.objections]
    rules = list(dict.fromkeys(o.rule for o in verdict.objections))
    second = _shape(made) if verdict.taken else ", ".join(rules[:2]) + (f" +{len(rules) - 2}" if len(rules) > 2 else "")
    kind = ACCELERATOR if verdict.taken else CPU
    return Box(kind, (short(node.op), short(second)), "\n".join(title), node)


def _tensor_box(kind: str, value: Value) -> Box:
    return Box(kind, (short(value.name), short(_shape(value))), f"{kind}: {value.name}: {value.type}")


def _shape(value: Value | None) -> str:
    if value is None or value.shape is None:
        return "unknown shape"
    return "×".join("?" if d is None else str(d) for d in value.shape) or "scalar"


def _bytes(count: int) -> str:
    return f"{count} B" if count < 1000 else f"{count / 1e3:.3g} kB" if count < 1e6 else f"{count / 1e6:.3g} MB"


# ---------------------------------------------------------------------- lines


def _nets(groups: Sequence[PictureGroup], where: dict[Node | Value, int]) -> tuple[list[Net], list[Value]]:
    """One net for each value that leaves its group."""
    read = [(i, v) for i, group in enumerate(groups) for v in dict.fromkeys(v for n in group.nodes for v in reads(n))]
    outputs = [i for i, g in enumerate(groups) if g.box.kind == OUTPUT]
    graph = next((g.nodes[0].graph for g in groups if g.nodes), None)
    read += zip(outputs, [] if graph is None else graph.outputs, strict=True)
    makers = {v: where[maker] for _, v in read if (maker := v.producer or v) in where}
    return _between(makers, read)


def _between(makers: dict[Value, int], read: Iterable[tuple[int, Value]]) -> tuple[list[Net], list[Value]]:
    """A net for each value that one box makes and others read, and these values; `read` has box and value."""
    targets: dict[Value, dict[int, None]] = {}
    for box, value in read:
        if value in makers and makers[value] != box:
            targets.setdefault(value, {})[box] = None
    return [Net(makers[v], tuple(found)) for v, found in targets.items()], list(targets)


def _opened(
    i: int,
    group: PictureGroup,
    closed: Layout,
    nets: Sequence[Net],
    values: Sequence[Value],
    partitioning: Partitioning,
) -> PictureGroup:
    if not 1 < len(group.nodes) <= INNER_LIMIT:
        return group
    arriving = sorted((r.arrives_at, r.net) for r in closed.routes if r.target == i)
    leaving = sorted({(r.leaves_at, r.net) for r in closed.routes if r.source == i})
    ins, outs = [values[n] for _, n in arriving], [values[n] for _, n in leaving]
    boxes = [_port(v) for v in ins] + [node_box(n, partitioning) for n in group.nodes] + [_port(v) for v in outs]
    maker: dict[Value, int] = {v: p for p, v in enumerate(ins)}
    for p, node in enumerate(group.nodes, len(ins)):
        maker.update((v, p) for v in node.outputs if v is not None)
    read = [(p, value) for p, node in enumerate(group.nodes, len(ins)) for value in reads(node)]
    read += enumerate(outs, len(ins) + len(group.nodes))
    inner_nets, inner_values = _between(maker, read)
    first = range(len(ins))
    last = range(len(ins) + len(group.nodes), len(boxes))
    layout = layered([b.size for b in boxes], inner_nets, first, last)
    shares = tuple(at for at, _ in arriving), tuple(at for at, _ in leaving)
    return replace(group, inner=InnerPicture(tuple(boxes), layout, tuple(inner_values), *shares))


def _port(value: Value) -> Box:
    return Box(PORT, (), f"{value.name}: {value.type}, {_bytes(size(value))}")


# ---------------------------------------------------------------------- text


def short(text: str, most: int = LONGEST) -> str:
    """The text, its middle left out where it is long, and control characters replaced."""
    text = clean(text)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"


_NARROW = frozenset("iljI.,:;'|!/\\()[]{}tfr \"`·")
_WIDE = frozenset("mwMW%@—…")


def text_width(text: str, font: float) -> float:
    """An upper bound of the width of a text in the usual sans-serif fonts, in pixels."""
    return font * sum(0.42 if c in _NARROW else 1.0 if c in _WIDE or ord(c) > 0x2FF else 0.72 for c in text)
