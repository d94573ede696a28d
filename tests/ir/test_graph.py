"""What each mutator of a graph does, and what `verify` objects to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ortconv.errors import GraphError
from ortconv.ir.graph import Floats, Graph, Graphs, Ints, Node, Strings, Value, captures
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.text import node_text, text
from ortconv.ir.types import DType, SequenceType, TensorType
from ortconv.ir.value import FEW_USES
from ortconv.ir.verify import verify
from tests.batches import batched

FLOAT = TensorType(DType.FLOAT, ("N", 3))


def chain(*ops: str) -> tuple[Graph, list[Node]]:
    """x -> ops[0] -> ops[1] -> ..., the last one returned."""
    graph = Graph("g")
    graph.opsets[""] = 17
    value, nodes = graph.add_input("x", FLOAT), []
    for op in ops:
        node = graph.add_node(op, [value], [op.lower()], types=[FLOAT])
        nodes.append(node)
        value = node.out
    graph.set_outputs([value])
    verify(graph)
    return graph, nodes


def with_branch(outer: Callable[[Graph], Value]) -> tuple[Graph, Node, Node]:
    """A graph with an If, whose only branch holds one Neg of an outer value."""
    graph, (relu,) = chain("Relu")
    branch = Graph("then", parent=graph)
    inner = branch.add_node("Neg", [outer(graph)])
    branch.set_outputs([inner.out])
    node = graph.add_node("If", [relu.out], attrs={"then_branch": branch})
    verify(graph)
    return graph, node, inner


# ---------------------------------------------------------------------- reading


def test_walking() -> None:
    graph, node, inner = with_branch(lambda g: g.inputs[0])
    assert [n.op for n in graph.walk()] == ["Relu", "If", "Neg"]
    assert [g.name for g in graph.graphs()] == ["g", "then"]
    assert inner.graph is not None
    assert inner.graph.parent is graph
    assert inner.graph.owner is node
    assert graph.encloses(inner.graph)
    assert not inner.graph.encloses(graph)
    assert inner.graph.opsets is graph.opsets
    assert [n.op for n in reversed(graph)] == ["If", "Relu"]


def test_captures_are_outer_values_only() -> None:
    graph, node, inner = with_branch(lambda g: g.inputs[0])
    assert captures(node) == [graph.inputs[0]]
    branch = inner.graph
    assert branch is not None
    deep = Graph("deep", parent=branch)
    deep.add_node("Add", [inner.out, next(iter(graph)).out])
    below = branch.add_node("If", [None], attrs={"then_branch": deep})
    assert captures(node) == [graph.inputs[0], next(iter(graph)).out]
    assert captures(below) == [inner.out, next(iter(graph)).out]


def test_value_properties() -> None:
    graph, (relu,) = chain("Relu")
    x = graph.inputs[0]
    assert (x.dtype, x.shape, x.static_shape, x.rank) == (DType.FLOAT, ("N", 3), None, 2)
    assert [x.dim(a) for a in (-3, -2, -1, 0, 1, 2)] == [None, "N", 3, "N", 3, None]
    sequence = graph.add_input("s", SequenceType(FLOAT))
    assert (sequence.dtype, sequence.shape, sequence.rank, sequence.dim(0)) == (None, None, None, None)
    graph.add_node("Mul", [x, x])
    assert [n.op for n in x.consumers] == ["Relu", "Mul"]
    assert len(x.uses) == 3
    assert (relu.input(0), relu.input(1), relu.output(1)) == (x, None, None)


@pytest.mark.parametrize("count", [1, FEW_USES, FEW_USES + 1, 3 * FEW_USES])
def test_uses_keep_their_order(count: int) -> None:
    graph = Graph()
    x = graph.add_input("x", FLOAT)
    uses = [(graph.add_node("Relu", [x]), 0) for _ in range(count)]
    assert list(x.uses) == uses
    node, _ = uses.pop(count // 2)
    graph.set_input(node, 0, None)
    assert list(x.uses) == uses
    graph.set_input(node, 0, x)
    assert list(x.uses) == [*uses, (node, 0)]
    for node in list(graph):
        graph.remove(node)
    assert not x.uses


# ---------------------------------------------------------------------- constants and names


def test_overridable_initializers_are_no_constants() -> None:
    graph = Graph()
    x = graph.add_input("w", FLOAT)
    tensor = Tensor.of(np.zeros((2, 3), np.float32))
    assert graph.add_initializer("w", tensor) is x
    assert (x.const, x.constant) == (tensor, None)
    other = graph.constant(tensor, "w")
    assert (other.name, other.constant, other.static_shape) == ("w_1", tensor, (2, 3))
    graph.prune()
    assert list(graph.initializers) == ["w"]
    graph.drop_initializer(x)
    assert x.const is None
    verify(graph)


def test_sparse_initializers() -> None:
    graph = Graph()
    sparse = SparseTensor(Tensor.of(np.ones(1, np.float32)), Tensor.of([2]), [4])
    value = graph.add_initializer("s", sparse)
    assert value.type == TensorType(DType.FLOAT, (4,))
    assert value.constant is None
    verify(graph)


def test_fresh_names_are_taken_at_once_and_in_all_graphs() -> None:
    graph, _, inner = with_branch(lambda g: g.inputs[0])
    assert inner.graph is not None
    assert [graph.fresh("x"), inner.graph.fresh("x"), graph.fresh("x"), graph.fresh("")] == [
        "x_1",
        "x_2",
        "x_3",
        "value",
    ]


def test_rename_keeps_the_initializer_findable() -> None:
    graph = Graph()
    value = graph.constant(Tensor.of([1]), "a")
    graph.rename(value, "b")
    assert graph.initializers == {"b": value}
    assert graph.fresh("b") == "b_1"


# ---------------------------------------------------------------------- replacing


def test_replace_inside() -> None:
    graph, (relu, neg, exp) = chain("Relu", "Neg", "Exp")
    graph.replace(neg.out, relu.out)
    assert exp.inputs == (relu.out,)
    graph.remove(neg)
    verify(graph)


def test_replace_reaches_subgraphs() -> None:
    graph, _, inner = with_branch(lambda g: next(iter(g)).out)
    graph.replace_uses(next(iter(graph)).out, graph.inputs[0])
    assert inner.inputs == (graph.inputs[0],)
    verify(graph)


def test_replacing_an_output_hands_its_name_over() -> None:
    graph, (relu, neg) = chain("Relu", "Neg")
    old = neg.out
    graph.replace(old, relu.out)
    assert graph.outputs == [relu.out]
    assert (relu.out.name, relu.out.is_output, old.is_output) == ("neg", True, False)
    assert old.name != "neg"
    graph.remove(neg)
    verify(graph)


@pytest.mark.parametrize("kind", ["input", "constant", "returned"])
def test_replacing_an_output_by_what_cannot_be_renamed(kind: str) -> None:
    graph, (relu, neg) = chain("Relu", "Neg")
    if kind == "returned":
        graph.set_outputs([relu.out, neg.out])
    new = {"input": graph.inputs[0], "constant": graph.constant(Tensor.of([1.0]), "c"), "returned": relu.out}[kind]
    name = new.name
    graph.replace(neg.out, new)
    result = graph.outputs[-1]
    assert result.producer is not None
    assert (result.name, result.type, result.producer.op, result.producer.inputs) == ("neg", FLOAT, "Identity", (new,))
    assert new.name == name
    graph.remove(neg)
    verify(graph)


def test_replacing_an_output_of_a_branch_by_an_outer_value() -> None:
    graph, _, inner = with_branch(lambda g: g.inputs[0])
    branch = inner.graph
    assert branch is not None
    branch.replace(inner.out, next(iter(graph)).out)
    assert [n.op for n in branch] == ["Identity", "Neg"]
    assert branch.outputs[0].graph is branch
    verify(graph)


def test_a_replacement_of_unknown_type_takes_the_type_over() -> None:
    graph, (relu, neg) = chain("Relu", "Neg")
    relu.out.type = None
    graph.replace(neg.out, relu.out)
    assert graph.outputs[0].type == FLOAT


# ---------------------------------------------------------------------- removing


def test_remove_refuses_what_is_used() -> None:
    graph, (relu, neg) = chain("Relu", "Neg")
    for node in (relu, neg):
        with pytest.raises(GraphError, match=f"output '{node.out.name}' is in use") as caught:
            graph.remove(node)
        assert caught.value.node == node.label


def test_remove_releases_what_subgraphs_read() -> None:
    graph, node, _ = with_branch(lambda g: g.inputs[0])
    graph.remove(node)
    assert list(graph.inputs[0].uses) == [(next(iter(graph)), 0)]
    verify(graph)


def test_remove_dead_follows_producers_also_of_captures() -> None:
    graph, node, _ = with_branch(lambda g: g.add_node("Exp", [g.inputs[0]]).out)
    graph.set_outputs([])
    assert graph.remove_dead(node) == 3
    assert len(graph) == 0
    assert not graph.inputs[0].uses
    verify(graph)


def test_remove_dead_stops_at_what_is_used() -> None:
    graph, (relu, _neg) = chain("Relu", "Neg")
    dead = graph.add_node("Exp", [relu.out])
    assert graph.remove_dead(relu) == 0
    assert graph.remove_dead(dead) == 1
    assert len(graph) == 2


def test_iteration_survives_changes() -> None:
    graph, nodes = chain("A", "B", "C", "D")
    graph.set_outputs([])
    seen = []
    for node in reversed(graph):
        seen.append(node.op)
        graph.remove(node)
    assert (seen, len(graph)) == (["D", "C", "B", "A"], 0)
    graph, nodes = chain("A", "B", "C")
    seen = []
    for node in graph:
        seen.append(node.op)
        if node.op == "A":
            graph.add_node("New", [], before=nodes[1])
            graph.replace(nodes[1].out, nodes[0].out)
            graph.remove(nodes[1])
    assert seen == ["A", "New", "C"]


def test_prune_looks_into_subgraphs() -> None:
    graph, _, inner = with_branch(lambda g: g.inputs[0])
    branch = inner.graph
    assert branch is not None
    graph.constant(Tensor.of([1]), "unused")
    branch.constant(Tensor.of([1]), "unused")
    used = graph.constant(Tensor.of([1]), "used")
    branch.set_input(inner, 0, used)
    returned = graph.constant(Tensor.of([1]), "returned")
    graph.set_outputs([returned])
    assert graph.prune() == 2
    assert list(graph.initializers.values()) == [used, returned]
    assert branch.initializers == {}


# ---------------------------------------------------------------------- order


def test_sort_changes_only_what_it_must() -> None:
    graph, (a, b, c, d) = chain("A", "B", "C", "D")
    free = graph.add_node("Free", [graph.inputs[0]], before=c)
    graph.sort()
    assert list(graph) == [a, b, free, c, d]
    graph.move(a, None)
    graph.sort()
    assert list(graph) == [free, a, b, c, d]


def test_sort_sees_reads_of_subgraphs() -> None:
    graph, _node, inner = with_branch(lambda g: g.inputs[0])
    late = graph.add_node("Late", [graph.inputs[0]])
    assert inner.graph is not None
    inner.graph.set_input(inner, 0, late.out)
    with pytest.raises(GraphError, match="not defined before"):
        verify(graph)
    graph.sort()
    assert [n.op for n in graph] == ["Relu", "Late", "If"]
    verify(graph)


def test_sort_finds_cycles() -> None:
    graph, (a, b) = chain("A", "B")
    graph.set_input(a, 0, b.out)
    with pytest.raises(GraphError, match="cycle") as caught:
        graph.sort()
    assert caught.value.node == a.label


# ---------------------------------------------------------------------- verify


def break_(graph: Graph, nodes: list[Node], how: str) -> None:
    a, b = nodes
    value = a.out
    if how == "order":
        graph.move(a, None)
    elif how == "use unknown to the value":
        value.uses = ()
    elif how == "use that does not exist":
        value.add_use(b, 5)
    elif how == "producer":
        value.producer = None
    elif how == "slot":
        value.index = 1
    elif how == "name twice":
        value.name = "x"
    elif how == "no name":
        value.name = ""
    elif how == "count":
        graph._count = 7
    elif how == "output mark":
        value.is_output = True
    elif how == "input mark":
        graph.inputs[0].is_input = False
    elif how == "negative dimension":
        value.retype(TensorType(DType.FLOAT, (-1,)))
    elif how == "input twice":
        graph.inputs.append(graph.inputs[0])
    elif how == "other graph":
        value.graph = Graph()
    elif how == "node of another graph":
        b.graph = Graph()
    elif how == "initializer without constant":
        graph.constant(Tensor.of([1]), "c").const = None
    elif how == "initializer under another name":
        graph.constant(Tensor.of([1]), "c").name = "d"
    elif how == "foreign subgraph":
        graph.add_node("If", [], attrs={"then": Graph()})
    elif how == "subgraph without owner":
        node = graph.add_node("If", [], attrs={"then": Graph(parent=graph)})
        node.subgraphs[0].owner = None
    elif how == "shadowing":
        sub = Graph(parent=graph)
        sub.add_node("Neg", [], ["x"])
        graph.add_node("If", [], attrs={"then": sub})
    elif how == "outer value returned":
        sub = Graph(parent=graph)
        sub.outputs.append(value)
        graph.add_node("If", [], attrs={"then": sub})
    elif how == "inner value read outside":
        sub = Graph(parent=graph)
        inner = sub.add_node("Neg", [])
        graph.add_node("If", [], attrs={"then": sub})
        graph.add_node("Neg", [inner.out])


BREAKS = [
    "order", "use unknown to the value", "use that does not exist", "producer", "slot", "name twice", "no name",
    "negative dimension", "count", "output mark", "input mark", "input twice", "other graph", "node of another graph",
    "initializer without constant", "initializer under another name", "foreign subgraph", "subgraph without owner",
    "shadowing", "outer value returned", "inner value read outside",
]  # fmt: skip


@batched
@pytest.mark.parametrize("how", BREAKS)
def test_verify_objects(how: str) -> None:
    graph, nodes = chain("A", "B")
    break_(graph, nodes, how)
    with pytest.raises(GraphError):
        verify(graph)


def test_verify_names_the_node() -> None:
    graph, nodes = chain("A", "B")
    graph.move(nodes[0], None)
    with pytest.raises(GraphError, match="B 'b': input 'a' is not defined before the node"):
        verify(graph)


# ---------------------------------------------------------------------- text


def test_text_form() -> None:
    graph, _, _ = with_branch(lambda g: g.inputs[0])
    graph.constant(Tensor.of(np.arange(9, dtype=np.float32)), "c")
    graph.set_outputs([next(iter(graph)).out])
    assert text(graph) == (
        "graph (x: float[N,3]) -> (relu)\n"
        "  c = float[9] {0, 1, 2, 3, 4, 5, 6, 7, ...}\n"
        "  relu = Relu(x) : float[N,3]\n"
        "  If_out = If(relu) : None\n"
        "    then_branch:\n"
        "    graph () -> (Neg_out)\n"
        "      Neg_out = Neg(x) : None\n"
    )


def test_text_of_attributes() -> None:
    attrs = {
        "z": 1,
        "f": 0.1,
        "s": "a\nb",
        "ints": Ints((1, 2)),
        "floats": Floats((0.5,)),
        "strings": Strings(("a", "b")),
        "t": Tensor.of(np.array([True])),
        "graphs": Graphs(),
    }
    graph = Graph()
    node = graph.add_node("Op", [None, graph.add_input("x")], ["a", None], attrs, domain="d")
    expected = "f=0.1, floats=[0.5], ints=[1, 2], s='a\\nb', strings=['a', 'b'], t=bool[1] {True}, z=1"
    assert node_text(node) == f"a, _ = d.Op<{expected}>(_, x) : None, _"
