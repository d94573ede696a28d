"""The advice on refused nodes, followed: the node is taken then, and computes the same unless the advice says otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from following import follow, graph_of
from partition_graphs import f32, i8, u8

from ortconv.partition import Target
from ortconv.partition.nnapi.rules import INSTEAD
from tests.arrays import i64
from tests.batches import sampled

F = np.float32
X = "float[1,4,8,8] x"
R5 = "float[1,2,2,2,3] x"
Q = "uint8[2,4] x"
ASYMMETRIC = 'mode = "linear", coordinate_transformation_mode = "asymmetric"'
FLOOR = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
NORM = """m = ReduceMean <axes = [{0}]> (x)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <axes = [{0}]> (q)
    e = Add (v, eps)  r = Sqrt (e)  n = Div (d, r)  t = Mul (n, k)  y = Add (t, b)"""
QMM = "y = QLinearMatMul (x, s, z, w, sw, zw, so, zo)"
QUANT = {"w": u8(4, 3), "sw": F(0.5), "zw": np.uint8(128), "so": F(0.5), "zo": np.uint8(0)}

# (what the advice says, inputs, the refused node and what follows, the same as advised, constants and options)
CASES = [
    # ranks and shapes
    ("merge dimensions with a Reshape", R5, "y = Tanh (x)", "a = Reshape (x, flat)  b = Tanh (a)  y = Reshape (b, back)",
     {"flat": i64(8, 3), "back": i64(1, 2, 2, 2, 3), "left": {"Reshape"}}),
    ("add dimensions of 1 with a Reshape", "float[2,3,4] x", "y = GlobalAveragePool (x)",
     "a = Reshape (x, to)  b = GlobalAveragePool (a)  y = Reshape (b, back)", {"to": i64(2, 3, 4, 1), "back": i64(2, 3, 1)}),
    ("give the tensor the shape [1]", "float x", "y = Sigmoid (x)", "a = Reshape (x, one)  y = Sigmoid (a)",
     {"one": i64(1), "left": {"Reshape"}}),
    ("add a dimension of 1 to image and weights", "float[1,2,6] x", "y = Conv (x, w)",
     "a = Reshape (x, to)  b = Conv (a, v)  y = Reshape (b, back)",
     {"w": f32(3, 2, 3), "v": f32(3, 2, 3, 1), "to": i64(1, 2, 6, 1), "back": i64(1, 3, 4)}),
    ("pool over 2 dimensions", "float[1,2,6] x", "y = MaxPool <kernel_shape = [2]> (x)",
     "a = Reshape (x, to)  b = MaxPool <kernel_shape = [2, 1]> (a)  y = Reshape (b, back)",
     {"to": i64(1, 2, 6, 1), "back": i64(1, 2, 5)}),
    ("add a dimension of 1 with a Reshape before", "float[1,2,6] x", f"y = Resize <{ASYMMETRIC}> (x, , s3)",
     f"a = Reshape (x, to)  b = Resize <{ASYMMETRIC}> (a, , s4)  y = Reshape (b, back)",
     {"s3": F([1, 1, 2]), "s4": F([1, 1, 2, 1]), "to": i64(1, 2, 6, 1), "back": i64(1, 2, 12)}),
    ("put it between Reshapes, from and to matrices", "float[5,2,4] x", "y = MatMul (x, k)",
     "a = Reshape (x, to)  b = MatMul (a, k)  y = Reshape (b, back)", {"k": f32(4, 3), "to": i64(10, 4), "back": i64(5, 2, 3)}),
    ("give both the same dimensions before the last 2", "float[2,5,2,4] x", "y = MatMul (x, k)", "y = MatMul (x, l)",
     {"k": f32(5, 4, 3), "l": np.stack([f32(5, 4, 3)] * 2)}),
    ("repeat the smaller one", "float[5,2,4] x", "y = MatMul (x, k)", "y = MatMul (x, l)",
     {"k": f32(1, 4, 3), "l": np.repeat(f32(1, 4, 3), 5, 0)}),
    ("add it with Add behind the Gemm", "float[2,4] x", "y = Gemm (x, k, c)", "a = Gemm (x, k)  y = Add (a, c)",
     {"k": f32(4, 3), "c": f32(2, 3)}),
    ("drop leading dimensions", "float[2,3] x", "y = PRelu (x, k)", "y = PRelu (x, l)", {"k": f32(1, 2, 3), "l": f32(2, 3)}),
    ("pad with Pad before", X, "y = Conv <pads = [3, 0, 0, 0]> (x, w)", "a = Pad (x, p)  y = Conv (a, w)",
     {"w": f32(2, 4, 3, 3), "p": i64(0, 0, 3, 0, 0, 0, 0, 0)}),
    ("write it as Slice nodes", "float[4,6] x", "y, z = Split <axis = 1> (x, parts)",
     "y = Slice (x, zero, two, one)  z = Slice (x, two, six, one)",
     {"parts": i64(2, 4), "zero": i64(0), "one": i64(1), "two": i64(2), "six": i64(6)}),
    # attributes
    ("put a Transpose before it", "float[4,2] x", "y = Gemm <transA = 1> (x, k)", "a = Transpose (x)  y = Gemm (a, k)",
     {"k": f32(4, 3)}),
    ("multiply B by alpha", "float[2,4] x", "y = Gemm <alpha = 2.0> (x, k)", "y = Gemm (x, l)",
     {"k": f32(4, 3), "l": 2 * f32(4, 3)}),
    ("multiply C by beta", "float[2,4] x", "y = Gemm <beta = 2.0> (x, k, c)", "y = Gemm (x, k, l)",
     {"k": f32(4, 3), "c": f32(3), "l": 2 * f32(3)}),
    ("write it as Max and Min", "float[2,3] x", "y = Clip (x, lo, hi)", "a = Max (x, lo)  y = Min (a, hi)",
     {"lo": F(-0.5), "hi": F(0.3)}),
    ("write it as Relu", "float[2,3] x", "y = Clip (x, lo)", "y = Relu (x)", {"lo": F(0)}),
    ("chain nodes of two inputs", "float[2,3] x", "y = Max (x, k, l)", "a = Max (x, k)  y = Max (a, l)",
     {"k": f32(2, 3) + F(0.1), "l": F(0.2)}),
    ("leave the node out", "float[2,3] x", "a = Max (x)  y = Relu (a)", "y = Relu (x)", {}),
    ("export with ceil_mode 0", X, "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)",
     "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x)", {}),
    ("pad with Pad before", X, "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> (x)",
     "a = Pad (x, p)  y = AveragePool <kernel_shape = [2, 2]> (a)", {"p": i64(0, 0, 1, 1, 0, 0, 1, 1)}),
    ("write it as Slice nodes and Concat", "float[2,4] x", 'y = Pad <mode = "reflect"> (x, p)',
     "a = Slice (x, one, two, one)  y = Concat <axis = 1> (a, x)", {"p": i64(0, 1, 0, 0), "one": i64(1), "two": i64(2)}),
    ("crop with Slice", "float[2,4] x", "y = Pad (x, p)", "y = Slice (x, one, four, one)",
     {"p": i64(0, -1, 0, 0), "one": i64(1), "four": i64(4)}),
    ("state the value", "float[2,4] x", "y = Pad (x, p, , a)", "y = Pad (x, p, v, a)",
     {"p": i64(0, 1, 0, 0), "a": i64(0, 1), "v": F(0), "opset": 18}),
    ("pad the other axes by 0", "float[2,4] x", "y = Pad (x, p, v, a)", "y = Pad (x, q)",
     {"p": i64(1, 0), "a": i64(1), "v": F(0), "q": i64(0, 1, 0, 0), "opset": 18}),
    ("reorder the channels with Gather", "float[1,8,2,2] x", 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)',
     "a = Gather <axis = 1> (x, order)  y = DepthToSpace <blocksize = 2> (a)", {"order": i64(0, 4, 1, 5, 2, 6, 3, 7)}),
    ("leave the attribute out", X, "y = ReduceMean <noop_with_empty_axes = 1> (x, a)", "y = ReduceMean (x, a)",
     {"a": i64(1), "opset": 18}),
    ("state the axes", X, "y = Slice (x, i, j, , j)", "y = Slice (x, i, j, i, j)", {"i": i64(0), "j": i64(1)}),
    ("state sizes instead of scales", X, f"y = Resize <{ASYMMETRIC}> (x, , s)", f"y = Resize <{ASYMMETRIC}> (x, , , n)",
     {"s": F([1, 1, 1, 0.5]), "n": i64(1, 4, 8, 4)}),
    ("transpose the axis to the end", X, "y = Softmax <axis = 1> (x)",
     "a = Transpose <perm = [0, 2, 3, 1]> (x)  b = Softmax <axis = 3> (a)  y = Transpose <perm = [0, 3, 1, 2]> (b)",
     {"feature_level": 28}),
    ("reshape it to a matrix", "float[2,3,4] x", "y = Softmax <axis = 2> (x)",
     "a = Reshape (x, to)  b = Softmax <axis = 1> (a)  y = Reshape (b, back)",
     {"to": i64(6, 4), "back": i64(2, 3, 4), "feature_level": 28}),
    ("asymmetric coordinates and nearest_mode floor", X, "y = Resize (x, , k)", f"y = Resize <{FLOOR}> (x, , k)",
     {"k": F([1, 1, 2, 2])}),
    ("export with asymmetric coordinates", X,
     'y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , k)',
     f"y = Resize <{ASYMMETRIC}> (x, , k)", {"k": F([1, 1, 2, 2])}),
    ("resize with mode linear", X, 'y = Resize <mode = "cubic"> (x, , k)', 'y = Resize <mode = "linear"> (x, , k)',
     {"k": F([1, 1, 2, 2])}),
    ("state the scales of all axes", X, f"y = Resize <{FLOOR}, axes = [2, 3]> (x, , k)", f"y = Resize <{FLOOR}> (x, , l)",
     {"k": F([2, 2]), "l": F([1, 1, 2, 2]), "opset": 18}),
    ("an empty name", X, f"y = Resize <{FLOOR}> (x, , e, n)", f"y = Resize <{FLOOR}> (x, , , n)",
     {"e": F([]), "n": i64(1, 4, 16, 16)}),
    ("add the size of the dimension", "float[2,6] x", "y = Gather <axis = 1> (x, i)", "y = Gather <axis = 1> (x, j)",
     {"i": i64(0, -2), "j": i64(0, 4)}),
    ("subtract Elu with alpha 0.5 of Min with 0 from Relu", "float[2,3] x", "y = Elu <alpha = -0.5> (x)",
     "a = Min (x, o)  b = Elu <alpha = 0.5> (a)  c = Relu (x)  y = Sub (c, b)", {"o": F(0)}),
    ("raise the feature level to 30", "float[2,3] x", "y = Elu (x)", "y = Elu (x)", {"feature_level": 29, "after": {}}),
    ("leave Tanh out of the stop ops", "float[2,3] x", "y = Tanh (x)", "y = Tanh (x)", {"stop_ops": ("Tanh",), "after": {}}),
    # types and quantization
    ("compute it in float32", "int32[2,3] x", "y = Mul (x, x)", "float[2,3] x => y = Mul (x, x)", {}),
    ("compute it in float32", "int64[2,3] x", "y = Mul (x, x)", "float[2,3] x => y = Mul (x, x)", {}),
    ("write masks as float32", "bool[2,3] x", "y = Concat <axis = 0> (x, x)", "float[2,3] x => y = Concat <axis = 0> (x, x)", {}),
    ("quantize activations to uint8", "int8[2,3] x", "y = DequantizeLinear (x, s, t)",
     "uint8[2,3] x => y = DequantizeLinear (x, s, u)", {"t": np.int8(3), "u": np.uint8(131)}),
    ("quantize per tensor", Q, "y = DequantizeLinear <axis = 0> (x, k, z2)", "y = DequantizeLinear (x, s, z)",
     {"k": f32(2) + 2, "z2": u8(2)}),
    ("quantize the weights symmetrically", Q, QMM, QMM,
     QUANT | {"w": i8(4, 3), "zw": np.int8(5), "after": QUANT | {"w": i8(4, 3), "zw": np.int8(0)}}),
    ("with scale 1/256 and zero point 0", Q, "y = com.microsoft.QLinearSigmoid (x, s, z, s, z)",
     "y = com.microsoft.QLinearSigmoid (x, s, z, k, o)", {"k": F(1 / 256), "o": np.uint8(0)}),
    ("input and output with the same range", "uint8[1,4,8,8] x",
     "y = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (x, s, z, k, z)",
     "y = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (x, s, z, s, z)", {"k": F(0.25)}),
    ("with a wider range", Q, "y = com.microsoft.QLinearMul (x, s, z, x, s, z, k, z)",
     "y = com.microsoft.QLinearMul (x, s, z, x, s, z, s, z)", {"k": F(0.25)}),
    ("all ends of a tensor with the same range", "float[2,3] x", "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, k, z)",
     "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)", {"k": F(0.25)}),
    ("between DequantizeLinear and QuantizeLinear", Q, "a = Transpose (x)  y = DequantizeLinear (a, s, z)",
     "d = DequantizeLinear (x, s, z)  t = Transpose (d)  a = QuantizeLinear (t, s, z)  y = DequantizeLinear (a, s, z)", {}),
    ("leave Relu unquantized", Q, "d = DequantizeLinear (x, s, z)  r = Relu (d)  y = QuantizeLinear (r, s, z)",
     "d = DequantizeLinear (x, s, z)  y = Relu (d)", {}),
    # operators
    ("Erf", "float[2,3] x", "h = Mul (x, c)  e = Erf (h)  a = Add (e, one)  p = Mul (x, a)  y = Mul (p, half)",
     """q = Mul (x, x)  w = Mul (q, x)  u = Mul (w, k)  v = Add (x, u)  i = Mul (v, c2)  t = Tanh (i)  a = Add (t, one)
        p = Mul (x, a)  y = Mul (p, half)""",
     {"c": F(0.70710678), "one": F(1), "half": F(0.5), "k": F(0.044715), "c2": F(0.7978846)}),
    ("Gelu", "float[2,3] x", "y = Gelu (x)",
     """q = Mul (x, x)  w = Mul (q, x)  u = Mul (w, k)  v = Add (x, u)  i = Mul (v, c2)  t = Tanh (i)  a = Add (t, one)
        p = Mul (x, a)  y = Mul (p, half)""",
     {"one": F(1), "half": F(0.5), "k": F(0.044715), "c2": F(0.7978846), "opset": 20}),
    ("LayerNormalization", "float[2,4,8] x", "y = LayerNormalization (x, k, b)", NORM.format(2),
     {"k": f32(8), "b": f32(8), "eps": F(1e-5), "opset": 17}),
    ("InstanceNormalization", "float[2,4,8] x", "y = InstanceNormalization (x, i, j)", NORM.format(2),
     {"i": f32(4), "j": f32(4), "k": f32(4, 1), "b": f32(4, 1), "eps": F(1e-5)}),
    ("GroupNormalization", "float[2,4,8] x", "y = GroupNormalization <num_groups = 2> (x, i, j)",
     """g = Reshape (x, to)  m = ReduceMean (g, two)  d = Sub (g, m)  q = Mul (d, d)  v = ReduceMean (q, two)  e = Add (v, eps)
        r = Sqrt (e)  n = Div (d, r)  o = Reshape (n, back)  t = Mul (o, k)  y = Add (t, b)""",
     {"i": f32(4), "j": f32(4), "k": f32(4, 1), "b": f32(4, 1), "eps": F(1e-5), "to": i64(2, 2, 16), "back": i64(2, 4, 8),
      "two": i64(2), "opset": 21}),
    ("SpaceToDepth", "float[1,1,2,4] x", "y = SpaceToDepth <blocksize = 2> (x)",
     """a = Slice (x, c00, end, all, by)  b = Slice (x, c01, end, all, by)  c = Slice (x, c10, end, all, by)
        d = Slice (x, c11, end, all, by)  y = Concat <axis = 1> (a, b, c, d)""",
     {"c00": i64(0, 0), "c01": i64(0, 1), "c10": i64(1, 0), "c11": i64(1, 1), "end": i64(9, 9), "all": i64(2, 3), "by": i64(2, 2)}),
    ("HardSigmoid", "float[2,3] x", "y = HardSigmoid (x)",
     "a = Mul (x, k)  b = Add (a, half)  c = Max (b, o)  y = Min (c, one)", {"k": F(0.2), "half": F(0.5), "o": F(0), "one": F(1)}),
    ("HardSwish", "float[2,3] x", "y = HardSwish (x)", "a = Add (x, three)  b = Clip (a, o, six)  c = Mul (b, k)  y = Mul (x, c)",
     {"three": F(3), "o": F(0), "six": F(6), "k": F(1 / 6), "opset": 14}),
    ("Mish", "float[2,3] x", "y = Mish (x)", "a = Exp (x)  b = Add (a, one)  c = Log (b)  d = Tanh (c)  y = Mul (x, d)",
     {"one": F(1), "opset": 18}),
    ("Cos", "float[2,3] x", "y = Cos (x)", "a = Add (x, k)  y = Sin (a)", {"k": F(np.pi / 2)}),
    ("LogSoftmax", "float[2,3] x", "y = LogSoftmax (x)", "a = Softmax <axis = -1> (x)  y = Log (a)", {}),
    ("Softplus", "float[2,3] x", "y = Softplus (x)", "a = Exp (x)  b = Add (a, one)  y = Log (b)", {"one": F(1)}),
    ("ConvTranspose", "float[1,2,4,4] x", "y = ConvTranspose <strides = [2, 2]> (x, k)",
     f"a = Resize <{FLOOR}> (x, , l)  y = Conv (a, w)", {"k": f32(2, 3, 2, 2), "l": F([1, 1, 2, 2]), "w": f32(3, 2, 1, 1)}),
    ("Sum", "float[2,3] x", "y = Sum (x, x, k)", "a = Add (x, x)  y = Add (a, k)", {"k": f32(2, 3)}),
    ("Mean", "float[2,3] x", "y = Mean (x, k)", "a = Add (x, k)  y = Mul (a, half)", {"k": f32(2, 3), "half": F(0.5)}),
    ("Reciprocal", "float[2,3] x", "y = Reciprocal (x)", "y = Div (one, x)", {"one": F(1)}),
    ("ReduceSum", "float[2,3] x", "y = ReduceSum (x)", "a = ReduceMean (x)  y = Mul (a, k)", {"k": F(6)}),
    ("GlobalLpPool", "float[1,2,3,3] x", "y = GlobalLpPool (x)",
     "a = Mul (x, x)  b = ReduceMean <axes = [2, 3]> (a)  c = Mul (b, k)  y = Sqrt (c)", {"k": F(9)}),
    ("ReduceL2", "float[2,3] x", "y = ReduceL2 <axes = [1]> (x)",
     "a = Mul (x, x)  b = ReduceMean <axes = [1]> (a)  c = Mul (b, k)  y = Sqrt (c)", {"k": F(3)}),
    ("Expand", "float[1,3] x", "a = Expand (x, to)  y = Add (a, k)", "y = Add (x, k)", {"to": i64(2, 3), "k": f32(2, 3)}),
    ("Where", "float[2,3] x", "y = Where (c, x, o)", "a = Mul (x, k)  y = Add (a, o)",
     {"c": np.eye(2, 3, dtype=bool), "k": np.eye(2, 3, dtype=F), "o": F(0)}),
    ("NonMaxSuppression", "float[1,6,4] x, float[1,1,6] t", "y = NonMaxSuppression (x, t)", "float[1,6,4] x => y = Relu (x)", {}),
    ("Upsample", X, "y = Upsample (x, k)", f"y = Resize <{FLOOR}> (x, , k)",
     {"k": F([1, 1, 2, 2]), "opset": 9, "after": {"k": F([1, 1, 2, 2]), "opset": 13}}),
    ("DynamicQuantizeLinear", "float[2,3] x", "y, a, b = DynamicQuantizeLinear (x)",
     "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)", {}),
    ("MatMulInteger", "uint8[2,4] x", "y = MatMulInteger (x, w)", QMM, QUANT),
    ("ConvInteger", "uint8[1,2,4,4] x", "y = ConvInteger (x, w)", "y = QLinearConv (x, s, z, w, s, z, s, z)",
     {"w": u8(3, 2, 1, 1)}),
    ("com.microsoft:QuickGelu", "float[2,3] x", "y = com.microsoft.QuickGelu <alpha = 1.0> (x)", "a = Sigmoid (x)  y = Mul (x, a)",
     {}),
    ("com.microsoft:FusedConv", X, 'y = com.microsoft.FusedConv <activation = "Relu"> (x, w)', "a = Conv (x, w)  y = Relu (a)",
     {"w": f32(2, 4, 3, 3)}),
    ("com.microsoft:FusedGemm", "float[2,4] x", 'y = com.microsoft.FusedGemm <activation = "Relu"> (x, k)',
     "a = Gemm (x, k)  y = Relu (a)", {"k": f32(4, 3)}),
    ("com.microsoft:FusedMatMul", "float[4,2] x", "y = com.microsoft.FusedMatMul <transA = 1> (x, k)",
     "a = Transpose (x)  y = MatMul (a, k)", {"k": f32(4, 3)}),
    ("com.microsoft:QLinearConcat", Q, "y = com.microsoft.QLinearConcat <axis = 0> (s, z, x, s, z, x, s, z)",
     "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (x, s, z)  c = Concat <axis = 0> (a, b)  y = QuantizeLinear (c, s, z)",
     {}),
    ("com.microsoft:QLinearSoftmax", Q, "y = com.microsoft.QLinearSoftmax <axis = 1, opset = 13> (x, s, z, k, o)",
     "a = DequantizeLinear (x, s, z)  b = Softmax <axis = 1> (a)  y = QuantizeLinear (b, k, o)",
     {"k": F(1 / 256), "o": np.uint8(0)}),
]  # fmt: skip
TARGET = ("feature_level", "stop_ops")
BY_FIXED_SHAPES = {"Shape", "ConstantOfShape", "Range"}


def test_advice_on_every_operator_is_followed():
    assert set(INSTEAD) - BY_FIXED_SHAPES == {case[0] for case in CASES} & set(INSTEAD)


@sampled(4)
@pytest.mark.parametrize(("said", "inputs", "nodes", "advised", "options"), CASES)
def test_advice_followed(said, inputs, nodes, advised, options):
    options = dict(options)
    after, left = options.pop("after", options), options.pop("left", ())
    before = graph_of(inputs, nodes, constants(options))
    inputs, _, advised = advised.rpartition(" => ") if " => " in advised else (inputs, "", advised)
    changed = graph_of(inputs, advised, constants(after))
    follow(before, target_of(options), INSTEAD.get(said, said), changed, target_of(after), left)


def target_of(options):
    return Target(**{k: v for k, v in options.items() if k in TARGET})


def constants(options):
    return {k: v for k, v in options.items() if k not in TARGET}
