"""The partitions that CoreML takes, in both formats, and the options of the target."""

from __future__ import annotations

import pytest
from partition_graphs import make, taken_ops

from ortconv.choices import COREML_FORMATS
from ortconv.errors import UsageError
from ortconv.onnxio.load import from_proto
from ortconv.partition import Target, assign, partition
from tests.arrays import i64
from tests.partition.partition_graphs import mnist

NN, MLP = COREML_FORMATS
BOTH = COREML_FORMATS


def taken(nodes: str, form: str = MLP, inputs: str = "float[2,3] x", outputs: str = "y", **options):
    names = ("coreml_version", "coreml_on_subgraphs")
    target = {k: options.pop(k) for k in names if k in options}
    return taken_ops(partition(make(inputs, nodes, outputs, **options), Target("coreml", coreml_format=form, **target)))


@pytest.mark.parametrize("form", BOTH)
def test_argmax_and_cast_go_together(form):
    assert taken("m = ArgMax (x)  y = Cast <to = 6> (m)", form) == [["ArgMax", "Cast"]]


def test_cast_needs_an_argmax_that_is_taken():
    nodes = "m = ArgMax <select_last_index = 1> (x)  y = Cast <to = 6> (m)"
    assert taken(nodes, NN, opset=12) == []
    assert taken("m = ArgMax (x)  y = Cast <to = 6> (m)  z = Cast <to = 1> (m)", NN, outputs="y z") == []
    assert taken("m = ArgMax (x)  y = Cast <to = 1> (m)", NN) == [["ArgMax"]]
    assert taken("m = ArgMax (x)  y = Cast <to = 1> (m)", MLP) == [["ArgMax", "Cast"]]
    assert taken("m = ArgMax (x)  y = Cast <to = 12> (m)", MLP) == [["ArgMax"]]


def test_bool_crosses_borders():
    nodes = "a = Cast <to = 9> (x)  b = And (a, a)  y = Where (b, f, f)"
    assert taken(nodes, inputs="int64[2] x, float[2] f") == [["Cast", "And", "Where"]]
    assert taken(nodes, inputs="int64[2] x, float[2] f", outputs="y b") == [["Cast", "And", "Where"]]
    split = "e = Exp (f)  g = Cast <to = 9> (e)  i = Not (g)  h = Where (i, e, e)  y = Exp (h)"
    assert taken(split, inputs="float[2] f") == [["Exp", "Cast"], ["Where", "Exp"]]


def test_trivial_nodes_alone_make_no_partition():
    assert taken("a = Identity (x)  b = Ceil (a)  y = Tile (b, r)", r=i64(1, 2)) == []
    assert taken("a = Identity (x)  b = Ceil (a)  y = Exp (b)") == [["Identity", "Ceil", "Exp"]]
    moves = "a = Reshape (x, r)  b = Transpose (a)  c = Unsqueeze (b, z)  d = Squeeze (c, z)  y = Cast <to = 6> (d)"
    assert taken(moves, r=i64(3, 2), z=i64(0)) == []
    assert taken("a = Flatten (x)  y = Reshape (a, r)", NN, r=i64(3, 2)) == []


def test_nodes_are_judged_one_by_one():
    nodes = "a = DequantizeLinear (q, s, z)  b = Relu (a)  y = QuantizeLinear (b, s, z)"
    assert taken(nodes, inputs="uint8[2] q") == [["Relu"]]
    assert taken(
        "n = NonMaxSuppression (b, c)  t = Cast <to = 1> (n)  y = Relu (t)", inputs="float[1,2,4] b, float[1,1,2] c"
    ) == [["Cast", "Relu"]]


@pytest.mark.parametrize("form", BOTH)
def test_mnist(form):
    graph = from_proto(mnist("basic")).graph
    result = partition(graph, Target("coreml", coreml_format=form))
    assert taken_ops(result) == [["Conv", "Relu", "MaxPool", "Conv", "Relu", "MaxPool", "Reshape", "Gemm"]]
    (part,) = result.partitions
    assert [v.name for v in part.inputs] == ["x"]
    assert part.name.startswith("CoreML_")
    assign(graph, result)
    assert {n.ep for n in graph} == {"CoreMLExecutionProvider"}


def test_fused_convolutions_are_taken_in_mlprogram_only():
    graph = from_proto(mnist("extended")).graph
    assert len(taken_ops(partition(graph, Target("coreml", coreml_format=MLP)))) == 1
    assert taken_ops(partition(graph, Target("coreml"))) == [["MaxPool"], ["MaxPool", "Reshape", "Gemm"]]


def test_old_versions_fall_back_to_neural_network():
    assert taken("y = Exp (x)", MLP, coreml_version=4) == []
    assert taken("y = Relu (x)", MLP, coreml_version=4) == [["Relu"]]
    graph = make("float[2] x", "y = Exp (x)")
    (objection,) = (
        partition(graph, Target("coreml", coreml_format=MLP, coreml_version=4)).verdicts[next(iter(graph))].objections
    )
    assert "--coreml-version 5" in objection.advice


IF = """y = If (c) <then_branch = t () => (float[2,3] u) { u = Relu (x) }, else_branch = e () => (float[2,3] v) { v = Tanh (x) }>"""


def test_subgraphs_on_request():
    graph = make("bool c, float[2,3] x", IF)
    (owner,) = graph
    for inside in owner.subgraphs:
        assert partition(inside, Target("coreml")).taken == 0
        assert partition(inside, Target("coreml", coreml_on_subgraphs=True)).taken == 1
        assert partition(inside, Target("nnapi", coreml_on_subgraphs=True)).taken == 0
    assert "--coreml-enable-on-subgraph" in partition(graph, Target("coreml")).verdicts[owner].objections[0].advice


def test_options_are_described():
    assert partition(make("float[2] x", "y = Relu (x)"), Target("coreml")).to_dict()["coreml_format"] == NN
    assert Target("coreml").label == "CoreML NeuralNetwork, version 7"
    assert Target("coreml").stop_ops == ()
    with pytest.raises(UsageError, match="'mlpackage'"):
        Target("coreml", coreml_format="mlpackage")
