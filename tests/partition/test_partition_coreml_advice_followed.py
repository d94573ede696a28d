"""The advice on nodes that CoreML refuses, followed: the node is taken then, and computes the same unless the advice says else."""

from __future__ import annotations

import re

import numpy as np
import pytest
from following import follow, graph_of
from partition_graphs import f32, u8

from ortconv.choices import COREML_FORMATS
from ortconv.partition import Target
from ortconv.partition.coreml.rules import INSTEAD
from tests.arrays import i64
from tests.batches import sampled

F = np.float32
NN, MLP = COREML_FORMATS
X = "float[1,4,8,8] x"
V = "float[2,3] x"
Q = "uint8[2,4] x"
ASYMMETRIC = 'mode = "linear", coordinate_transformation_mode = "asymmetric"'
FLOOR = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
FLOAT_PRODUCT = "float[2,4] x => y = MatMul (x, w)"

# (what the advice says, format, inputs, the refused node and what follows, the same as advised, constants and options)
CASES = [
    # shapes
    ("merge dimensions, to 5", NN, "float[1,2,1,2,2,3] x", "y = Tanh (x)",
     "float[2,2,2,3] x => y = Tanh (x)", {}),
    ("merge dimensions with a Reshape", NN, "float[5,2,4] x", "y = MatMul (x, k)",
     "a = Reshape (x, to)  b = MatMul (a, k)  y = Reshape (b, back)", {"k": f32(4, 3), "to": i64(10, 4), "back": i64(5, 2, 3)}),
    ("add dimensions of 1 with a Reshape", NN, "float[2,3,4] x", "y = GlobalAveragePool (x)",
     "a = Reshape (x, to)  b = GlobalAveragePool (a)  y = Reshape (b, back)", {"to": i64(2, 3, 4, 1), "back": i64(2, 3, 1)}),
    ("part it into several tensors", MLP, "float[1,1,32768] x", "y = Conv (x, k)",
     "a, b = Split <axis = 2> (x)  c = Conv (a, k)  d = Conv (b, k)  y = Concat <axis = 2> (c, d)", {"k": f32(1, 1, 1)}),
    ("give the graph inputs fixed shapes", NN, "float[2,N] x", "y = Softmax (x)",
     "float[2,3] x => y = Softmax (x)", {"numbers": False, "opset": 11}),
    # types
    ("--coreml-format MLProgram", NN, "float16[2,3] x", "y = Relu (x)", "y = Relu (x)", {"after": {"form": MLP}}),
    ("export the model in float32", NN, "double[2,3] x", "y = Relu (x)", "float[2,3] x => y = Relu (x)", {}),
    ("leave the operator unquantized", NN, "uint8[1,1,2,3] x", "y = MaxPool <kernel_shape = [1, 1]> (x)",
     "float[1,1,2,3] x => y = MaxPool <kernel_shape = [1, 1]> (x)", {"numbers": False}),
    ("compute it in float32", NN, "int64[2,3] x", "y = Mul (x, x)", "float[2,3] x => y = Mul (x, x)", {}),
    ("write masks as float32", NN, "bool[1,3,2,2] x", "y = Concat <axis = 1> (x, x)",
     "float[1,3,2,2] x => y = Concat <axis = 1> (x, x)", {}),
    # constants, attributes and outputs
    ("fold the nodes that compute it", NN, "float[2,4] x, float[4,3] w", "a = Relu (w)  y = MatMul (x, a)",
     "float[2,4] x => y = MatMul (x, k)", {"k": np.maximum(f32(4, 3), 0), "numbers": False}),
    ("drop the outputs", NN, X, "y, i = MaxPool <kernel_shape = [2, 2]> (x)", "y = MaxPool <kernel_shape = [2, 2]> (x)", {}),
    ("export with ceil_mode 0", NN, X, "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)",
     "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x)", {}),
    ("--coreml-format MLProgram", NN, V, "y = Exp (x)", "y = Exp (x)", {"after": {"form": MLP}}),
    ("--coreml-version 5", MLP, V, "y = Exp (x)", "y = Exp (x)", {"version": 4, "after": {"form": MLP}}),
    ("--coreml-version 6", MLP, "float16[4] x", "e = Exp (x)  y = Tile (e, r)", "e = Exp (x)  y = Tile (e, r)",
     {"r": i64(2), "version": 5, "after": {"r": i64(2), "form": MLP, "version": 6}}),
    ("to opset 10 or newer", NN, "float[4,4] x", "y = Slice <starts = [0], ends = [2]> (x)", "y = Slice (x, a, b)",
     {"opset": 9, "after": {"a": i64(0), "b": i64(2)}}),
    # convolutions, products
    ("leave it in parts", MLP, f"{X}, float[1,2,6,6] z", 'y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b, z)',
     "c = Conv (x, w, b)  a = Add (c, z)  y = Relu (a)", {"w": f32(2, 4, 3, 3), "b": f32(2)}),
    ("pad equally and crop with Slice", MLP, X, "y = ConvTranspose <pads = [0, 0, 1, 1]> (x, w)",
     "a = ConvTranspose (x, w)  y = Slice (a, starts, ends, axes)",
     {"w": f32(4, 2, 3, 3), "starts": i64(0, 0), "ends": i64(9, 9), "axes": i64(2, 3)}),
    ("pad the result with Pad", MLP, X, "y = ConvTranspose <strides = [2, 2], output_padding = [1, 1]> (x, w)",
     "a = ConvTranspose <strides = [2, 2]> (x, w)  y = Pad (a, p)", {"w": f32(4, 2, 2, 2), "p": i64(0, 0, 0, 0, 0, 0, 1, 1)}),
    ("state pads instead", MLP, X, "y = ConvTranspose <strides = [2, 2], output_shape = [16, 16]> (x, w)",
     "y = ConvTranspose <strides = [2, 2], pads = [0, 0, 0, 0]> (x, w)", {"w": f32(4, 2, 2, 2)}),
    ("add it with Add", NN, "float[2,4] x", "y = Gemm (x, k, c)", "a = Gemm (x, k)  y = Add (a, c)",
     {"k": f32(4, 3), "c": f32(2, 3)}),
    # elementwise
    ("write it as LeakyRelu", NN, "float[1,1,8,8] x", "y = PRelu (x, k)", "y = LeakyRelu <alpha = 0.25> (x)", {"k": F([0.25])}),
    ("reshape the slope to [C,1,1]", NN, X, "y = PRelu (x, k)", "y = PRelu (x, l)", {"k": f32(1, 4, 1, 1), "l": f32(4, 1, 1)}),
    ("cast the exponent", NN, V, "y = Pow (x, e)", "y = Pow (x, f)", {"e": np.int64(2), "f": F(2)}),
    # images
    ("export with align_corners 1", MLP, "float[1,4,8,8] x, float[1,8,8,2] g",
     'y = GridSample <padding_mode = "reflection"> (x, g)', 'y = GridSample <padding_mode = "zeros"> (x, g)',
     {"opset": 16}),
    ("export with asymmetric coordinates", NN, X, 'y = Resize <mode = "linear"> (x, , k)', f"y = Resize <{ASYMMETRIC}> (x, , k)",
     {"k": F([1, 1, 2, 2])}),
    ("export with asymmetric coordinates", NN, X, 'y = Resize <mode = "nearest"> (x, , k)', f"y = Resize <{FLOOR}> (x, , k)",
     {"k": F([1, 1, 2, 2])}),
    ("resize with mode linear", MLP, X, 'y = Resize <mode = "cubic"> (x, , k)', 'y = Resize <mode = "linear"> (x, , k)',
     {"k": F([1, 1, 2, 2])}),
    ("add a dimension of 1 with a Reshape", MLP, "float[4] x, float[4,3] b", "y = MatMul (x, b)",
     "a = Reshape (x, row)  c = MatMul (a, b)  y = Reshape (c, flat)", {"row": i64(1, 4), "flat": i64(3)}),
    ("state sizes instead of scales", MLP, X, f"y = Resize <{ASYMMETRIC}> (x, , k)", f"y = Resize <{ASYMMETRIC}> (x, , , n)",
     {"k": F([1, 1, 2, 2]), "n": i64(1, 4, 16, 16)}),
    ("state sizes instead of scales", MLP, X, 'y = Resize <mode = "linear"> (x, , k)', 'y = Resize <mode = "linear"> (x, , , n)',
     {"k": F([1, 1, 1.5, 1.5]), "n": i64(1, 4, 12, 12)}),
    ("state sizes instead of scales", MLP, X, 'y = Resize <mode = "linear"> (x, , k)', 'y = Resize <mode = "linear"> (x, , , n)',
     {"k": F([1, 1, 2, 0.5]), "n": i64(1, 4, 16, 4)}),
    ("export with half_pixel coordinates", MLP, X,
     'y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , , n)',
     'y = Resize <mode = "linear"> (x, , , n)', {"n": i64(1, 4, 1, 8)}),
    ("choose another format", NN, X, f"y = Resize <{FLOOR}> (x, , k)", f"y = Resize <{FLOOR}> (x, , k)",
     {"k": F([1, 1, 0.5, 0.5]), "after": {"k": F([1, 1, 0.5, 0.5]), "form": MLP}}),
    # moves and indices
    ("have all of them read the Cast", NN, V, "a = ArgMax (x)  y = Cast <to = 6> (a)  z = Identity (a)",
     "a = ArgMax (x)  y = Cast <to = 6> (a)  z = Identity (y)", {"left": {"Identity"}}),
    ("index with a list of 1", NN, "float[2,1,1,1,3] x", "y = Gather (x, i)", "a = Gather (x, j)  y = Squeeze (a, zero)",
     {"i": np.int64(1), "j": i64(1), "zero": i64(0)}),
    ("leave it out", NN, "float[4,6] x", "a = Split <axis = 1> (x, parts)  y = Relu (a)", "y = Relu (x)", {"parts": i64(6)}),
    ("leave it out", NN, X, "a = Concat <axis = 1> (x)  y = Relu (a)", "y = Relu (x)", {}),
    ("crop with Slice", NN, X, "y = Pad (x, p, v)", "y = Slice (x, one, eight, three)",
     {"p": i64(0, 0, 0, -1, 0, 0, 0, 0), "v": F(0), "one": i64(1), "eight": i64(8), "three": i64(3)}),
    ("move the axis to the end", NN, X, "y = Pad (x, p, v)",
     "a = Transpose <perm = [0, 2, 3, 1]> (x)  b = Pad (a, q, v)  y = Transpose <perm = [0, 3, 1, 2]> (b)",
     {"p": i64(0, 1, 0, 0, 0, 0, 0, 0), "q": i64(0, 0, 0, 1, 0, 0, 0, 0), "v": F(0)}),
    ("state the value 0", NN, X, "y = Pad (x, p)", "y = Pad (x, p, v)", {"p": i64(0, 0, 1, 1, 0, 0, 1, 1), "v": F(0)}),
    ("use Slice behind it", NN, V, "y = Shape <end = 1> (x)", "a = Shape (x)  y = Slice (a, zero, one)",
     {"opset": 15, "zero": i64(0), "one": i64(1)}),
    ("choose another format", NN, X, "y = Concat <axis = 2> (x, x)", "y = Concat <axis = 2> (x, x)", {"after": {"form": MLP}}),
    ("leave the node out", NN, V, "a = ReduceSum <noop_with_empty_axes = 1> (x)  y = Relu (a)", "y = Relu (x)", {}),
    ("let CoreML have the nodes inside", NN, "bool c, float[2] x",
     "y = If (c) <then_branch = p () => (float[2] u) { u = Relu (x) }, else_branch = q () => (float[2] v) { v = Tanh (x) }>",
     "y = If (c) <then_branch = p () => (float[2] u) { u = Relu (x) }, else_branch = q () => (float[2] v) { v = Tanh (x) }>",
     {"left": {"If"}, "after": {"inside": True}}),
    # operators
    ("QuantizeLinear", NN, V, "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)", "y = Relu (x)", {}),
    ("DequantizeLinear", NN, Q, "y = DequantizeLinear (x, s, z)", "float[2,4] x => y = Relu (x)", {}),
    ("QLinearConv", NN, "uint8[1,2,4,4] x", "y = QLinearConv (x, s, z, w, s, z, s, z)", "float[1,2,4,4] x => y = Conv (x, k)",
     {"w": u8(3, 2, 1, 1), "k": f32(3, 2, 1, 1)}),
    ("QLinearMatMul", NN, Q, "y = QLinearMatMul (x, s, z, w, s, z, s, z)", FLOAT_PRODUCT,
     {"w": u8(4, 3), "after": {"w": f32(4, 3)}}),
    ("DynamicQuantizeLinear", NN, V, "y, a, b = DynamicQuantizeLinear (x)", "y = Relu (x)", {}),
    ("MatMulInteger", NN, Q, "y = MatMulInteger (x, w)", FLOAT_PRODUCT, {"w": u8(4, 3), "after": {"w": f32(4, 3)}}),
    ("ConvInteger", NN, "uint8[1,2,4,4] x", "y = ConvInteger (x, w)", "float[1,2,4,4] x => y = Conv (x, k)",
     {"w": u8(3, 2, 1, 1), "k": f32(3, 2, 1, 1)}),
    ("HardSwish", MLP, V, "y = HardSwish (x)", "a = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)  y = Mul (x, a)",
     {"opset": 14}),
    ("Mish", MLP, V, "y = Mish (x)", "a = Softplus (x)  b = Tanh (a)  y = Mul (x, b)", {"opset": 18}),
    ("Neg", NN, V, "y = Neg (x)", "y = Mul (x, m)", {"m": F(-1)}),
    ("Min", MLP, V, "y = Min (x, k)", "a = Mul (x, m)  b = Mul (k, m)  c = Max (a, b)  y = Mul (c, m)", {"k": f32(3), "m": F(-1)}),
    ("Sum", NN, V, "y = Sum (x, x, k)", "a = Add (x, x)  y = Add (a, k)", {"k": f32(3)}),
    ("Mean", NN, V, "y = Mean (x, k)", "a = Add (x, k)  y = Mul (a, half)", {"k": f32(3), "half": F(0.5)}),
    ("Abs", MLP, V, "y = Abs (x)", "a = Mul (x, m)  y = Max (x, a)", {"m": F(-1)}),
    ("ReduceL2", NN, V, "y = ReduceL2 <axes = [1]> (x)", "a = Mul (x, x)  b = ReduceSum (a, one)  y = Sqrt (b)", {"one": i64(1)}),
    ("ReduceL1", MLP, V, "y = ReduceL1 <axes = [1]> (x)", "a = Mul (x, m)  b = Max (x, a)  y = ReduceSum (b, one)",
     {"one": i64(1), "m": F(-1)}),
    ("SpaceToDepth", NN, "float[1,1,2,4] x", "y = SpaceToDepth <blocksize = 2> (x)",
     """a = Slice (x, c00, end, all, by)  b = Slice (x, c01, end, all, by)  c = Slice (x, c10, end, all, by)
        d = Slice (x, c11, end, all, by)  y = Concat <axis = 1> (a, b, c, d)""",
     {"c00": i64(0, 0), "c01": i64(0, 1), "c10": i64(1, 0), "c11": i64(1, 1), "end": i64(9, 9), "all": i64(2, 3), "by": i64(2, 2)}),
    ("Upsample", NN, X, "y = Upsample (x, k)", f"y = Resize <{FLOOR}> (x, , k)",
     {"k": F([1, 1, 2, 2]), "opset": 9, "after": {"k": F([1, 1, 2, 2]), "opset": 13}}),
    ("Expand", NN, "float[1,3] x", "a = Expand (x, to)  y = Add (a, k)", "y = Add (x, k)", {"to": i64(2, 3), "k": f32(2, 3)}),
    ("NonMaxSuppression", NN, "float[1,6,4] x, float[1,1,6] t", "y = NonMaxSuppression (x, t)", "float[1,6,4] x => y = Relu (x)",
     {}),
    ("com.microsoft:FusedGemm", NN, "float[2,4] x", 'y = com.microsoft.FusedGemm <activation = "Relu"> (x, k)',
     "a = Gemm (x, k)  y = Relu (a)", {"k": f32(4, 3)}),
    ("com.microsoft:FusedMatMul", NN, "float[4,2] x", "y = com.microsoft.FusedMatMul <transA = 1> (x, k)",
     "a = Transpose (x)  y = MatMul (a, k)", {"k": f32(4, 3)}),
    ("com.microsoft:SkipLayerNormalization", MLP, "float[1,2,8] x, float[1,2,8] t",
     "y = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (x, t, k, b)",
     "a = Add (x, t)  y = LayerNormalization (a, k, b)",
     {"k": f32(8), "b": f32(8), "opset": 17}),
    ("com.microsoft:BiasGelu", MLP, "float[2,4] x", "y = com.microsoft.BiasGelu (x, k)", "a = Add (x, k)  y = Gelu (a)",
     {"k": f32(4), "opset": 20}),
]  # fmt: skip
BY_FIXED_SHAPES = {"ConstantOfShape", "Range"}


def test_advice_on_every_operator_is_followed():
    assert set(INSTEAD) - BY_FIXED_SHAPES == {case[0] for case in CASES} & set(INSTEAD)


@sampled(4)
@pytest.mark.parametrize(("said", "form", "inputs", "nodes", "advised", "options"), CASES)
def test_advice_followed(said, form, inputs, nodes, advised, options):
    options = {"form": form, **options}
    after, left, numbers = options.pop("after", options), options.pop("left", ()), options.pop("numbers", True)
    before = graph_of(inputs, nodes, constants(options))
    inputs, _, advised = advised.rpartition(" => ") if re.match(r"\w+\[[^(]* => ", advised) else (inputs, "", advised)
    changed = graph_of(inputs, advised, constants(after))
    follow(
        before,
        target_of(options),
        INSTEAD.get(said, said),
        changed,
        target_of({"form": form, **after}),
        left,
        numbers=numbers,
    )


NAMES = {"form": "coreml_format", "version": "coreml_version", "inside": "coreml_on_subgraphs"}


def target_of(options):
    return Target("coreml", **{NAMES[k]: v for k, v in options.items() if k in NAMES})


def constants(options):
    return {k: v for k, v in options.items() if k not in NAMES}
