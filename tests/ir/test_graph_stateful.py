"""Random mutations of nested graphs against a model of plain lists, with `verify` after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.ir.tensor import Tensor
from ortconv.ir.text import text
from ortconv.ir.types import DType, TensorType
from ortconv.ir.verify import verify
from tests.conftest import examples

FLOAT = TensorType(DType.FLOAT, (2,))


@dataclass
class PlainNode:
    real: Node
    op: str
    inputs: list[Value | None]
    outputs: list[Value]
    subs: list[PlainGraph] = field(default_factory=list)


@dataclass
class PlainGraph:
    """What a graph should be. Values are known by identity, everything else is stated again."""

    real: Graph
    above: tuple[PlainGraph, PlainNode] | None = None
    inputs: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    nodes: list[PlainNode] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def walk(self) -> Iterator[tuple[PlainGraph, PlainNode]]:
        for node in self.nodes:
            yield self, node
            for sub in node.subs:
                yield from sub.walk()

    def graphs(self) -> Iterator[PlainGraph]:
        yield self
        for node in self.nodes:
            for sub in node.subs:
                yield from sub.graphs()

    def own(self, position: int | None = None) -> list[Value]:
        """Values of this graph that exist before a position."""
        return [*self.inputs, *self.constants, *(v for n in self.nodes[:position] for v in n.outputs)]

    def visible(self, position: int | None = None) -> list[Value]:
        """Values of this graph and those around it that exist before a position."""
        outer: list[Value] = []
        if self.above is not None:
            graph, node = self.above
            outer = graph.visible(graph.nodes.index(node))
        return outer + self.own(position)

    def reads(self, node: PlainNode) -> list[Value | None]:
        """What a node and the nodes inside it read."""
        return node.inputs + [v for sub in node.subs for _, inner in sub.walk() for v in inner.inputs]


class Mutations(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.main = PlainGraph(Graph("main"))
        self.main.real.opsets[""] = 17
        self.names: dict[Value, str] = {}
        for name in ("x", "y"):
            value = self.main.real.add_input(name, FLOAT)
            self.main.inputs.append(value)
            self.names[value] = name

    # ------------------------------------------------------------------ choosing

    def graph(self, data: st.DataObject) -> PlainGraph:
        return data.draw(st.sampled_from(list(self.main.graphs())))

    def node(self, data: st.DataObject) -> tuple[PlainGraph, PlainNode]:
        return data.draw(st.sampled_from(list(self.main.walk())))

    def uses(self) -> dict[Value, Counter[tuple[Node, int]]]:
        found: dict[Value, Counter[tuple[Node, int]]] = {}
        for _, node in self.main.walk():
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    found.setdefault(value, Counter())[node.real, slot] += 1
        return found

    def is_dead(self, graph: PlainGraph, node: PlainNode) -> bool:
        uses = self.uses()
        return not any(v in uses or v in graph.outputs for v in node.outputs)

    def some_nodes(self) -> bool:
        return bool(self.main.nodes)

    def record(self, graph: PlainGraph, made: PlainNode, position: int) -> None:
        graph.nodes.insert(position, made)
        for value in made.outputs:
            assert value.name not in self.names.values()
            self.names[value] = value.name

    # ------------------------------------------------------------------ rules

    @rule(data=st.data(), count=st.integers(0, 3), outputs=st.integers(1, 2))
    def insert(self, data: st.DataObject, count: int, outputs: int) -> None:
        graph = self.graph(data)
        position = data.draw(st.integers(0, len(graph.nodes)))
        choice = st.one_of(st.none(), st.sampled_from(graph.visible(position)))
        inputs = data.draw(st.lists(choice, min_size=count, max_size=count))
        before = graph.nodes[position].real if position < len(graph.nodes) else None
        node = graph.real.add_node("Op", inputs, outputs, name="same name", before=before)
        made = PlainNode(node, "Op", list(inputs), [v for v in node.outputs if v is not None])
        self.record(graph, made, position)

    @rule(data=st.data(), branches=st.integers(1, 2))
    def insert_with_subgraphs(self, data: st.DataObject, branches: int) -> None:
        graph = self.graph(data)
        if sum(1 for _ in self.main.graphs()) > 6:
            return
        position = data.draw(st.integers(0, len(graph.nodes)))
        visible = graph.visible(position)
        before = graph.nodes[position].real if position < len(graph.nodes) else None
        subs, plain = {}, []
        for i in range(branches):
            sub = Graph(f"branch{i}", parent=graph.real)
            reads = [data.draw(st.sampled_from(visible)) for _ in range(2)]
            inner = sub.add_node("Inner", reads)
            sub.set_outputs([inner.out])
            subs[f"branch{i}"] = sub
            plain.append(
                PlainGraph(sub, None, [], [], [PlainNode(inner, "Inner", list(reads), [inner.out])], [inner.out])
            )
            self.names[inner.out] = inner.out.name
        node = graph.real.add_node("If", [data.draw(st.sampled_from(visible))], 1, subs, before=before)
        made = PlainNode(node, "If", list(node.inputs), [node.out], plain)
        for sub in plain:
            sub.above = graph, made
        self.record(graph, made, position)

    @rule(data=st.data())
    def constant(self, data: st.DataObject) -> None:
        graph = self.graph(data)
        value = graph.real.constant(Tensor.of(np.zeros(2, np.float32)), "x")
        graph.constants.append(value)
        assert value.name not in self.names.values()
        self.names[value] = value.name

    @rule(data=st.data())
    def choose_outputs(self, data: st.DataObject) -> None:
        graph = self.graph(data)
        own = graph.own()
        if own:
            graph.outputs = data.draw(st.lists(st.sampled_from(own), unique=True, max_size=3))
            graph.real.set_outputs(graph.outputs)

    @precondition(some_nodes)
    @rule(data=st.data(), slot=st.integers(0, 4))
    def set_input(self, data: st.DataObject, slot: int) -> None:
        graph, node = self.node(data)
        visible = graph.visible(graph.nodes.index(node))
        value = data.draw(st.one_of(st.none(), st.sampled_from(visible)))
        node.inputs += [None] * (slot + 1 - len(node.inputs))
        node.inputs[slot] = value
        graph.real.set_input(node.real, slot, value)

    @precondition(some_nodes)
    @rule(data=st.data())
    def set_inputs(self, data: st.DataObject) -> None:
        graph, node = self.node(data)
        node.inputs = data.draw(st.lists(st.sampled_from(graph.visible(graph.nodes.index(node))), max_size=3))
        graph.real.set_inputs(node.real, node.inputs)

    @precondition(some_nodes)
    @rule(data=st.data(), everywhere=st.booleans())
    def replace(self, data: st.DataObject, everywhere: bool) -> None:
        graph, node = self.node(data)
        position = graph.nodes.index(node)
        old, new = data.draw(st.sampled_from(node.outputs)), data.draw(st.sampled_from(graph.visible(position)))
        for inner_graph in graph.graphs():
            for inner in inner_graph.nodes:
                inner.inputs = [new if v is old else v for v in inner.inputs]
        if not everywhere:
            graph.real.replace_uses(old, new)
            return
        graph.real.replace(old, new)
        if old not in graph.outputs:
            return
        at, name = graph.outputs.index(old), self.names[old]
        stand_in = new
        if new in graph.outputs or new not in [v for n in graph.nodes for v in n.outputs]:
            identity = node.real.prev
            assert identity is not None
            stand_in = identity.out
            graph.nodes.insert(position, PlainNode(identity, "Identity", [new], [stand_in]))
        graph.outputs[at] = stand_in
        self.names[stand_in], self.names[old] = name, old.name
        assert old.name != name

    @precondition(some_nodes)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        dead = [(g, n) for g, n in self.main.walk() if self.is_dead(g, n)]
        if dead:
            graph, node = data.draw(st.sampled_from(dead))
            graph.real.remove(node.real)
            graph.nodes.remove(node)

    @precondition(some_nodes)
    @rule(data=st.data())
    def remove_dead(self, data: st.DataObject) -> None:
        graph, node = self.node(data)
        expected, stack = 0, [node]
        while stack:
            node_ = stack.pop()
            if node_ not in graph.nodes or not self.is_dead(graph, node_):
                continue
            reads = graph.reads(node_)
            graph.nodes.remove(node_)
            expected += 1
            stack += [n for n in graph.nodes if any(v in reads for v in n.outputs)]
        assert graph.real.remove_dead(node.real) == expected

    @rule(data=st.data(), hint=st.sampled_from(["x", "Op_out", "name", ""]))
    def rename(self, data: st.DataObject, hint: str) -> None:
        graph = self.graph(data)
        if own := graph.own():
            value = data.draw(st.sampled_from(own))
            name = graph.real.fresh(hint)
            assert name not in self.names.values()
            graph.real.rename(value, name)
            self.names[value] = name
            if value in graph.constants:
                graph.constants.remove(value)
                graph.constants.append(value)

    @precondition(some_nodes)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        graph, node = self.node(data)
        reads = graph.reads(node)
        others = [n for n in graph.nodes if n is not node]
        first = max((i + 1 for i, n in enumerate(others) if any(v in reads for v in n.outputs)), default=0)
        last = min(
            (i for i, n in enumerate(others) if any(v in graph.reads(n) for v in node.outputs)), default=len(others)
        )
        position = data.draw(st.integers(first, last))
        graph.real.move(node.real, others[position].real if position < len(others) else None)
        graph.nodes = [*others[:position], node, *others[position:]]

    @precondition(some_nodes)
    @rule(data=st.data())
    def shuffle_and_sort(self, data: st.DataObject) -> None:
        graph = self.graph(data)
        for node in data.draw(st.permutations(graph.nodes)):
            graph.real.move(node.real, None)
        graph.real.sort()
        by_real = {n.real: n for n in graph.nodes}
        graph.nodes = [by_real[n] for n in graph.real]

    @rule()
    def prune(self) -> None:
        uses, expected = self.uses(), 0
        for graph in self.main.graphs():
            kept = [v for v in graph.constants if v in uses or v in graph.outputs]
            expected += len(graph.constants) - len(kept)
            graph.constants = kept
        assert self.main.real.prune() == expected

    @precondition(some_nodes)
    @rule(data=st.data())
    def change_while_iterating(self, data: st.DataObject) -> None:
        graph = self.graph(data)
        seen = []
        for node in graph.real:
            seen.append(node)
            plain = next(n for n in graph.nodes if n.real is node)
            if self.is_dead(graph, plain) and data.draw(st.booleans()):
                graph.real.remove(node)
                graph.nodes.remove(plain)
        assert len(seen) == len(set(seen))
        assert [n for n in seen if n.graph is graph.real] == [n.real for n in graph.nodes]

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def the_graph_is_what_the_model_says(self) -> None:
        verify(self.main.real)
        uses = self.uses()
        for graph in self.main.graphs():
            real = graph.real
            assert [n.real for n in graph.nodes] == list(real)
            assert [n.real for n in reversed(graph.nodes)] == list(reversed(real))
            assert len(real) == len(graph.nodes)
            assert real.inputs == graph.inputs
            assert real.outputs == graph.outputs
            assert list(real.initializers.values()) == graph.constants
            assert real.owner is (graph.above[1].real if graph.above else None)
            assert real.parent is (graph.above[0].real if graph.above else None)
            for value in graph.own():
                assert value.name == self.names[value]
                assert Counter(list(value.uses)) == uses.get(value, Counter())
                assert set(value.consumers) == {node for node, _ in uses.get(value, ())}
            for node in graph.nodes:
                assert (node.real.op, list(node.real.inputs)) == (node.op, node.inputs)
                assert node.real.subgraphs == [s.real for s in node.subs]
                inside = {v for s in node.subs for g in s.graphs() for v in g.own()}
                assert set(captures(node.real)) == set(graph.reads(node)[len(node.inputs) :]) - inside - {None}
        assert text(self.main.real).count("\n") > len(self.main.nodes)


TestMutations = Mutations.TestCase
TestMutations.settings = settings(examples(40), stateful_step_count=40)
