"""Node units: which neighborhoods are QDQ groups, and the view of their quantized inputs and outputs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from partition_graphs import SCALE, f32, i8, make, node, u8

from ortconv.partition.units import SELECTORS, units
from tests.arrays import i64
from tests.batches import batched

X = "a = DequantizeLinear (x, s, z)"
B = "b = DequantizeLinear (w, s, z)"
Q = "y = QuantizeLinear (t, s, z)"
IN = "uint8[1,4,8,8] x"
IN2 = "uint8[1,4,8,8] x, uint8[1,4,8,8] w"
Z8 = np.int8(0)
I32 = np.int32(0)
OTHER = np.float32(0.25)

# (inputs, nodes, constants, members of the unit of the target; the target is the last node that is no Q or DQ)
GROUPS = {
    "unary": (IN, f"{X} t = Relu (a) {Q}", {}, "DequantizeLinear Relu QuantizeLinear"),
    "unary other scale": (IN, f"{X} t = Relu (a) y = QuantizeLinear (t, s2, z)", {"s2": OTHER},
                          "DequantizeLinear Relu QuantizeLinear"),
    "unary other type": (IN, f"{X} t = Relu (a) y = QuantizeLinear (t, s, z8)", {"z8": Z8}, "Relu"),
    "no Q": (IN, f"{X} y = Relu (a)", {}, "Relu"),
    "no DQ": ("float[1,4] x", f"t = Relu (x) {Q}", {}, "Relu"),
    "DQ used twice": (IN, f"{X} t = Relu (a) {Q} y2 = Neg (a)", {}, "Neg"),
    "target used twice": (IN, f"{X} t = Sigmoid (a) {Q} y2 = QuantizeLinear (t, s, z)", {}, "Sigmoid"),
    "drop-QDQ": (IN, f"{X} t = Transpose (a) {Q}", {}, "DequantizeLinear Transpose QuantizeLinear"),
    "drop-QDQ reshape": (IN, f"{X} t = Reshape (a, shape) {Q}", {"shape": i64(4, 64)},
                         "DequantizeLinear Reshape QuantizeLinear"),
    "drop-QDQ other scale": (IN, f"{X} t = Transpose (a) y = QuantizeLinear (t, s2, z)", {"s2": OTHER}, "Transpose"),
    "drop-QDQ no zero point": (IN, "a = DequantizeLinear (x, s) t = Transpose (a) y = QuantizeLinear (t, s)", {},
                               "Transpose"),
    "drop-QDQ computed scale": (f"{IN}, float s2", f"a = DequantizeLinear (x, s2, z) t = Transpose (a) {Q}", {},
                                "Transpose"),
    "max pool 12": (IN, f"{X} t = MaxPool <kernel_shape = [2, 2]> (a) {Q}", {},
                    "DequantizeLinear MaxPool QuantizeLinear"),
    "binary": (IN2, f"{X} {B} t = Add (a, b) {Q}", {}, "DequantizeLinear DequantizeLinear Add QuantizeLinear"),
    "binary one DQ": (f"{IN}, float[1,4,8,8] b", f"{X} t = Add (a, b) {Q}", {}, "Add"),
    "binary types differ": (f"{IN}, int8[1,4,8,8] w",
                            f"{X} b = DequantizeLinear (w, s, z8) t = Add (a, b) {Q}", {"z8": Z8}, "Add"),
    "variadic": (IN2, f"{X} {B} t = Concat <axis = 0> (a, b) {Q}", {},
                 "DequantizeLinear DequantizeLinear Concat QuantizeLinear"),
    "variadic partly": (f"{IN}, float[1,4,8,8] b", f"{X} t = Concat <axis = 0> (a, b) {Q}", {}, "Concat"),
    "split": (IN, f"{X} t, t2 = Split <axis = 1> (a) {Q} y2 = QuantizeLinear (t2, s, z)", {},
              "DequantizeLinear Split QuantizeLinear QuantizeLinear"),
    "split partly": (IN, f"{X} t, t2 = Split <axis = 1> (a) {Q} y2 = Neg (t2)", {}, "Neg"),
    "conv": (IN, f"{X} {B} t = Conv (a, b) {Q}", {"w": u8(2, 4, 3, 3)},
             "DequantizeLinear DequantizeLinear Conv QuantizeLinear"),
    "conv bias": (IN, f"{X} {B} c = DequantizeLinear (bias, s, zb) t = Conv (a, b, c) {Q}",
                  {"w": u8(2, 4, 3, 3), "bias": np.zeros(2, np.int32), "zb": I32},
                  "DequantizeLinear DequantizeLinear DequantizeLinear Conv QuantizeLinear"),
    "conv uint8 bias": (IN, f"{X} {B} c = DequantizeLinear (bias, s, z) t = Conv (a, b, c) {Q}",
                        {"w": u8(2, 4, 3, 3), "bias": u8(2)}, "Conv"),
    "conv float bias": (IN, f"{X} {B} t = Conv (a, b, c) {Q}", {"w": u8(2, 4, 3, 3), "c": f32(2)}, "Conv"),
    "conv int8 x uint8": ("int8[1,4,8,8] x",
                          f"a = DequantizeLinear (x, s, z8) {B} t = Conv (a, b) y = QuantizeLinear (t, s, z8)",
                          {"w": u8(2, 4, 3, 3), "z8": Z8}, "Conv"),
    "conv int8": ("int8[1,4,8,8] x",
                  "a = DequantizeLinear (x, s, z8) b = DequantizeLinear (w, s, z8) t = Conv (a, b) "
                  "y = QuantizeLinear (t, s, z8)",
                  {"w": i8(2, 4, 3, 3), "z8": Z8}, "DequantizeLinear DequantizeLinear Conv QuantizeLinear"),
    "matmul": (IN2, f"{X} {B} t = MatMul (a, b) {Q}", {}, "DequantizeLinear DequantizeLinear MatMul QuantizeLinear"),
    "matmul float out": (IN2, f"{X} {B} y = MatMul (a, b)", {}, "MatMul"),
    "matmul int8 x uint8": (f"int8[1,4,8,8] x, {IN2.replace(IN + ', ', '')}",
                            f"a = DequantizeLinear (x, s, z8) {B} t = MatMul (a, b) y = QuantizeLinear (t, s, z8)",
                            {"z8": Z8}, "MatMul"),
    "gemm int8 x uint8": ("int8[2,4] x", f"a = DequantizeLinear (x, s, z8) {B} y = Gemm (a, b)",
                          {"w": u8(4, 3), "z8": Z8}, "Gemm"),
    "gemm": ("uint8[2,4] x", f"{X} {B} t = Gemm (a, b) {Q}", {"w": u8(4, 3)},
             "DequantizeLinear DequantizeLinear Gemm QuantizeLinear"),
    "gemm float out": ("uint8[2,4] x", f"{X} {B} y = Gemm (a, b)", {"w": u8(4, 3)},
                       "DequantizeLinear DequantizeLinear Gemm"),
    "gemm beta": ("uint8[2,4] x", f"{X} {B} c = DequantizeLinear (bias, s, zb) t = Gemm <beta = 2.0> (a, b, c) {Q}",
                  {"w": u8(4, 3), "bias": np.zeros(3, np.int32), "zb": I32}, "Gemm"),
    "arg max": (IN, f"{X} y = ArgMax (a)", {}, "DequantizeLinear ArgMax"),
    "arg max no zero point": (IN, "a = DequantizeLinear (x, s) y = ArgMax (a)", {}, "ArgMax"),
    "arg max computed scale": (f"{IN}, float s2", "a = DequantizeLinear (x, s2, z) y = ArgMax (a)", {}, "ArgMax"),
    "drop-QDQ relu": (IN, f"{X} r = Transpose (a) t = Relu (r) {Q}", {}, "Relu"),
    "split relu": (IN, f"{X} r = Split (a) t = Relu (r) {Q}", {}, "Relu"),
    "relu of a returned value": (IN, f"{X} y2 = Sigmoid (a) t = Relu (y2) {Q}", {}, "Relu"),
    "hard sigmoid": (IN, f"{X} t = HardSigmoid (a) {Q}", {}, "DequantizeLinear HardSigmoid QuantizeLinear"),
    "layer norm": (IN, f"{X} {B} t = LayerNormalization (a, b) {Q}", {"w": u8(8)},
                   "DequantizeLinear DequantizeLinear LayerNormalization QuantizeLinear"),
    "layer norm uint8 bias": (IN, f"{X} {B} c = DequantizeLinear (bias, s, z) t = LayerNormalization (a, b, c) {Q}",
                              {"w": u8(8), "bias": u8(8)}, "LayerNormalization"),
    "top k": (IN, f"{X} t, i = TopK (a, k) {Q}", {"k": i64(2)}, "DequantizeLinear TopK QuantizeLinear"),
    "where": (f"bool[1] c, {IN2}", f"{X} {B} t = Where (c, a, b) {Q}", {},
              "DequantizeLinear DequantizeLinear Where QuantizeLinear"),
    "pad": (IN, f"{X} t = Pad (a, p) {Q}", {"p": i64(*[0] * 8)}, "DequantizeLinear Pad QuantizeLinear"),
    "equal": (IN2, f"{X} {B} y = Less (a, b)", {}, "DequantizeLinear DequantizeLinear Less"),
    "no selector": (IN, f"{X} t = Identity (a) {Q}", {}, "Identity"),
    "batch norm": (IN, "a = DequantizeLinear (x, s, z) b = DequantizeLinear (w, s, z) c = DequantizeLinear (w, s, z) "
                   f"t = BatchNormalization (a, b, c, m, m) {Q}", {"w": u8(4), "m": f32(4)},
                   "DequantizeLinear DequantizeLinear DequantizeLinear BatchNormalization QuantizeLinear"),
}  # fmt: skip


@batched
@pytest.mark.parametrize("name", GROUPS)
def test_members_of_the_unit_of_a_target(name):
    inputs, nodes, constants, expected = GROUPS[name]
    outputs = [name for name in ("y", "y2") if re.search(rf"\b{name} = ", nodes)]
    graph = make(inputs, nodes, " ".join(outputs), **constants)
    found = units(graph)
    last = [n for n in graph if not n.op.endswith("QuantizeLinear") and n.op != "DequantizeLinear"][-1]
    unit = next(u for u in found if u.target is last)
    assert " ".join(n.op for n in unit.nodes) == expected
    assert sorted(n.name or n.outputs[0].name for u in found for n in u.nodes) == sorted(
        n.name or n.outputs[0].name for n in graph
    )


@pytest.mark.parametrize("opset", [10, 11])
def test_old_max_pool_is_no_target(opset):
    graph = make(IN, f"{X} t = MaxPool <kernel_shape = [2, 2]> (a) {Q}", opset=opset)
    assert [len(u.nodes) for u in units(graph)] == [1, 1, 1]


@pytest.mark.parametrize("output", ["a", "t"])
def test_inner_graph_output_breaks_the_group(output):
    graph = make(IN, f"{X} t = Relu (a) {Q}", f"y {output}")
    assert all(not u.is_group for u in units(graph))


def test_a_subgraph_that_reads_the_dq_breaks_the_group():
    body = (
        "o = If (c) <then_branch = g1 () => (float e) { e = Identity (a) },"
        " else_branch = g2 () => (float e2) { e2 = Neg (a) }>"
    )
    graph = make(f"bool c, {IN}", f"{X} t = Relu (a) {Q} {body}", "y o")
    assert all(not u.is_group for u in units(graph))


CLIPS = [
    ("r = Relu (t)", np.uint8(0), OTHER, True),
    ("r = Relu (t)", np.uint8(1), OTHER, False),
    ("r = Clip (t, lo, hi)", np.uint8(0), np.float32(6 / 255), True),
    ("r = Clip (t, lo, hi)", np.uint8(0), np.float32(6.1 / 255), False),
    ("r = Clip (t, lo)", np.uint8(0), OTHER, True),
    ("r = Clip (t, lo)", np.uint8(9), OTHER, False),
    ("r = Clip (t, lo, hi)", np.uint8(0), np.float32(6.003 / 255), True),
    ("r = Clip (t, lo, hi)", np.uint8(0), np.float32(6.02 / 255), False),
    ("r = Clip (t, lo, hi)", np.uint8(0), np.array([5.9 / 255], np.float32), False),
    ("r = Clip (t, lo, hi)", np.int8(-128), np.float32(6 / 255), True),
    ("r = Clip (t, lo)", np.int8(-128), OTHER, True),
    ('r = Clip (t, "", hi)', np.uint8(0), np.float32(6 / 255), True),
    ('r = Clip (t, "", hi)', np.int8(-128), np.float32(6 / 255), False),
    ("r = Clip (t)", np.uint8(128), OTHER, False),
    ("r = Clip (t, lo, nan)", np.uint8(0), OTHER, False),
    ("r = Sigmoid (t)", np.uint8(0), OTHER, False),
]


@pytest.mark.parametrize(("clip", "zero", "scale", "folded"), CLIPS)
def test_redundant_clip_joins_the_group(clip, zero, scale, folded):
    signed = zero.dtype == np.int8
    nodes = f"{X} {B} t = Conv (a, b) {clip} y = QuantizeLinear (r, s2, z2)".replace(
        ", z)", ", z3)" if signed else ", z)"
    )
    bounds = {"lo": np.float32(0), "hi": np.float32(6), "nan": np.float32("nan")}
    weights = i8(2, 4, 3, 3) if signed else u8(2, 4, 3, 3)
    graph = make(IN.replace("uint8", zero.dtype.name), nodes, **bounds, w=weights, s2=scale, z2=zero, z3=Z8)
    unit = next(u for u in units(graph) if u.op == "Conv")
    assert len(unit.nodes) == (5 if folded else 1)
    if folded:
        assert unit.outputs[0].value.name == "y"
        assert unit.nodes[3] is node(graph, clip.split()[2])


def names(operand):
    return None if operand is None else tuple(None if v is None else v.name for v in operand)


@pytest.mark.parametrize(
    ("inputs", "nodes", "op", "view_in", "view_out"),
    [
        (IN, f"{X} t = Reshape (a, shape) {Q}", "Reshape",
         [("x", "s", "z"), ("shape", None, None)], [("y", "s", "z")]),
        (IN, "a = DequantizeLinear (x, s) y = Neg (a)", "DequantizeLinear", [("x", "s", None)],
         [("a", None, None)]),
        ("float[2] x", "y = QuantizeLinear (x, s, z)", "QuantizeLinear", [("x", None, None)],
         [("y", "s", "z")]),
        (IN, "y = QLinearConv (x, s, z, w, s2, z2, s3, z3, bias)", "QLinearConv",
         [("x", "s", "z"), ("w", "s2", "z2"), ("bias", None, None)], [("y", "s3", "z3")]),
        (IN2, "y = com.microsoft.QLinearAdd (x, s, z, w, s2, z2, s3, z3)", "QLinearAdd",
         [("x", "s", "z"), ("w", "s2", "z2")], [("y", "s3", "z3")]),
        (IN, "y = com.microsoft.QLinearSigmoid (x, s, z, s3, z3)", "QLinearSigmoid", [("x", "s", "z")],
         [("y", "s3", "z3")]),
    ],
)  # fmt: skip
def test_views(inputs, nodes, op, view_in, view_out):
    constants = {
        "shape": i64(4, 64), "w": u8(2, 4, 3, 3), "s2": SCALE, "z2": np.uint8(0), "s3": SCALE, "z3": np.uint8(0),
        "bias": np.zeros(2, np.int32),
    }  # fmt: skip
    if "uint8[1,4,8,8] w" in inputs:
        del constants["w"]
    unit = next(u for u in units(make(inputs, nodes, **constants)) if u.op == op)
    assert [names(o) for o in unit.inputs] == view_in
    assert [names(o) for o in unit.outputs] == view_out


def test_every_operator_has_one_selector():
    ops = [op for selector in SELECTORS for op in selector.ops]
    assert len(ops) == len(set(ops))
