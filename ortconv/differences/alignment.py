"""The correspondence between the nodes of two graphs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ortconv.differences.colors import Colors, Known, Palette, outer_values
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.nesting import readers

TRUSTED = 0.5
"""Names decide if they agree for more than this share of the nodes that were paired by structure alone."""

Key = Callable[[Node], Hashable]


class Alignment:
    """Pairs of nodes, inputs and outputs of two graphs, which are read and never changed.

    Nodes that compute the same from the inputs on are paired first, then those that are used in the same way up to the outputs.
    Where names hold, nodes with equal names and operators follow. Then pairs spread to their neighbors: first to those that look
    the same, then to those with the same operator, at last to those in the same place. Beside some sorting, the time is linear in
    nodes and edges.
    """

    def __init__(self, a: Graph, b: Graph, palette: Palette, known: tuple[Known, Known] = ({}, {})) -> None:
        self.a, self.b, self.palette = a, b, palette
        self.inputs, self.outputs = _paired_inputs(a, b), _paired_outputs(a, b)
        of_a: dict[Value, Hashable] = dict(known[0]) | {v: ("input of a", i) for i, v in enumerate(a.inputs)}
        of_b: dict[Value, Hashable] = dict(known[1]) | {v: ("input of b", i) for i, v in enumerate(b.inputs)}
        of_b |= {theirs: of_a[ours] for ours, theirs in self.inputs.items()}
        self.of_a, self.of_b = Colors(a, palette, of_a), Colors(b, palette, of_b)
        self.pairs: dict[Node, Node] = {}
        self._back: dict[Node, Node] = {}
        self._inputs_back = {theirs: ours for ours, theirs in self.inputs.items()}
        self._new: list[Node] = []
        self._align()

    # ------------------------------------------------------------------ reading

    def left(self) -> tuple[list[Node], list[Node]]:
        """The nodes of a and of b without a partner, in order."""
        return [n for n in self.a if n not in self.pairs], [n for n in self.b if n not in self._back]

    def partner(self, value: Value) -> Value | None:
        """The value of b that corresponds to an input of a, or to an output of a node of a."""
        if value.producer is None:
            return self.inputs.get(value)
        pair = self.pairs.get(value.producer)
        return None if pair is None else pair.output(value.index)

    def is_new(self, value: Value) -> bool:
        """Whether a value of b is an input, or an output of a node, that a lacks."""
        if value.producer is None:
            return value.is_input and value.graph is self.b and value not in self._inputs_back
        return value.producer.graph is self.b and value.producer not in self._back

    def is_gone(self, value: Value) -> bool:
        """Whether a value of a is an input, or an output of a node, that b lacks."""
        if value.producer is None:
            return value.is_input and value.graph is self.a and value not in self.inputs
        return value.producer.graph is self.a and value.producer not in self.pairs

    def same(self, ours: Value | None, theirs: Value | None) -> bool:
        """Whether two values correspond. Constants are compared by content, others as partners or by the way they are computed."""
        if ours is None or theirs is None:
            return ours is theirs
        if self.of_a.value(ours) == self.of_b.value(theirs):
            return True
        return ours.constant is None and theirs.constant is None and self.partner(ours) is theirs

    def known_inside(self, ours: Graph, theirs: Graph) -> tuple[Known, Known]:
        """Colors of the outer values that a subgraph of a node of a, and its counterpart in b, read."""
        return (
            {v: self.of_a.value(v) for v in outer_values(ours) if v.constant is None},
            {v: self._color_in_a(v) for v in outer_values(theirs) if v.constant is None},
        )

    def _color_in_a(self, value: Value) -> Hashable:
        """The color of a value of b; that of its partner, if it has one."""
        maker = None if value.producer is None else self._back.get(value.producer)
        partner = None if maker is None else maker.output(value.index)
        return self.of_b.value(value) if partner is None else self.of_a.value(partner)

    # ------------------------------------------------------------------ pairing

    def _align(self) -> None:
        back_a, back_b = self.of_a.backward, self.of_b.backward
        back = back_a | back_b
        by_use: list[Key] = [lambda n: (back[n], _result(n)), lambda n: (back[n], n.name), lambda n: back[n]]
        in_order: list[Key] = [_result, lambda n: None]
        self._unique(self.of_a.forward, self.of_b.forward)
        self._by_color(self.of_a.forward, self.of_b.forward, by_use)
        self._unique(back_a, back_b)
        self._spread(ALIKE)
        names_hold = self._names_hold()
        if names_hold:
            self._by_name()
        self._unique(self.of_a.local, self.of_b.local)
        self._spread(UNIQUE)
        self._by_color(back_a, back_b, in_order if names_hold else in_order[1:])
        self._spread(len(LEVELS))
        self._by_color(self.of_a.forward, self.of_b.forward, in_order)

    def _pair(self, ours: Node, theirs: Node) -> None:
        self.pairs[ours] = theirs
        self._back[theirs] = ours
        self._new.append(ours)

    def _by_color(self, of_a: Mapping[Node, int], of_b: Mapping[Node, int], keys: Sequence[Key]) -> None:
        """Pair the nodes of equal colors: those with equal keys first, each time in order."""
        for ours, theirs in _groups(of_a, of_b):
            for key in keys:
                self._by_key(ours, theirs, key)

    def _unique(self, of_a: Mapping[Node, int], of_b: Mapping[Node, int]) -> None:
        """Pair the only node of a with some color and the only one of b."""
        for ours, theirs in _groups(of_a, of_b):
            if len(ours) == len(theirs) == 1 and ours[0] not in self.pairs and theirs[0] not in self._back:
                self._pair(ours[0], theirs[0])

    def _by_key(self, ours: Iterable[Node], theirs: Iterable[Node], key: Key) -> None:
        waiting: dict[Hashable, deque[Node]] = defaultdict(deque)
        for node in theirs:
            if node not in self._back:
                waiting[key(node)].append(node)
        for node in ours:
            if node not in self.pairs and (found := waiting.get(key(node))):
                self._pair(node, found.popleft())

    # ------------------------------------------------------------------ names

    def _names_hold(self) -> bool:
        """Whether names can be trusted: they agree for most of the nodes that were paired by structure."""
        named = sum(_result(a) == _result(b) for a, b in self.pairs.items())
        return named > TRUSTED * len(self.pairs) if self.pairs else True

    def _by_name(self) -> None:
        """Pair nodes of one operator with the same first output, or else the same name."""
        for key in (_result, _name):
            theirs: dict[Hashable, list[Node]] = defaultdict(list)
            for node in self.left()[1]:
                theirs[key(node)].append(node)
            for node in self.left()[0]:
                found = theirs.get(key(node), ())
                if len(found) == 1 and found[0] not in self._back and node.operator == found[0].operator:
                    self._pair(node, found[0])

    # ------------------------------------------------------------------ neighbors

    def _spread(self, levels: int) -> None:
        """Pair neighbors of pairs by the first of LEVELS. From the pairs of a level, the levels before it spread first."""
        border = self._border()
        queues: list[deque[Node | None]] = [deque((None, *border)) for _ in range(levels)]
        self._new = []
        while True:
            for queue in queues:
                queue.extend(self._new)
            self._new = []
            at = next((level for level, queue in enumerate(queues) if queue), None)
            if at is None:
                return
            self._pair_neighbors(queues[at].popleft(), LEVELS[at])

    def _border(self) -> list[Node]:
        """The nodes of a with a partner and a neighbor that has none."""
        found: dict[Node, None] = {}
        for node in self.left()[0]:
            near = [v.producer for v in node.present_inputs if v.producer is not None]
            near += [reader for v in node.present_outputs for reader, _ in readers(v, self.a)]
            found |= dict.fromkeys(n for n in near if n in self.pairs)
        return list(found)

    def _pair_neighbors(self, ours: Node | None, level: Level) -> None:
        """Pair consumers and producers of the values of a pair of nodes; for None, of the graphs' inputs and outputs."""
        made: Iterable[tuple[Value, Value]] = self.inputs.items()
        read: Iterable[tuple[Value, Value]] = self.outputs.items()
        if ours is not None:
            theirs = self.pairs[ours]
            made, read = _both(ours.outputs, theirs.outputs), _both(ours.inputs, theirs.inputs)
        for value, twin in made:
            self._pair_readers(value, twin, level)
        for value, twin in read:
            if value.index == twin.index:
                self._pair_producers(value.producer, twin.producer, level)

    def _pair_producers(self, ours: Node | None, theirs: Node | None, level: Level) -> None:
        if ours is None or theirs is None or ours.graph is not self.a or theirs.graph is not self.b:
            return
        if level.key(self.of_a, ours) == level.key(self.of_b, theirs):
            self._pair_if(ours, theirs, level)

    def _pair_readers(self, ours: Value, theirs: Value, level: Level) -> None:
        groups: dict[Hashable, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
        for node, slot in readers(ours, self.a):
            if node not in self.pairs:
                groups[level.key(self.of_a, node), slot][0].append(node)
        if not groups:
            return
        for node, slot in readers(theirs, self.b):
            if node not in self._back:
                groups[level.key(self.of_b, node), slot][1].append(node)
        for a, b in groups.values():
            if len(a) == len(b) and (len(a) == 1 or not level.unique):
                for one, other in zip(a, b, strict=True):
                    self._pair_if(one, other, level)

    def _pair_if(self, ours: Node, theirs: Node, level: Level) -> None:
        is_free = ours not in self.pairs and theirs not in self._back
        if is_free and (not level.in_place or self._same_place(ours, theirs)):
            self._pair(ours, theirs)

    def _same_place(self, ours: Node, theirs: Node) -> bool:
        """Whether both nodes read the same values and have the same consumers; their operators may differ."""
        if len(ours.outputs) != len(theirs.outputs):
            return False
        reads_a = [v for v in ours.present_inputs if v.constant is None]
        reads_b = [v for v in theirs.present_inputs if v.constant is None]
        if len(reads_a) != len(reads_b) or not all(map(self.same, reads_a, reads_b)):
            return False
        return all(map(self._same_readers, ours.outputs, theirs.outputs))

    def _same_readers(self, ours: Value | None, theirs: Value | None) -> bool:
        if ours is None or theirs is None:
            return ours is theirs
        found = {self.pairs.get(node) for node, _ in readers(ours, self.a)}
        return found == {node for node, _ in readers(theirs, self.b)} and ours.is_output == theirs.is_output


def _both(ours: Sequence[Value | None], theirs: Sequence[Value | None]) -> Iterable[tuple[Value, Value]]:
    """The pairs of values, without those in which one is absent."""
    return ((a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None)


def _groups(of_a: Mapping[Node, int], of_b: Mapping[Node, int]) -> list[tuple[list[Node], list[Node]]]:
    """The nodes of each color that both graphs have."""
    found: dict[int, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for side, colors in enumerate((of_a, of_b)):
        for node, color in colors.items():
            found[color][side].append(node)
    return [group for group in found.values() if group[0] and group[1]]


def _name(node: Node) -> Hashable:
    return node.name or node


def _result(node: Node) -> Hashable:
    """The name of a node's first output; the node itself if it has none."""
    return next((v.name for v in node.present_outputs), node)


class Level(NamedTuple):
    """Conditions on neighbors of a pair for becoming a pair: equal keys and, with `unique`, no other neighbor with that key."""

    key: Callable[[Colors, Node], Hashable]
    unique: bool = False
    in_place: bool = False
    """Whether their inputs and their consumers must be the same."""


KEYS: tuple[Callable[[Colors, Node], Hashable], ...] = (
    lambda colors, node: colors.backward[node],
    lambda colors, node: colors.local[node],
    lambda colors, node: (node.domain, node.op),
)
"""Equal for nodes that are used alike, that look alike, or that have the same operator."""

LEVELS = (
    *(Level(key, unique=True) for key in KEYS),
    *map(Level, KEYS),
    Level(lambda colors, node: None, in_place=True),
)
ALIKE, UNIQUE = 1, 3
"""Number of leading levels that demand equal uses and unique neighbors."""


def _paired_inputs(a: Graph, b: Graph) -> dict[Value, Value]:
    """Inputs that correspond: by name, the others by position and type. Those of subgraphs by position alone."""
    if a.owner is not None:
        return dict(zip(a.inputs, b.inputs, strict=False))
    found = _paired_by_name(a.inputs, b.inputs)
    taken = set(found.values())
    for ours, theirs in zip(a.inputs, b.inputs, strict=False):
        if ours not in found and theirs not in taken and ours.type == theirs.type:
            found[ours] = theirs
    return found


def _paired_by_name(ours: Iterable[Value], theirs: Iterable[Value]) -> dict[Value, Value]:
    names = {v.name: v for v in theirs}
    return {v: names[v.name] for v in ours if v.name in names}


def _paired_outputs(a: Graph, b: Graph) -> dict[Value, Value]:
    """Outputs that correspond: by name, the others by position if the graphs have equally many. Those of subgraphs by position."""
    if a.owner is not None:
        return dict(zip(a.outputs, b.outputs, strict=False))
    found = _paired_by_name(a.outputs, b.outputs)
    taken = set(found.values())
    rest = ([v for v in a.outputs if v not in found], [v for v in b.outputs if v not in taken])
    if len(rest[0]) == len(rest[1]):
        found |= zip(*rest, strict=True)
    return found
