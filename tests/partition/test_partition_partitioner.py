"""partition() and assign(): gates, stop ops, dropped groups, borders, names, subgraphs."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest
from partition_graphs import f32, make, messages, mnist, node, taken_ops

from ortconv.errors import UsageError
from ortconv.ir.graph import Graph
from ortconv.ir.text import text
from ortconv.ir.types import DType, TensorType
from ortconv.onnxio.load import from_proto
from ortconv.partition import Objection, Target, assign, partition
from ortconv.partition.policy import PROVIDERS, Provider
from tests.arrays import i64
from tests.counting import calls

NNAPI = "NnapiExecutionProvider"


@pytest.mark.parametrize(
    ("nodes", "constants", "op", "reason"),
    [
        ("y = Reshape (x, shape)", {"shape": i64(2, 2)}, "Reshape", "trivial: the partition would be 1 Reshape"),
        ("y = Flatten (x)", {}, "Flatten", "trivial: the partition would be 1 Flatten"),
        ("y = Identity (x)", {}, "Identity", "trivial: the partition would be 1 Identity"),
    ],
)
def test_trivial_groups_are_dropped(nodes, constants, op, reason):
    graph = make("float[4,1] x", nodes, **constants)
    assert partition(graph).partitions == ()
    assert messages(graph, op) == [f"{reason}, which computes nothing"]


def test_groups_that_are_not_trivial_stay():
    graph = make("float[4,1] x", "a = Reshape (x, shape)  y = Reshape (a, shape)", shape=i64(2, 2))
    assert taken_ops(partition(graph)) == [["Reshape", "Reshape"]]
    assert taken_ops(partition(make("float[4,1] x", "y = Tanh (x)"))) == [["Tanh"]]
    quantized = "a = DequantizeLinear (x, s, z)  b = Reshape (a, shape)  y = QuantizeLinear (b, s, z)"
    graph = make("uint8[4,1] x", quantized, shape=i64(2, 2))
    assert taken_ops(partition(graph)) == [["DequantizeLinear", "Reshape", "QuantizeLinear"]]


def test_partition_of_constants_is_dropped():
    graph = make("float[2] x", "y = Add (k, k2)", k=f32(2), k2=f32(2))
    reason = "constant-inputs: all 2 inputs of the partition are constants: NNAPI needs 1 input that is not"
    assert messages(graph, "Add") == [reason]


def test_dropped_groups_keep_their_number():
    graph = make("float[2] x, float[2] v", "a = Neg (k)  b = Erf (a)  c = Add (b, x)", "c", k=f32(2))
    (part,) = partition(graph).partitions
    assert part.name.endswith("_1")


def test_stop_ops_exclude_what_follows():
    nodes = "a = Relu (x)  b = Tanh (a)  c = Neg (b)  d = Exp (a)  e = Add (c, d)"
    graph = make("float[2] x", nodes, "e")
    assert partition(graph).taken == 5
    result = partition(graph, Target(stop_ops=("Tanh",)))
    assert taken_ops(result) == [["Relu", "Exp"]]
    target = {"stop_ops": ("Tanh",)}
    assert messages(graph, "Tanh", **target) == ["stop-op: Tanh is a stop op"]
    for op in ("Neg", "Add"):
        assert messages(graph, op, **target) == ["stop-op: the node is downstream of the stop op Tanh 'b'"]


NMS = "n = NonMaxSuppression (x, v, k)  c = Cast <to = 1> (n)  y = Neg (x)"


def test_non_max_suppression_stops_by_default():
    graph = make("float[1,4,4] x, float[1,1,4] v", NMS, "c y", k=i64(3))
    assert messages(graph, "Cast")[0] == "stop-op: the node is downstream of the stop op NonMaxSuppression 'n'"
    assert not any(m.startswith("stop-op") for m in messages(graph, "Cast", stop_ops=()))
    assert taken_ops(partition(graph)) == [["Neg"]]


def test_all_objections_are_collected():
    graph = make("float[1,1,1,1,2] x", "y = Tanh (x)  w = LeakyRelu (y)  u = Elu (w)", "u")
    assert messages(graph, "LeakyRelu", stop_ops=("Tanh",)) == [
        "stop-op: the node is downstream of the stop op Tanh 'y'",
        "rank: input 0 'y' has rank 5: NNAPI accepts 1 to 4 here",
    ]


@pytest.mark.parametrize(("opset", "taken"), [(6, 0), (7, 1), (26, 1), (27, 0)])
def test_opset_gate(opset, taken):
    graph = make("float[2] x", "y = Relu (x)")
    graph.opsets[""] = opset
    assert partition(graph).taken == taken
    assert partition(graph, Target(use_nchw=True)).taken == 1
    if not taken:
        reason = f"opset: the model has opset {opset}: the change to NHWC layout supports 7 to 26"
        assert messages(graph, "Relu") == [reason]


IF = (
    "y = If (c) <then_branch = g1 () => (float[2] e) { e = Tanh (a) },"
    " else_branch = g2 () => (float[2] e2) { f = Neg (a) e2 = Exp (f) }>"
)


def test_subgraphs_stay_on_the_cpu():
    graph = make("bool c, float[2] x", f"a = Relu (x)  {IF}  w = Neg (y)", "w")
    assert messages(graph, "If") == ["control-flow: If and the 3 nodes in its subgraphs run on the CPU"]
    result = partition(graph)
    assert taken_ops(result) == [["Relu"], ["Neg"]]
    assert result.total == 3
    assert result.partitions[0].outputs[0].name == "a"
    body = node(graph, "If").subgraphs[0]
    assert partition(body).taken == 0
    assert messages(body, "Tanh") == ["subgraph: the graph is a body of If 'y': only the main graph is partitioned"]
    assign(graph, result)
    assert [n.ep for n in graph.walk()] == [NNAPI, "", "", "", "", NNAPI]


def test_borders():
    graph = make(
        "float[1,2] x, float[1,2] v", "a = Add (x, k)  b = Erf (a)  c = Relu (a)  d = Mul (b, c)  e = Add (d, v)", "e c",
        k=f32(1, 2),
    )  # fmt: skip
    first, second = partition(graph).partitions
    assert [v.name for v in first.inputs] == ["x", "k"]
    assert [v.name for v in first.outputs] == ["a", "c"]
    assert [v.name for v in second.inputs] == ["b", "c", "v"]
    assert [v.name for v in second.outputs] == ["e"]


def test_partition_does_not_change_the_graph_and_assign_only_sets_ep():
    graph = from_proto(mnist("basic")).graph
    before = text(graph)
    result = partition(graph, Target(stop_ops=("Reshape",)))
    assert text(graph) == before
    assign(graph, result)
    assert [n.ep for n in graph] == [NNAPI] * 6 + ["", ""]
    assert partition(graph, Target(stop_ops=("Reshape",))) == result
    assign(graph, partition(graph, Target(stop_ops=("Relu",))))
    assert [n.ep for n in graph] == [NNAPI] + [""] * 7


def test_nodes_of_another_provider_are_left_alone():
    graph = make("float[2] x", "a = Relu (x)  y = Tanh (a)")
    node(graph, "Tanh").ep = "CPUExecutionProvider"
    assert messages(graph, "Tanh") == ["assigned: Tanh 'y' is assigned to CPUExecutionProvider already"]
    assign(graph, partition(graph))
    assert [n.ep for n in graph] == [NNAPI, "CPUExecutionProvider"]
    assert partition(graph, anew=True).taken == 2


@pytest.mark.parametrize(
    ("stop_op", "hint"),
    [
        ("Cov", "did you mean Conv?"),
        ("tanh", "did you mean Tanh?"),
        ("Mnie", "did you mean Mine?"),
        ("Zzz", "without a domain"),
    ],
)
def test_stop_ops_that_are_no_operators_are_refused(stop_op, hint):
    graph = make("float[2] x", "a = other.Mine (x)  y = Tanh (a)")
    with pytest.raises(UsageError, match=f"no operator '{stop_op}'") as caught:
        partition(graph, Target(stop_ops=("Conv", stop_op)))
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("stop_op", ["Mine", "Upsample", "FusedConv", "NonMaxSuppression"])
def test_stop_ops_need_not_be_in_the_model(stop_op):
    graph = make("float[2] x", "y = Tanh (x)  z = other.Mine (y)", "z")
    assert partition(graph, Target(stop_ops=(stop_op,))).taken == 1


def test_qdq_groups_are_atomic():
    graph = make("uint8[2] x", "a = DequantizeLinear (x, s, z)  t = Tanh (a)  y = QuantizeLinear (t, s, z)")
    result = partition(graph)
    assert result.taken == 0
    assert len({v.objections for v in result.verdicts.values()}) == 1
    graph = make("uint8[2] x", "a = DequantizeLinear (x, s, z)  t = Tanh (a)  w = Neg (t)", "w")
    assert taken_ops(partition(graph)) == [["DequantizeLinear", "Tanh", "Neg"]]


@pytest.mark.parametrize(
    ("nodes", "op", "taken"),
    [
        ("q = QuantizeLinear (x, s, z)  y = Transpose (q)", "Transpose", True),
        ("q = QuantizeLinear (x, s, z)  t = Transpose (q)  y = Transpose (t)", "Transpose", True),
        ("y = Transpose (u)", "Transpose", False),
        ("e = Erf (x)  q = QuantizeLinear (e, s, z)  y = Transpose (q)", "Transpose", True),
        # Both inputs of the Concat must come from the growing partition.
        ("q = QuantizeLinear (x, s, z)  y = Concat <axis = 0> (q, u)", "Concat", False),
        # The producer is in partition 0, but the unit is asked when partition 1 grows.
        ("q = QuantizeLinear (x, s, z)  e = Erf (x)  n = Neg (x)  f = Erf (n)  g = QuantizeLinear (f, s, z)"
         "  y = Concat <axis = 0> (q, g)", "Concat", False),
        # What the Q node of a QDQ group makes is not seen as made by the group.
        ("d = DequantizeLinear (u, s, z)  t = Reshape (d, shape)  q = QuantizeLinear (t, s, z)  y = Transpose (q)",
         "Transpose", False),
    ],
)  # fmt: skip
def test_uint8_needs_a_producer_in_the_growing_partition(nodes, op, taken):
    graph = make("float[2,2] x, uint8[2,2] u", nodes, shape=i64(4, 1))
    verdict = partition(graph).verdicts[node(graph, op)]
    assert verdict.taken is taken
    assert [o.rule for o in verdict.objections] == ([] if taken else ["internal-uint8"])


def test_uint8_message():
    assert messages(make("uint8[2,2] u", "y = Transpose (u)"), "Transpose") == [
        "internal-uint8: input 0 'u' is uint8 and comes from outside of the partition: "
        "its scale and zero point are unknown"
    ]


def test_to_dict_is_json():
    graph = make("float[2] x", "a = Relu (x)  y = Erf (a)")
    document = json.loads(json.dumps(partition(graph).to_dict()))
    assert (document["nodes"], document["nodes_taken"], document["ep"]) == (2, 1, NNAPI)
    assert document["partitions"][0]["nodes"] == ["a"]
    assert document["verdicts"][1]["objections"] == [
        {
            "rule": "operator",
            "message": "NNAPI has no operation for Erf",
            "advice": "export GELU in its approximate form, by Tanh, which changes the numbers",
        }
    ]


NAME = """
import sys; sys.path.insert(0, sys.argv[1])
from partition_graphs import mnist
from ortconv.onnxio.load import from_proto
from ortconv.partition import partition
print(partition(from_proto(mnist("basic")).graph).partitions[0].name)
"""


@pytest.mark.slow
def test_names_are_the_same_in_every_process(request):
    here = str(request.path.parent)
    names = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", NAME, here],
            env={"PYTHONHASHSEED": str(seed), "PATH": ""}, capture_output=True, text=True, check=True,
            cwd=request.config.rootpath,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(names) == 1
    assert names.pop().startswith("Nnapi_")
    assert (
        partition(from_proto(mnist("basic")).graph).partitions[0].name
        != partition(from_proto(mnist("raw")).graph).partitions[0].name
    )


def test_another_provider_is_a_row_and_a_module_of_rules(monkeypatch):
    rules = ModuleType("rules_of_mine")
    rules.objections = lambda unit, target, in_group: iter([Objection("mine", "no Tanh")] if unit.op == "Tanh" else ())
    monkeypatch.setitem(sys.modules, rules.__name__, rules)
    monkeypatch.setitem(PROVIDERS, "mine", Provider("MineExecutionProvider", "Mine", rules.__name__, "Mine"))
    graph = make("float[2] x", "a = Erf (x)  b = Tanh (a)  y = Softsign (b)")
    result = partition(graph, Target("mine"))
    assert taken_ops(result) == [["Erf"], ["Softsign"]]
    assert messages(graph, "Tanh", ep="mine") == ["mine: no Tanh"]
    assert result.partitions[0].name.startswith("Mine_")
    assign(graph, result)
    assert [n.ep for n in graph] == ["MineExecutionProvider", "", "MineExecutionProvider"]


def test_bad_targets():
    with pytest.raises(UsageError, match="feature level 26"):
        Target(feature_level=26)
    with pytest.raises(UsageError, match="feature level 32"):
        Target(feature_level=32)
    with pytest.raises(UsageError, match="'tpu'"):
        Target(ep="tpu")


def chain(length: int) -> Graph:
    graph = Graph()
    graph.opsets[""] = 13
    type = TensorType(DType.FLOAT, (1, 4))
    value = graph.add_input("x", type)
    for i in range(length):
        value = graph.add_node(("Relu", "Erf", "Add")[i % 3], [value] * (1 + (i % 3 == 2)), [f"v{i}"], types=[type]).out
    graph.set_outputs([value])
    return graph


@pytest.mark.slow
def test_cost_is_linear():
    def cost(graph):
        count = calls(lambda: partition(graph))
        assert len(partition(graph).partitions) == len(graph) // 3 + 1
        return count

    assert cost(chain(3_001)) < 3 * 1.2 * cost(chain(1_001))


def test_a_scale_that_is_computed_after_the_quantized_node():
    quantized = "a = DequantizeLinear (x, s, z)  b = Tanh (a)  t = Exp (u)  y = QuantizeLinear (b, t, z)"
    found = partition(make("uint8[4,1] x, float u", quantized))
    assert [node.op for node in found.verdicts] == ["DequantizeLinear", "Tanh", "Exp", "QuantizeLinear"]
    assert taken_ops(found) == [["Exp"]]
