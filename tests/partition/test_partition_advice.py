"""Advice: what supporting refused nodes would change, checked by really putting supported operators there."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from partition_graphs import make

from ortconv.ir.graph import Graph
from ortconv.ir.types import DType, TensorType
from ortconv.partition import Target, partition
from ortconv.partition.advice import advise
from tests.batches import slow_except
from tests.counting import calls


def chain(ops: str) -> Graph:
    body, value = "", "x"
    for i, op in enumerate(ops.split()):
        body += f" v{i} = {op} ({value})"
        value = f"v{i}"
    return make("float[1,4] x", body, value)


def test_nothing_to_advise():
    assert advise(chain("Relu Tanh")) == []
    graph = chain("Relu Erf")
    graph.opsets[""] = 30
    assert advise(graph) == []


def test_two_nodes_join_three_partitions():
    (one, both) = sorted(advise(chain("Relu Erf Relu Erf Relu")), key=lambda m: len(m.nodes))
    assert (one.partitions_after, both.partitions_after) == (2, 1)
    assert str(both) == "rewrite 2 Erf nodes (operator): 3 partitions become 1, 2 more nodes in partitions"
    assert both.to_dict()["nodes"] == ["v1", "v3"]


def test_only_the_nodes_that_matter_are_named():
    # The last Erf splits nothing.
    best = advise(chain("Relu Erf Relu Erf"))[0]
    assert [n.out.name for n in best.nodes] == ["v1"]
    assert (best.partitions_before, best.partitions_after) == (2, 1)


def test_static_shapes_are_one_class():
    graph = make("float[N,4] x", "a = Relu (x)  y = Tanh (a)")
    (found,) = advise(graph)
    assert (found.rules, found.taken_after, found.partitions_after) == (("static-shape",), 2, 1)
    assert str(found).startswith("give static shapes to 1 Relu node, 1 Tanh node")


def test_stop_ops_are_one_class():
    graph = make("float[1,4] x", "a = Relu (x)  b = Tanh (a)  y = Neg (b)")
    found = advise(graph, Target(stop_ops=("Tanh",)))
    assert str(found[-1]).startswith("remove from the stop operators")


def test_qdq_groups_go_by_their_operator():
    graph = make(
        "uint8[1,4] x",
        """a = DequantizeLinear (x, s, z)  b = Neg (a)  c = DequantizeLinear (x, s, z)  t = Tanh (c)
           q = QuantizeLinear (t, s, z)  d = DequantizeLinear (q, s, z)  y = Add (b, d)""", "y",
    )  # fmt: skip
    (merge,) = advise(graph)
    assert str(merge).startswith(
        "rewrite 1 Tanh node (qdq): the number of partitions stays 1, 3 more nodes in partitions"
    )


def random_net(rng: random.Random) -> Graph:
    graph = Graph()
    graph.opsets[""] = 13
    type = TensorType(DType.FLOAT, (1, 4))
    values = [graph.add_input("x", type)]
    for i in range(rng.randint(3, 12)):
        op = rng.choice(("Add", "Erf"))
        read = [rng.choice(values) for _ in range(2 if op == "Add" else 1)]
        values.append(graph.add_node(op, read, [f"v{i}"], types=[type]).out)
    graph.set_outputs([v for v in values[1:] if not v.uses])
    return graph


def replaced(graph: Graph, names: set[str]) -> tuple[int, int]:
    """Partitions and nodes taken once these nodes are Tanh."""
    ops = {n: n.op for n in graph}
    for node in graph:
        if node.out.name in names:
            node.op = "Tanh"
    result = partition(graph)
    for node, op in ops.items():
        node.op = op
    return len(result.partitions), result.taken


@pytest.mark.parametrize("count", slow_except([6], (6, 15, 150)))
def test_promises_hold_and_are_the_smallest(count):
    rng = random.Random(5)
    merging = 0
    for _ in range(count):
        graph = random_net(rng)
        refused = [n.out.name for n in graph if n.op == "Erf"]
        now = replaced(graph, set())
        found = advise(graph)
        for merge in found:
            names = {n.out.name for n in merge.nodes}
            assert replaced(graph, names) == (merge.partitions_after, merge.taken_after)
            assert (merge.partitions_before, merge.taken_before) == now
            merging += merge.partitions_after < now[0]
        best = min(
            (replaced(graph, set(c))[0] for size in range(len(refused) + 1) for c in combinations(refused, size)),
            default=0,
        )
        if now[0] and best < now[0]:
            least = min(m.partitions_after for m in found)
            assert least == best
            size = next(
                size for size in range(len(refused) + 1)
                if any(replaced(graph, set(c))[0] == best for c in combinations(refused, size))
            )  # fmt: skip
            assert size == min(len(m.nodes) for m in found if m.partitions_after == best)
    assert merging > count // 5


@pytest.mark.parametrize("pairs", [30, 60])
def test_many_nodes_of_a_kind_merge_together(pairs):
    found = advise(chain("Relu Erf " * pairs + "Relu"))
    assert (found[0].partitions_after, len(found[0].nodes)) == (1, pairs)


def test_sets_too_many_to_try_all_are_thinned():
    # The last two Erf split nothing.
    found = advise(chain("Relu Erf " * 25 + "Relu Erf Erf"))
    assert (found[0].partitions_after, len(found[0].nodes)) == (1, 25)
    assert {n.out.name for n in found[0].nodes} == {f"v{2 * i + 1}" for i in range(25)}


@pytest.mark.slow
def test_the_search_is_bounded(monkeypatch):
    monkeypatch.setattr("ortconv.partition.advice.WORK_LIMIT", 20_000)

    def cost(pairs: int) -> int:
        graph = chain("Relu Erf Tanh Softsign " * pairs)
        return calls(lambda: advise(graph))

    assert cost(120) < 4 * cost(60)


def test_units_that_ask_what_is_in_the_group_are_asked_again():
    # With the second Erf supported, both inputs of the uint8 Concat come from one partition, and it is taken, too.
    graph = make(
        "float[2,2] x",
        """q = QuantizeLinear (x, s, z)  e = Erf (x)  n = Neg (x)  f = Erf (n)  g = QuantizeLinear (f, s, z)
           y = Concat <axis = 0> (q, g)""", "y e",
    )  # fmt: skip
    best = advise(graph)[0]
    assert [n.out.name for n in best.nodes] == ["f"]
    assert (best.partitions_before, best.partitions_after, best.taken_before, best.taken_after) == (2, 1, 3, 5)
