"""A graph as nested boxes: partitions and the CPU's nodes between them, repeated blocks folded, long rows cut into sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.nesting import named_subgraphs
from ortconv.partition import Partitioning
from ortconv.partition.cost import Estimate
from ortconv.partition.partitioner import Verdict
from ortconv.report.folding import Repeat, cohesion, repeats, scope, scoped, sections
from ortconv.report.labels import (
    FONT,
    LONGEST,
    SMALL,
    block_name,
    byte_text,
    constants,
    operators,
    shape,
    short,
    text_width,
)
from ortconv.wording import counted

ACCELERATOR, CPU, MIXED, PLAIN, INPUT, OUTPUT, PORT = "accelerator", "cpu", "mixed", "plain", "input", "output", "port"
"""Kinds of boxes. A mixed box holds nodes of both sides; without a target all nodes are plain."""

MOST = 240
"""A row with more parts is cut into sections."""
LONG = 40
"""In a row with more parts, those with a common scope of names are grouped."""
LEAST = 6
"""Smallest number of parts in such a group."""
SECTION = 120
"""Number of parts in a section."""
SHORTEST_NAME = 4
"""Shorter names of blocks carry no meaning."""

NODE_HEIGHT = 38.0
PORT_SIZE = (8.0, 8.0)


@dataclass(frozen=True, slots=True)
class Box:
    """A box with a text: one bold line, small lines below it, and a title that is shown on hover."""

    kind: str
    lines: tuple[str, ...] = ()
    title: str = ""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        if self.kind == PORT:
            return PORT_SIZE
        widths = [text_width(line, SMALL if i else FONT) for i, line in enumerate(self.lines)]
        return max(*widths, 40.0) + 2 * 12, NODE_HEIGHT + 14 * max(len(self.lines) - 2, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A node, an input or output of the graph with its value, or a group: then `parts` are in topological order."""

    box: Box
    nodes: tuple[Node, ...] = ()
    parts: tuple[Part, ...] = ()
    value: Value | None = None
    partition: int | None = None
    """The partition's number, if the group is a whole partition."""
    node: Node | None = None
    """The node of a single node's box. Its subgraphs, if any, are the box's parts."""
    is_repeat: bool = False
    """Whether the parts of a group are blocks of the same operators."""

    def walk(self) -> Iterator[Part]:
        """This part and all parts inside it."""
        yield self
        for part in self.parts:
            yield from part.walk()


def outline(graph: Graph, partitioning: Partitioning | None = None, estimate: Estimate | None = None) -> Part:
    """The graph as one part. With a partitioning, nodes are colored and grouped by it. With an estimate, partitions have a cost."""
    drawer = _Drawer(partitioning, estimate)
    inner = list(map(drawer.node, graph)) if partitioning is None else drawer.groups()
    return drawer.graph(graph, short(graph.name), inner)


def reads(node: Node) -> list[Value]:
    """The values that a node and its subgraphs read, without constants."""
    return [v for v in node.present_reads if v.producer is not None or v.is_input]


def stages(partitioning: Partitioning) -> list[list[Node]]:
    """Partitions, and the CPU's nodes between them in connected groups, in topological order."""
    stage: dict[Node, int] = {}
    for node, verdict in partitioning.verdicts.items():
        # Even stages are the CPU's, 2k + 1 is partition k.
        if verdict.partition is not None:
            stage[node] = 2 * verdict.partition + 1
        else:
            before = (stage[v.producer] for v in reads(node) if v.producer in stage)
            stage[node] = max((s + s % 2 for s in before), default=0)
    connected = DisjointSets(stage)
    anchor: dict[int, Node] = {}
    for node, s in stage.items():
        if s % 2:
            connected.join(node, anchor.setdefault(s, node))
        for value in reads(node):
            if value.producer in stage and stage[value.producer] == s:
                connected.join(node, value.producer)
    return sorted(connected.sets(), key=lambda part: stage[part[0]])


Rows = tuple[tuple[int, ...], tuple[int, ...]]
"""Symbols and sizes of the parts in a row. Rows with equal symbols are folded alike."""


