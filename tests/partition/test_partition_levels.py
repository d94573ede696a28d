"""What optimization itself does to the partitions: the basic level, the extended level, and NNAPI-aware conversion."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import SCALE, ZERO, f32, i8, make, taken_ops, u8

from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.partition import Target, partition
from ortconv.pipeline import optimize
from tests.arrays import i64
from tests.batches import batched, sampled

LEVELS = (27, 28, 29, 30, 31)


def after(
    graph: Graph, level: str, feature_level: int = 31, *, aware: bool = False
) -> tuple[list[str], list[list[str]]]:
    """The operators of a graph after a level, and those of its partitions."""
    target = Target(feature_level=feature_level)
    optimize(Model(graph), level, target if aware else None)
    for node in graph:
        node.ep = ""
    return sorted(n.op for n in graph), [sorted(ops) for ops in taken_ops(partition(graph, target))]


# What is there, its constants, opset; operators after the basic level; the least feature level at which all of them are taken.
NORM = {"w": f32(8), "b": f32(8), "eps": np.float32(1e-5), "two": np.float32(2), "axes": i64(-1)}
DECOMPOSED = """m = ReduceMean <axes = [-1], keepdims = 1> (x)  d = Sub (x, m)  p = Pow (d, two)
    v = ReduceMean <axes = [-1], keepdims = 1> (p)  e = Add (v, eps)  r = Sqrt (e)  n = Div (d, r)
    t = Mul (n, w)  y = Add (t, b)"""
FOCUS = """a = Slice (x, s00, ends, hw, two)  b = Slice (x, s10, ends, hw, two)  c = Slice (x, s01, ends, hw, two)
    d = Slice (x, s11, ends, hw, two)  y = Concat <axis = 1> (a, b, c, d)"""
FOCUS_CONSTANTS = {"s00": i64(0, 0), "s10": i64(1, 0), "s01": i64(0, 1), "s11": i64(1, 1), "ends": i64(8, 8), "hw": i64(2, 3),
                   "two": i64(2, 2)}  # fmt: skip
GELU = """d = Div (x, root)  e = Erf (d)  o = Add (e, one)  m = Mul (x, o)  y = Mul (m, half)"""
GELU_CONSTANTS = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}

SCALED = {"w": f32(4, 3, 3, 3), "k": f32(4, 1, 1)}
SIX = {"lo": np.float32(0), "hi": np.float32(6)}

BASIC = {
    "conv-batchnorm": (
        "float[1,3,8,8] x", "c = Conv (x, w)  y = BatchNormalization (c, g, g, g, h)",
        {"w": f32(4, 3, 3, 3), "g": f32(4), "h": np.ones(4, np.float32)}, 13, ["Conv"], 28,
    ),
    "conv-mul": ("float[1,3,8,8] x", "c = Conv (x, w)  y = Mul (c, k)", SCALED, 13, ["Conv"], 28),
    "conv-add": ("float[1,3,8,8] x", "c = Conv (x, w)  y = Add (c, k)", SCALED, 13, ["Conv"], 28),
    "pad-conv": (
        "float[1,3,8,8] x", "p = Pad (x, pads)  y = Conv (p, w)", {"w": f32(4, 3, 3, 3), "pads": i64(0, 0, 1, 1, 0, 0, 1, 1)}, 13,
        ["Conv"], 28,
    ),
    "relu-clip": ("float[1,4] x", "r = Relu (x)  y = Clip (r, lo, hi)", SIX, 13, ["Clip"], 27),
    "matmul-add": ("float[2,8] x", "m = MatMul (x, w)  y = Add (m, b)", {"w": f32(8, 4), "b": f32(4)}, 13, ["Gemm"], 27),
    # Stacked matrices become a Gemm where a Reshape next to them takes up the one that this needs.
    "matmul-add-3d": (
        "float[2,3,8] x", "m = MatMul (x, w)  a = Add (m, b)  y = Reshape (a, rows)",
        {"w": f32(8, 4), "b": f32(4), "rows": i64(6, 4)}, 13, ["Gemm", "Reshape"], 27,
    ),
    "layer-norm-13": (
        "float[2,8] x", DECOMPOSED, NORM, 13, ["Add", "Add", "Div", "Mul", "Pow", "ReduceMean", "ReduceMean", "Sqrt", "Sub"], 29,
    ),
    "layer-norm-17": ("float[2,8] x", DECOMPOSED, NORM, 17, ["LayerNormalization"], None),
    "gelu-20": ("float[2,8] x", GELU, GELU_CONSTANTS, 20, ["Gelu"], None),
    "focus": ("float[1,3,8,8] x", FOCUS, FOCUS_CONSTANTS, 13, ["Gather", "SpaceToDepth"], None),
}  # fmt: skip


@sampled(4)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", BASIC)
def test_basic_level(name, level):
    inputs, nodes, constants, opset, expected, least = BASIC[name]
    ops, partitions = after(make(inputs, nodes, opset=opset, **constants), "basic", level)
    assert ops == expected
    whole = least is not None and level >= least
    assert (partitions == [expected]) is whole
    if least is None and name != "focus":
        assert partitions == []


# The decomposed forms are takeable as they are, so optimization costs the accelerator these nodes.
@batched
@pytest.mark.parametrize(
    ("name", "least"), [("layer-norm-13", 29), ("layer-norm-17", 29), ("focus", 28), ("conv-batchnorm", 28)]
)
@pytest.mark.parametrize("level", LEVELS)
def test_before_optimization(name, least, level):
    inputs, nodes, constants, opset, _, _ = BASIC[name]
    ops, partitions = after(make(inputs, nodes, opset=opset, **constants), "disable", level)
    assert (partitions == [ops]) is (level >= least)


def test_dynamic_matmul_add_stays_and_is_refused():
    ops, partitions = after(make("float[N,3,8] x", "m = MatMul (x, w)  y = Add (m, b)", w=f32(8, 4), b=f32(4)), "basic")
    assert (ops, partitions) == (["Add", "MatMul"], [])


def test_shared_dequantize_is_duplicated_so_that_groups_form():
    nodes = """d = DequantizeLinear (x, s, z)
        a = Add (d, k)  b = Mul (d, k)  p = QuantizeLinear (a, s, z)  q = QuantizeLinear (b, s, z)"""
    nodes = nodes.replace("a = Add (d, k)", "k1 = DequantizeLinear (c, s, z)  a = Add (d, k1)")
    nodes = nodes.replace("b = Mul (d, k)", "k2 = DequantizeLinear (c2, s, z)  b = Mul (d, k2)")
    graph = make("uint8[1,4] x, uint8[1,4] c, uint8[1,4] c2", nodes, "p q", s=SCALE, z=ZERO)
    assert sorted(n.op for n in graph).count("DequantizeLinear") == 3
    ops, partitions = after(graph, "basic")
    assert ops.count("DequantizeLinear") == 4
    assert partitions == [ops]


# Rewrites of the extended level that take nodes from NNAPI: operators after that level, and those that stay for NNAPI.
CONV = {"w": f32(4, 3, 3, 3)}
HARD = "c = Conv (x, w)  y = HardSigmoid (c)"
QDQ_PAIR = "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (w, s2, z2)"
EXTENDED = {
    "conv-relu": ("float[1,3,8,8] x", "c = Conv (x, w)  y = Relu (c)", CONV, ["FusedConv"], ["Conv", "Relu"]),
    "conv-clip": (
        "float[1,3,8,8] x", "c = Conv (x, w)  y = Clip (c, lo, hi)", {**CONV, **SIX},
        ["FusedConv"], ["Clip", "Conv"],
    ),
    "conv-leaky": ("float[1,3,8,8] x", "c = Conv (x, w)  y = LeakyRelu (c)", CONV, ["FusedConv"], ["Conv", "LeakyRelu"]),
    "conv-sigmoid": ("float[1,3,8,8] x", "c = Conv (x, w)  y = Sigmoid (c)", CONV, ["FusedConv"], ["Conv", "Sigmoid"]),
    "conv-tanh": ("float[1,3,8,8] x", "c = Conv (x, w)  y = Tanh (c)", CONV, ["FusedConv"], ["Conv", "Tanh"]),
    # HardSigmoid is the CPU's, but its Conv is not, so they stay apart.
    "conv-hardsigmoid": ("float[1,3,8,8] x", HARD, CONV, ["FusedConv"], ["Conv"]),
    "gemm-relu": ("float[2,8] x", "g = Gemm (x, w)  y = Relu (g)", {"w": f32(8, 4)}, ["FusedGemm"], ["Gemm", "Relu"]),
    "matmul-scale": (
        "float[2,3,8] x, float[2,8,4] v", "m = MatMul (x, v)  y = Mul (m, k)", {"k": np.float32(0.5)}, ["FusedMatMul"],
        ["MatMul", "Mul"],
    ),
    "transpose-matmul": (
        "float[2,8,3] x, float[2,8,4] v", "t = Transpose <perm = [0, 2, 1]> (x)  y = MatMul (t, v)", {}, ["FusedMatMul"],
        ["MatMul", "Transpose"],
    ),
    "swish": ("float[2,8] x", "g = Sigmoid (x)  y = Mul (x, g)", {}, ["QuickGelu"], ["Mul", "Sigmoid"]),
    "qdq-conv": (
        "uint8[1,3,8,8] x", f"{QDQ_PAIR}  t = Conv (a, b)  y = QuantizeLinear (t, s, z)",
        {"w": u8(4, 3, 3, 3), "s2": SCALE, "z2": ZERO}, ["QLinearConv"],
        ["Conv", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"],
    ),
    "qdq-conv-int8": (
        "uint8[1,3,8,8] x", f"{QDQ_PAIR}  t = Conv (a, b)  y = QuantizeLinear (t, s, z)",
        {"w": i8(4, 3, 3, 3), "s2": SCALE, "z2": np.int8(0)}, ["QLinearConv"],
        ["Conv", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"],
    ),
    "qdq-concat": (
        "uint8[1,8] x",
        "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (x, s, z)"
        "  t = Concat <axis = 1> (a, b)  y = QuantizeLinear (t, s, z)",
        {}, ["QLinearConcat"], ["Concat", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"],
    ),
    "qdq-softmax": (
        "uint8[1,8] x", "a = DequantizeLinear (x, s, z)  t = Softmax <axis = 1> (a)  y = QuantizeLinear (t, s2, z2)",
        {"s2": np.float32(1 / 256), "z2": np.uint8(0)}, ["QLinearSoftmax"], ["DequantizeLinear", "QuantizeLinear", "Softmax"],
    ),
}  # fmt: skip

STILL_TAKEN = frozenset({"QLinearConv"})
"""Quantized forms that NNAPI has, too."""


@pytest.mark.parametrize("name", EXTENDED)
def test_extended_level(name):
    inputs, nodes, constants, fused, kept = EXTENDED[name]
    ops, partitions = after(make(inputs, nodes, **constants), "extended")
    assert ops == fused
    assert partitions == ([fused] if fused[0] in STILL_TAKEN else [])
    ops, partitions = after(make(inputs, nodes, **constants), "extended", aware=True)
    assert partitions == [kept]
    assert set(kept) <= set(ops)
    assert "FusedConv" not in ops
