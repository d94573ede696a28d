"""What ONNX Runtime's own tests expect of its NNAPI provider, and the documented MNIST example."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import SCALE, f32, i8, make, messages, mnist, taken_ops, u8

from ortconv.ir.types import DType, TensorType
from ortconv.onnxio.load import from_proto
from ortconv.partition import Target, partition
from tests.arrays import i64

LEVELS = (27, 28, 29, 30, 31)


def counts(graph, **target):
    """(taken nodes, all nodes, partitions)"""
    result = partition(graph, Target(**target))
    return result.taken, result.total, len(result.partitions)


def qdq(body: str, *, inputs: str = "uint8[1,3,64,64] x", out: str = "s, z", **constants):
    """One operator `t = ...` that reads `a` (and `b` from w), between DQ and Q nodes."""
    pre = "a = DequantizeLinear (x, s, z)"
    if " b" in body.replace("(b", "( b"):
        pre += " b = DequantizeLinear (w, sw, zw)"
    constants = {"sw": SCALE, "zw": np.uint8(0), **constants}
    return make(inputs, f"{pre} {body} y = QuantizeLinear (t, {out})", **constants)


def test_reshape_and_flatten_are_one_partition():
    graph = make(
        "float[2,1,2] x, float[3,2,2] v",
        """a = Flatten (x)  b = MatMul (a, w)  c = Reshape (b, s1)
           d = Reshape (v, s2)  e = Gemm (d, k)  f = Flatten <axis = 0> (e)  y = Add (c, f)""",
        w=f32(2, 3), s1=i64(1, 6), s2=i64(3, 4), k=f32(4, 2),
    )  # fmt: skip
    assert counts(graph) == (7, 7, 1)


def test_sigmoid_of_rank_5():
    assert counts(make("float[1,1,1,1,2] x", "y = Sigmoid (x)")) == (0, 1, 0)


def test_only_what_follows_a_dynamic_resize_is_static():
    graph = make(
        "float[1,1,N,N] x",
        'r = Resize <mode = "cubic"> (x, , , sizes)  y = Add (r, k)',
        sizes=i64(1, 1, 3, 3), k=f32(1, 1, 3, 3),
    )  # fmt: skip
    assert taken_ops(partition(graph)) == [["Add"]]


def test_uint8_inside_of_a_partition():
    graph = make(
        "float[1,1,1,3] x",
        """q = QuantizeLinear (x, big, z0)  c = Concat <axis = -2> (q, q)
           m = MaxPool <kernel_shape = [2, 2]> (c)  t = Transpose <perm = [0, 1, 3, 2]> (m)
           y = DequantizeLinear (t, big, z0)""",
        big=np.float32(256), z0=np.uint8(0),
    )  # fmt: skip
    assert counts(graph) == (5, 5, 1)


def test_two_adds():
    assert counts(make("float[1,1,3,2] x, float[1,1,3,2] v", "a = Add (x, v)  y = Add (a, x)")) == (2, 2, 1)


def test_input_without_shape():
    graph = make("float[2] x", "y = Relu (x)")
    graph.inputs[0].type = TensorType(DType.FLOAT)
    assert counts(graph) == (0, 1, 0)
    assert messages(graph, "Relu") == ["static-shape: the shape of 'x' is unknown: NNAPI needs every dimension"]


def test_qdq_conv():
    graph = qdq("t = Conv (a, b)", inputs="uint8[1,1,5,5] x", w=u8(1, 1, 3, 3))
    assert counts(graph) == (4, 4, 1)


LINEAR = 'mode = "linear", coordinate_transformation_mode = "asymmetric"'


@pytest.mark.parametrize("level", LEVELS)
def test_qdq_resize_nchw(level):
    graph = qdq(f"t = Resize <{LINEAR}> (a, , , sizes)", sizes=i64(1, 3, 32, 32))
    assert counts(graph, feature_level=level)[0] == (3 if level >= 29 else 0)


def test_qdq_resize_nhwc():
    graph = qdq(f"t = Resize <{LINEAR}> (a, , , sizes)", inputs="uint8[1,64,64,3] x", sizes=i64(1, 32, 32, 3))
    assert counts(graph) == (3, 3, 1)


def test_qdq_resize_with_default_attributes():
    assert counts(qdq("t = Resize (a, , , sizes)", sizes=i64(1, 3, 32, 32)))[0] == 0


ALL = [
    ("t = AveragePool <kernel_shape = [3, 3]> (a)", "uint8[1,3,64,64] x", {}),
    ("t = Add (a, b)", "uint8[1,23,13,13] x, uint8[1,23,13,13] w", {}),
    ("t = Mul (a, b)", "uint8[1,23,13,13] x, uint8[1,23,13,13] w", {}),
    ("t = Transpose <perm = [0, 2, 3, 1]> (a)", "uint8[1,3,8,8] x", {}),
    ("t = Reshape (a, shape)", "uint8[1,3,8,8] x", {"shape": i64(64, 3)}),
    ("t = Gemm (a, b)", "uint8[2,4] x", {"w": u8(4, 3)}),
    ("t = Gemm <transB = 1> (a, b)", "uint8[2,4] x", {"w": u8(3, 4)}),
    ("t = MatMul (a, b)", "uint8[2,4] x", {"w": u8(4, 3)}),
    ("t = MatMul (a, b)", "uint8[2,4] x", {"w": i8(4, 3), "zw": np.int8(0)}),
]


@pytest.mark.parametrize(("body", "inputs", "constants"), ALL)
def test_qdq_operators_are_taken_whole(body, inputs, constants):
    taken, total, partitions = counts(qdq(body, inputs=inputs, **constants))
    assert (taken, partitions) == (total, 1)


@pytest.mark.parametrize(("scale", "zero", "taken"), [(1 / 256, 0, 3), (0.002, 1, 0)])
def test_qdq_softmax(scale, zero, taken):
    graph = qdq("t = Softmax (a)", inputs="uint8[1,5] x", out="so, zo", so=np.float32(scale), zo=np.uint8(zero))
    assert counts(graph)[0] == taken


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("equal", [True, False])
def test_qdq_concat(equal, level):
    graph = make(
        "uint8[1,6] x, float[1,6] e, float[1,6] f",
        """v = QuantizeLinear (e, s, z)  w = QuantizeLinear (f, s2, z)
           a = DequantizeLinear (x, s, z)  b = DequantizeLinear (v, s, z)  c = DequantizeLinear (w, s2, z)
           t = Concat <axis = 1> (a, b, c)  y = QuantizeLinear (t, s, z)""",
        s2=SCALE if equal else np.float32(0.25),
    )
    assert counts(graph, feature_level=level)[0] == (7 if level >= 29 else 0)


@pytest.mark.parametrize("level", LEVELS)
def test_qdq_concat_of_one_value(level):
    nodes = "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (x, s, z)  t = Concat <axis = 1> (a, b)"
    graph = make("uint8[1,6] x", f"{nodes}  y = QuantizeLinear (t, s, z)")
    assert counts(graph, feature_level=level)[0] == 4


def test_operator_on_an_initializer_only():
    result = partition(make("float[2] x", "c = Cast <to = 6> (k)  y = Cast <to = 6> (x)", "c y", k=f32(2)))
    assert taken_ops(result) == [["Cast", "Cast"]]
    result = partition(make("float[2] x", "y = Cast <to = 6> (k)", "y", k=f32(2)))
    assert taken_ops(result) == []


@pytest.mark.parametrize("indices", [np.int64(3), i64(1, 2)])
def test_gather(indices):
    assert counts(make("float[10,5,5] x", "y = Gather <axis = 0> (x, i)", i=indices)) == (1, 1, 1)


# ---------------------------------------------------------------------- MNIST


def split(level: str, *stop_ops: str) -> list[list[str]]:
    return taken_ops(partition(from_proto(mnist(level)).graph, Target(stop_ops=stop_ops)))


def test_mnist_basic_is_taken_whole():
    assert split("basic") == [["Conv", "Relu", "MaxPool", "Conv", "Relu", "MaxPool", "Reshape", "Gemm"]]


def test_mnist_basic_up_to_reshape():
    assert split("basic", "Reshape") == [["Conv", "Relu", "MaxPool", "Conv", "Relu", "MaxPool"]]


def test_mnist_extended_leaves_single_pools():
    assert split("extended", "Reshape") == [["MaxPool"], ["MaxPool"]]
    assert split("extended") == [["MaxPool"], ["MaxPool", "Reshape", "Gemm"]]


def test_activation_outside_of_the_partition():
    assert split("basic", "Relu") == [["Conv"]]


def test_mnist_as_exported():
    # The product with the reshaped weights has no constant B yet, so its Add starts a second partition.
    first, second = split("raw")
    assert (len(first), second) == (10, ["Add"])
    assert split("raw", "Reshape") == [["Conv", "Add", "Relu", "MaxPool", "Conv", "Add", "Relu", "MaxPool"]]


def test_a_size_that_data_decide_is_nothing_to_fix():
    nodes = "n = NonZero (x)  c = Cast <to = 1> (n)  y = Relu (c)"
    assert "only the CPU" in advice(make("float[2,3] x", nodes), "Relu", "static-shape")
    assert "--fix-dim" in advice(make("float[2,N] x", nodes), "Relu", "static-shape")


@pytest.mark.parametrize("ep", ["nnapi", "coreml"])
def test_integers_of_fixed_shapes_do_not_fold(ep):
    assert "float32" in advice(make("int64[2] x", "y = Mul (x, x)"), "Mul", "dtype", ep)
    assert "--fix-dim" in advice(make("int64[N] x", "y = Mul (x, x)"), "Mul", "dtype", ep)


def test_dequantized_weights_of_a_unit_with_a_float_bias():
    nodes = (
        "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (w, sw)  t = Gemm (a, b, k)  y = QuantizeLinear (t, s, z)"
    )
    graph = make("uint8[2,2] x", nodes, w=i8(2, 2), sw=SCALE, k=f32(2), s=SCALE, z=np.uint8(3))
    assert "--use-nnapi quantizes a float bias" in advice(graph, "Gemm", "constant")
    assert "fold the nodes" in advice(graph, "Gemm", "constant", "coreml")


def advice(graph, op, rule, ep="nnapi"):
    node = next(n for n in graph if n.op == op)
    (found,) = [o for o in partition(graph, Target(ep)).verdicts[node].objections if o.rule == rule]
    return found.advice