class _Drawer:
    def __init__(self, partitioning: Partitioning | None, estimate: Estimate | None) -> None:
        self.partitioning, self.estimate = partitioning, estimate
        self.known: dict[Rows, list[Repeat]] = {}

    def graph(self, graph: Graph, label: str, inner: list[Part]) -> Part:
        """A graph: its used inputs, its nodes as these parts, its outputs."""
        nodes = tuple(graph)
        read = {v for n in nodes for v in reads(n)} | set(graph.outputs)
        ins = [_tensor(INPUT, v) for v in graph.inputs if v in read and v.producer is None]
        outs = [_tensor(OUTPUT, v) for v in graph.outputs]
        return Part(Box(PLAIN, (label, operators(nodes))), nodes, (*ins, *self.folded(inner), *outs))

    def node(self, node: Node) -> Part:
        """A node's box: its operator, its shape, and its constants or the rules that refuse it."""
        title = [node.label, *(f"out: {v.name}: {v.type}" for v in node.present_outputs)]
        title += [f"constant: {v.name}: {v.type}" for v in node.present_inputs if v.constant is not None]
        third, kind = constants(node), PLAIN
        verdict = None if self.partitioning is None else self.partitioning.verdicts.get(node)
        if verdict is not None:
            title += [f"{o.rule}: {o}" for o in verdict.objections]
            third = third if verdict.taken else _rules(verdict)
            kind = ACCELERATOR if verdict.taken else CPU
        lines = (short(node.op), short(shape(next(iter(node.present_outputs), None))), third)
        box = Box(kind, tuple(filter(None, lines)), "\n".join(title))
        inner = (
            self.graph(sub, short(f"{name}: {sub.name}"), list(map(self.node, sub)))
            for name, sub in named_subgraphs(node)
        )
        return Part(box, (node,), tuple(inner), node=node)

    def groups(self) -> list[Part]:
        """Partitions, and the CPU's nodes between them."""
        assert self.partitioning is not None
        found = []
        for nodes in stages(self.partitioning):
            index = self.partitioning.verdicts[nodes[0]].partition
            parts = [self.node(n) for n in nodes]
            if len(parts) == 1:
                found += parts
            elif index is None:
                found.append(self.on_cpu(nodes, parts))
            else:
                found.append(self.in_partition(index, nodes, parts))
        return found

    def on_cpu(self, nodes: Sequence[Node], parts: list[Part]) -> Part:
        """A group of connected nodes that the CPU runs."""
        assert self.partitioning is not None
        rules = Counter(o.rule for n in nodes for o in self.partitioning.verdicts[n].objections)
        label = f"CPU · {counted(len(nodes), 'node')}"
        why = ", ".join(f"{rule} ×{count}" for rule, count in rules.most_common(3))
        title = "\n".join([label, f"operators: {operators(nodes, 99)}", f"why: {why}"])
        return Part(Box(CPU, (label, operators(nodes), why), title), tuple(nodes), self.folded(parts))

    def in_partition(self, index: int, nodes: Sequence[Node], parts: list[Part]) -> Part:
        """A partition, with its cost if there is an estimate."""
        assert self.partitioning is not None
        label = f"{self.partitioning.target.provider.name} partition {index} · {counted(len(nodes), 'node')}"
        lines = [label, operators(nodes)]
        if self.estimate is not None:
            cost = self.estimate.partitions[index]
            saves = f"saves {cost.gain * 1e3:.3g} ms" if cost.is_worthwhile else f"loses {-cost.gain * 1e3:.3g} ms"
            lines.append(f"{byte_text(cost.bytes_in)} in, {byte_text(cost.bytes_out)} out, {saves}")
        name = self.partitioning.partitions[index].name
        title = "\n".join([label, name, f"operators: {operators(nodes, 99)}", *lines[2:]])
        return Part(Box(ACCELERATOR, tuple(lines), title), tuple(nodes), self.folded(parts), partition=index)

    # ------------------------------------------------------------------ folding

    def folded(self, parts: list[Part]) -> tuple[Part, ...]:
        """The parts with each repeated block as one part, and cut into sections if there are many."""
        if len(parts) < 2:
            return tuple(parts)
        parts = _near_readers(parts)
        found: list[Part] = []
        at = 0
        for repeat in self.repeats(parts):
            found += parts[at : repeat.start]
            found.append(self.repeated(parts, repeat))
            at = repeat.end
        return self.cut(self.scoped(found + parts[at:]))

    def repeats(self, parts: Sequence[Part]) -> list[Repeat]:
        symbols, sizes = tuple(_symbols(parts)), tuple(len(p.nodes) for p in parts)
        if (symbols, sizes) not in self.known:

            def together(low: int, high: int) -> float:
                return cohesion([n.name for part in parts[low:high] for n in part.nodes])

            self.known[symbols, sizes] = repeats(symbols, sizes, _crossings(parts), together)
        return self.known[symbols, sizes]

    def scoped(self, parts: list[Part]) -> list[Part]:
        """The parts. If there are more than LONG, neighbors whose names have a common scope become one part."""
        if len(parts) <= LONG:
            return parts
        found: list[Part] = []
        at = 0
        for start, end, key in scoped([scope([n.name for n in p.nodes]) for p in parts], LEAST):
            row = parts[start:end]
            found += [*parts[at:start], self.group(_words(key) or ".".join(key[-2:]), row, self.folded(row))]
            at = end
        return found + parts[at:]

    def repeated(self, parts: Sequence[Part], repeat: Repeat) -> Part:
        starts = range(repeat.start, repeat.end, repeat.period)
        rows = [list(parts[s : s + repeat.period]) for s in starts]
        name, numbers = _block_names([[n for part in row for n in part.nodes] for row in rows])
        if repeat.period == 1:
            blocks = [row[0] for row in rows]
        else:
            blocks = [self.group(f"{name} {i}", row, self.folded(row)) for i, row in zip(numbers, rows, strict=True)]
        return replace(self.group(f"{repeat.blocks} × {name}", blocks, self.cut(blocks), rows[0]), is_repeat=True)

    def cut(self, parts: list[Part]) -> tuple[Part, ...]:
        """The parts, grouped into sections if there are many."""
        if len(parts) <= MOST:
            return tuple(parts)
        cuts = sections(len(parts), _crossings(parts), max(SECTION, len(parts) // MOST + 1))
        return tuple(self.group(f"parts {a + 1} to {b}", parts[a:b], tuple(parts[a:b])) for a, b in cuts)

    def group(self, label: str, parts: Sequence[Part], inner: tuple[Part, ...], shown: Sequence[Part] = ()) -> Part:
        """A group with these parts; its second line has the operators of `shown`."""
        nodes = tuple(n for part in parts for n in part.nodes)
        kinds = {part.box.kind for part in parts}
        kind = kinds.pop() if len(kinds) == 1 else MIXED
        lines = [short(label, 2 * LONGEST), operators([n for part in shown or parts for n in part.nodes])]
        if kind == MIXED and self.partitioning is not None:
            verdicts = map(self.partitioning.verdicts.get, nodes)
            assigned = sum(verdict is not None and verdict.taken for verdict in verdicts)
            lines.append(f"{assigned} of {len(nodes)} nodes on {self.partitioning.target.provider.name}")
        title = "\n".join([label, counted(len(nodes), "node"), f"operators: {operators(nodes, 99)}"])
        return Part(Box(kind, tuple(lines), title), nodes, inner)


def _near_readers(parts: list[Part]) -> list[Part]:
    """The parts in topological order. Those that read only constants come right before their first consumer.

    Exporters put all such nodes first, for example the DequantizeLinear of each weight.
    """
    first: dict[Value, int] = {}
    for i, part in enumerate(parts):
        for node in part.nodes:
            for value in reads(node):
                first.setdefault(value, i)

    def place(i: int) -> tuple[int, int, int]:
        nodes = parts[i].nodes
        reader = min((first[v] for n in nodes for v in n.outputs if v in first), default=i)
        return (reader, 0, i) if reader > i and not any(map(reads, nodes)) else (i, 1, i)

    return [parts[i] for i in sorted(range(len(parts)), key=place)]


def _symbols(parts: Sequence[Part]) -> list[int]:
    """Equal numbers for parts with the same operators on the same side."""
    known: dict[object, int] = {}
    return [known.setdefault((p.box.kind, *((n.op, n.domain) for n in p.nodes)), len(known)) for p in parts]


def _rules(verdict: Verdict) -> str:
    """The first two rules that refuse a node, and the number of the others."""
    rules = list(dict.fromkeys(o.rule for o in verdict.objections))
    return ", ".join(rules[:2]) + (f" +{len(rules) - 2}" if len(rules) > 2 else "")


def _crossings(parts: Sequence[Part]) -> list[int]:
    """The values that cross each gap between parts, including the gaps before the first and after the last one."""
    at = [(i, node) for i, part in enumerate(parts) for node in part.nodes]
    maker = {v: i for i, node in at for v in node.present_outputs}
    last = {v: i for i, node in at for v in reads(node) if v in maker}
    change = [0] * (len(parts) + 2)
    for value, reader in last.items():
        change[maker[value] + 1] += 1
        change[reader + 1] -= 1
    return list(accumulate(change[: len(parts) + 1]))


def _block_names(blocks: Sequence[Sequence[Node]]) -> tuple[str, list[str]]:
    """The name of repeated blocks, from the scopes of their nodes' names, and the number of each block."""
    scopes = [scope([n.name for n in nodes]) for nodes in blocks]
    counted = [str(i) for i in range(1, len(blocks) + 1)]
    varying = next((i for i, (a, b) in enumerate(zip(*scopes[:2], strict=False)) if a != b), None)
    if varying is None:
        return block_name(blocks[0]), counted
    name = _words([w for w in scopes[0][: varying + 1] if not w.isdecimal()])
    numbers = ["".join(s[varying : varying + 1]) for s in scopes]
    if not name:
        return block_name(blocks[0]), counted
    return name, numbers if all(map(str.isdecimal, numbers)) else counted


def _words(scopes: Sequence[str]) -> str:
    """The two innermost of nested scopes as a name, with the number of the last; empty if they carry no meaning."""
    words = [w for w in dict.fromkeys(scopes) if not w.isdecimal()]
    number = f" {scopes[-1]}" if scopes[-1].isdecimal() else ""
    name = " ".join(words[-2:]).replace("_", " ")
    return name + number if len(name) >= SHORTEST_NAME else ""


def _tensor(kind: str, value: Value) -> Part:
    return Part(Box(kind, (short(value.name), short(shape(value))), f"{kind}: {value.name}: {value.type}"), value=value)
