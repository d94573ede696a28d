"""The support rules, one by one: what is taken at which feature level, and every objection with limit and actual value."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import SCALE, check_advice, f32, i8, make, messages, node, objections, u8

from ortconv.ir import units
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.partition import Target, partition
from ortconv.partition.nnapi.rules import INSTEAD, ROWS
from ortconv.partition.nnapi.runtime import FAILS
from ortconv.wording import fix_dim_options
from tests.arrays import i64
from tests.batches import batched, sampled

LEVELS = (27, 28, 29, 30, 31)

# Least feature level with NHWC and with NCHW layout, of a node that meets all other conditions. A second Tanh keeps
# operators that are dropped alone in a partition of two.
KERNEL = "<kernel_shape = [2, 2]>"
LEAST = {
    "Abs": ("y = Abs (x)", 29, 29), "Add": ("y = Add (x, x)", 27, 27), "AveragePool": (f"y = AveragePool {KERNEL} (x)", 28, 29),
    "BatchNormalization": ("y = BatchNormalization (x, k, k, k, k)", 28, 27), "Cast": ("y = Cast <to = 6> (x)", 29, 29),
    "Clip": ("y = Clip (x, lo, hi)", 27, 27), "Concat": ("y = Concat <axis = 1> (x, x)", 27, 27),
    "Conv": ("y = Conv (x, w)", 28, 29), "DepthToSpace": ("y = DepthToSpace <blocksize = 2> (x)", 28, 29),
    "DequantizeLinear": ("y = DequantizeLinear (q, s, z)", 27, 27), "Div": ("y = Div (x, x)", 28, 28),
    "Elu": ("y = Elu (x)", 30, 30), "Exp": ("y = Exp (x)", 29, 29), "Flatten": ("y = Flatten (x)", 27, 27),
    "Floor": ("y = Floor (x)", 27, 27), "Gather": ("y = Gather (x, i)", 29, 29), "Gemm": ("y = Gemm (m, b)", 27, 27),
    "GlobalAveragePool": ("y = GlobalAveragePool (x)", 28, 29), "GlobalMaxPool": ("y = GlobalMaxPool (x)", 28, 29),
    "Identity": ("y = Identity (x)", 27, 27), "LRN": ("y = LRN <size = 3> (x)", 28, 29),
    "LeakyRelu": ("y = LeakyRelu (x)", 29, 29), "Log": ("y = Log (x)", 29, 29), "MatMul": ("y = MatMul (m, b)", 27, 27),
    "Max": ("y = Max (x, x)", 29, 29), "MaxPool": (f"y = MaxPool {KERNEL} (x)", 28, 29), "Min": ("y = Min (x, x)", 29, 29),
    "Mul": ("y = Mul (x, x)", 27, 27), "Neg": ("y = Neg (x)", 29, 29), "PRelu": ("y = PRelu (x, x)", 29, 29),
    "Pad": ("y = Pad (x, p)", 29, 29), "Pow": ("y = Pow (x, x)", 29, 29),
    "QLinearAdd": ("y = com.microsoft.QLinearAdd (q, s, z, q, s, z, s, z)", 27, 27),
    "QLinearAveragePool": (f"y = com.microsoft.QLinearAveragePool {KERNEL} (q, s, z, s, z)", 28, 29),
    "QLinearConv": ("y = QLinearConv (q, s, z, qw, s, z, s, z)", 28, 29),
    "QLinearMatMul": ("y = QLinearMatMul (qm, s, z, qb, s, z, s, z)", 27, 27),
    "QLinearMul": ("y = com.microsoft.QLinearMul (q, s, z, q, s, z, s, z)", 27, 27),
    "QLinearSigmoid": ("y = com.microsoft.QLinearSigmoid (q, s, z, so, zo)", 27, 27),
    "QuantizeLinear": ("y = QuantizeLinear (x, s, z)", 29, 29), "ReduceMean": ("y = ReduceMean <axes = [2]> (x)", 28, 28),
    "Relu": ("y = Relu (x)", 27, 27), "Reshape": ("y = Reshape (x, shape)", 27, 27),
    "Resize": ('y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , scales)', 29, 29),
    "Sigmoid": ("y = Sigmoid (x)", 27, 27), "Sin": ("y = Sin (x)", 29, 29), "Slice": ("y = Slice (x, i, j)", 28, 28),
    "Softmax": ("y = Softmax <axis = 3> (x)", 28, 28), "Split": ("y, y2 = Split <axis = 1> (x)", 29, 29),
    "Sqrt": ("y = Sqrt (x)", 29, 29), "Squeeze": ("y = Squeeze (x, i)", 28, 28), "Sub": ("y = Sub (x, x)", 28, 28),
    "Tanh": ("y = Tanh (x)", 27, 27), "Transpose": ("y = Transpose (x)", 28, 28),
    "Unsqueeze": ("y = Unsqueeze (x, i)", 27, 27),
}  # fmt: skip

VALUES = {
    "k": f32(4), "lo": np.float32(0), "hi": np.float32(6), "w": f32(2, 4, 3, 3), "i": i64(0), "j": i64(1), "b": f32(4, 3),
    "p": i64(*[1] * 8), "qw": u8(2, 4, 3, 3), "qb": u8(4, 3), "so": np.float32(1 / 256), "zo": np.uint8(0),
    "shape": i64(4, 64), "scales": np.array([1, 1, 2, 2], np.float32),
}  # fmt: skip
INPUTS = "float[1,4,8,8] x, float[2,4] m, uint8[1,4,8,8] q, uint8[2,4] qm, float[1,4] tail"


def test_every_row_has_a_model_with_its_least_level():
    assert LEAST.keys() == ROWS.keys()


@sampled(4)
@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", LEAST)
def test_least_feature_level(op, level, nchw):
    nodes, nhwc_level, nchw_level = LEAST[op]
    graph = make(INPUTS, f"{nodes}  t = {'Floor' if op == 'Tanh' else 'Tanh'} (tail)", "y t", opset=17, **VALUES)
    least = nchw_level if nchw else nhwc_level
    verdict = partition(graph, Target(feature_level=level, use_nchw=nchw)).verdicts[node(graph, op)]
    assert verdict.taken == (level >= least), verdict.objections
    for objection in verdict.objections:
        assert objection.rule == ("runtime" if op == "LeakyRelu" else "feature-level")
        message = objection.message.removesuffix(FAILS)
        assert message.endswith(f"needs feature level {least}: the target has {level}") or (
            nchw and f"the target has {level}" in message
        )


@batched
@pytest.mark.parametrize("op", sorted(set(ROWS) - {"QuantizeLinear", "DequantizeLinear"}))
def test_foreign_domains_are_refused(op):
    graph = make("float[1,4] x", f"y = other.{op} (x)", "y")
    (message,) = messages(graph, op)
    assert message.startswith(f"domain: other:{op} 'y' is not of domain ")


FLOAT_INPUT = [op for op, (nodes, *_) in LEAST.items() if "(x" in nodes]


@batched
@pytest.mark.parametrize("dtype", [DType.DOUBLE, DType.FLOAT16])
@pytest.mark.parametrize("op", FLOAT_INPUT)
def test_input_0_must_be_float32(op, dtype):
    graph = make(INPUTS, LEAST[op][0], "y", opset=17, **VALUES)
    for value in graph.inputs:
        value.type = TensorType(dtype, value.shape)
    kind = "float64" if dtype is DType.DOUBLE else "float16"
    wanted = "float32 or uint8" if op in ("Concat", "MaxPool", "Resize", "Transpose") else "float32"
    expected = [f"dtype: input {i} 'x' is {kind}: NNAPI accepts {wanted} here" for i in range(2 if op == "Pow" else 1)]
    if op == "QuantizeLinear":
        expected = [message.replace("dtype", "runtime") + FAILS for message in expected]
    assert messages(graph, op) == expected


def lin(transform: str = "asymmetric", mode: str = "linear", more: str = "") -> str:
    return f'<mode = "{mode}", coordinate_transformation_mode = "{transform}"{more}>'


X = "float[1,4,8,8] x"
R5 = "float[1,1,1,1,2] x"
RANK4 = "rank: input 0 'x' has rank 5: NNAPI accepts 1 to 4 here"
AT_MOST_4 = "rank: input 0 'x' has rank 5: NNAPI accepts at most 4 here"
EXACTLY_4 = "rank: input 0 'x' has rank 3: NNAPI accepts 4 here"
CONST = "is computed or fed: NNAPI needs a constant"
BELOW = "below feature level 29 (the target has 28)"
F = np.float32

# (inputs, the node, its constants and options of make and Target, all objections)
FLOAT_CASES = [
    ("float[1,N] x", "y = Relu (x)", {}, ["static-shape: 'x' has shape [1,N]: NNAPI needs every dimension"]),
    ("float x", "y = Add (x, x)", {}, []),
    (R5, "y = Add (x, x)", {}, [AT_MOST_4, "rank: input 1 'x' has rank 5: NNAPI accepts at most 4 here"]),
    (R5, "y = Add (k, x)", {"k": F(1)}, ["rank: input 1 'x' has rank 5: NNAPI accepts at most 4 here"]),
    (R5, "y = Abs (x)", {}, []),
    ("float[2] x", "y = Erf (x)", {}, ["operator: NNAPI has no operation for Erf"]),
    ("float[2] x", "y = com.microsoft.Gelu (x)", {}, ["operator: NNAPI has no operation for com.microsoft:Gelu"]),
    ("float[2] x", "y = Add (x, x)", {"opset": 6, "use_nchw": True},
     ["since-version: Add has version 6: NNAPI accepts 7 to 27"]),
    (X, "y = Slice <starts = [0], ends = [1]> (x)", {"opset": 9},
     ["since-version: Slice has version 1: NNAPI accepts 10 to 27"]),
    (X, "y, y2 = Split <axis = 1> (x)", {"opset": 11}, ["since-version: Split has version 11: NNAPI accepts 13 to 27"]),
    # activations
    (R5, "y = Sigmoid (x)", {}, [RANK4]),
    ("float x", "y = Sigmoid (x)", {}, ["rank: input 0 'x' has rank 0: NNAPI accepts 1 to 4 here"]),
    (R5, "y = LeakyRelu (x)", {}, [RANK4]),
    ("float[2] x", "y = Clip (x, lo, hi)", {"lo": F(-1), "hi": F(1)}, []),
    ("float[2] x", "y = Clip (x, lo, hi)", {"lo": F(0), "hi": F(5)},
     ["attribute: the bounds are 0 and 5: NNAPI has 0 and 6, -1 and 1"]),
    ("float[2] x", "y = Clip (x, lo)", {"lo": F(0)}, ["attribute: the bounds are 0 and inf: NNAPI has 0 and 6, -1 and 1"]),
    ("float[2] x, float hi", "y = Clip (x, lo, hi)", {"lo": F(0)}, ["constant: max is computed or fed: NNAPI needs a constant"]),
    ("float[2] x", "y = Clip <min = 0.0, max = 6.0> (x)", {"opset": 10}, []),
    ("float[2] x", "y = Clip <min = 0.0> (x)", {"opset": 6, "use_nchw": True},
     ["attribute: the bounds are 0 and inf: NNAPI has 0 and 6, -1 and 1"]),
    ("float[2] x", "y = Max (x, x, x)", {}, ["inputs: the node has 3 inputs: NNAPI accepts 2"]),
    ("float[2] x", "y = Min (x)", {}, ["inputs: the node has 1 inputs: NNAPI accepts 2"]),
    ("float[2] x", "y = Cast <to = 7> (x)", {}, ["attribute: to is int64: NNAPI casts to float32 or int32"]),
    ("float[2] x", "y = Cast <to = 1> (x)", {}, []),
    ("int64[2] x", "y = Cast <to = 1> (x)", {}, ["dtype: input 0 'x' is int64: NNAPI accepts float32 here"]),
    # convolution
    ("float[1,4,8] x", "y = Conv (x, w)", {"w": f32(2, 4, 3)}, ["rank: input 1 'w' has rank 3: NNAPI accepts 4 here"]),
    (f"{X}, float[2,4,3,3] w", "y = Conv (x, w)", {}, [f"constant: input 1 'w' {CONST}"]),
    (f"{X}, float[2] b", "y = Conv (x, w, b)", {"w": f32(2, 4, 3, 3)}, []),
    (X, "y = Conv <dilations = [2, 2]> (x, w)", {"w": f32(2, 4, 3, 3)}, []),
    (X, "y = Conv <dilations = [2, 1]> (x, w)", {"w": f32(2, 4, 3, 3), "feature_level": 28},
     ["feature-level: dilations [2, 1] needs feature level 29: the target has 28"]),
    (X, "y = Conv <dilations = [2, 2], group = 4> (x, w)", {"w": f32(4, 1, 3, 3)}, []),
    (X, "y = Conv <dilations = [2, 2], group = 2> (x, w)", {"w": f32(4, 2, 3, 3)},
     ["attribute: dilations are [2, 2] in 2 groups of 2 channels: "
      "NNAPI dilates convolutions of 1 group, or of 1 channel per group"]),
    (X, "y = Conv <group = 2> (x, w)", {"w": f32(4, 2, 3, 3)}, []),
    # matrix products
    ("float[2,4] x", "y = Gemm <transA = 1> (x, b)", {"b": f32(2, 3)}, ["attribute: transA is 1: NNAPI accepts 0"]),
    ("float[2,4] x", "y = Gemm <alpha = 2.0, beta = 0.5> (x, b)", {"b": f32(4, 3)},
     ["attribute: alpha is 2.0: NNAPI accepts 1.0", "attribute: beta is 0.5: NNAPI accepts 1.0"]),
    ("float[2,4] x, float[4,3] b", "y = Gemm (x, b)", {}, [f"constant: input 1 'b' {CONST}"]),
    ("float[2,4] x, float[3,4] b", "y = Gemm <transB = 1> (x, b)", {}, []),
    ("float[2,4] x, float[3] c", "y = Gemm (x, b, c)", {"b": f32(4, 3)}, []),
    ("float[2,4] x", "y = Gemm (x, b, c)", {"b": f32(4, 3), "c": f32(1, 3)}, []),
    ("float[2,4] x", "y = Gemm (x, b, c)", {"b": f32(4, 3), "c": f32(1, 3), "feature_level": 27},
     ["feature-level: a bias of rank 2 needs feature level 28: the target has 27"]),
    ("float[2,4] x", "y = Gemm (x, b, c)", {"b": f32(4, 3), "c": f32(2, 3)},
     ["shape: input 2 'c' has shape [2, 3]: NNAPI accepts [3] or [1,3]"]),
    ("float[2,4] x", "y = Gemm (x, b, c)", {"b": f32(4, 3), "c": F(1)},
     ["shape: input 2 'c' has shape []: NNAPI accepts [3] or [1,3]"]),
    ("float[2,4] x, float[4,3] b", "y = MatMul (x, b)", {}, [f"constant: input 1 'b' {CONST}"]),
    ("float[5,2,4] x, float[5,4,3] b", "y = MatMul (x, b)", {}, []),
    ("float[5,2,4] x, float[5,4,3] b", "y = MatMul (x, b)", {"feature_level": 28},
     ["feature-level: a MatMul of rank 3 needs feature level 29: the target has 28"]),
    ("float[5,2,4] x", "y = MatMul (x, b)", {"b": f32(1, 4, 3)},
     ["shape: the batches are [5] and [1]: NNAPI needs them equal"]),
    ("float[5,2,4] x", "y = MatMul (x, b)", {"b": f32(4, 3)},
     ["rank: the inputs have ranks 3 and 2: NNAPI accepts 2 and 2, or equal ones from 3"]),
    ("float[4] x", "y = MatMul (x, b)", {"b": f32(4)},
     ["rank: the inputs have ranks 1 and 1: NNAPI accepts 2 and 2, or equal ones from 3"]),
    # pooling
    ("float[1,4,8] x", "y = AveragePool <kernel_shape = [2]> (x)", {},
     [EXACTLY_4, "attribute: kernel_shape is [2]: NNAPI pools over 2 dimensions"]),
    (X, "y = AveragePool <kernel_shape = [2, 2], ceil_mode = 1, count_include_pad = 1> (x)", {},
     ["attribute: ceil_mode is 1: NNAPI accepts 0", "attribute: count_include_pad is 1: NNAPI accepts 0"]),
    (X, "y = AveragePool <kernel_shape = [2, 2], dilations = [1, 2]> (x)", {"opset": 19},
     ["attribute: dilations is [1, 2]: NNAPI accepts 1 here"]),
    (X, "y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x)", {},
     ["attribute: storage_order is 1: NNAPI accepts 0", "outputs: the node has 2 outputs: NNAPI makes 1"]),
    ("float[1,4,8] x", "y = GlobalAveragePool (x)", {}, [EXACTLY_4]),
    ("float[1,4,8] x", "y = GlobalMaxPool (x)", {}, [EXACTLY_4]),
    # normalization
    ("float[1,4,8] x, float[4] k", "y = BatchNormalization (x, k, k2, k2, k2)", {"k2": f32(4)},
     [f"constant: input 1 'k' {CONST}"]),
    ("float[1,4,1,1,1] x", "y = BatchNormalization (x, k, k, k, k)", {"k": f32(4)}, [AT_MOST_4]),
    ("float[2,4,3] x", "y = BatchNormalization <spatial = 0> (x, k, k, k, k)", {"k": f32(4, 3), "opset": 8},
     ["attribute: spatial is 0: NNAPI accepts 1"]),
    (X, "y, m, v = BatchNormalization <training_mode = 1> (x, k, k, k, k)", {"k": f32(4), "opset": 15},
     ["outputs: the node has 3 outputs: NNAPI makes 1", "attribute: training_mode is 1: NNAPI accepts 0"]),
    ("float[1,4,8] x", "y = LRN <size = 3> (x)", {}, [EXACTLY_4]),
    (R5, "y = Softmax (x)", {}, [AT_MOST_4]),
    ("float[2,3,4] x", "y = Softmax <axis = 0> (x)", {"opset": 12, "feature_level": 28}, []),
    (X, "y = Softmax <axis = 2> (x)", {"opset": 11, "feature_level": 28}, []),
    ("float[2,3] x", "y = Softmax (x)", {"feature_level": 28}, []),
    ("float[2,3,4] x", "y = Softmax <axis = -1> (x)", {"feature_level": 28},
     [f"rank: input 0 'x' has rank 3: NNAPI accepts 2 or 4 {BELOW}"]),
    (X, "y = Softmax (x)", {"feature_level": 28}, []),
    (X, "y = Softmax <axis = 1> (x)", {"feature_level": 28}, [f"attribute: axis is 1: NNAPI accepts 3, the last, {BELOW}"]),
    (X, "y = Softmax <axis = -1> (x)", {"feature_level": 28}, []),
    (f"{X}, int64[1] a", "y = ReduceMean (x, a)", {"opset": 18}, [f"constant: input 1 'a' {CONST}"]),
    (X, "y = ReduceMean (x)", {"opset": 18}, []),
    (X, "y = ReduceMean <noop_with_empty_axes = 1> (x)", {"opset": 18},
     ["attribute: noop_with_empty_axes is 1: NNAPI accepts 0"]),
    (X, "y = ReduceMean <noop_with_empty_axes = 1> (x, a)", {"opset": 18, "a": i64(1)},
     ["attribute: noop_with_empty_axes is 1: NNAPI accepts 0"]),
    (R5, "y = ReduceMean (x)", {}, [RANK4]),
    # movement
    (R5, "y = Concat <axis = 0> (x, x)", {}, [RANK4]),
    ("float[2,3] x, int64[1] n", "y = Reshape (x, n)", {}, [f"constant: input 1 'n' {CONST}"]),
    ("float[0,3] x", "y = Reshape (x, n)", {"n": i64(0, 3)},
     ["empty: the shape [0, 3] copies dimension 0 of [0, 3]: it may not be 0"]),
    ("float[0,3] x", "y = Reshape <allowzero = 1> (x, n)", {"n": i64(3, 0), "opset": 14},
     ["empty: the shape is [3, 0] with allowzero 1: no dimension may be 0"]),
    ("float[2,3] x", "y = Reshape <allowzero = 1> (x, n)", {"n": i64(3, 2), "opset": 14},
     ["trivial: the partition would be 1 Reshape, which computes nothing"]),
    (R5, "y = Reshape (x, n)", {"n": i64(2)}, [RANK4]),
    ("float[0,3] x", "y = Flatten (x)", {}, ["empty: the result has shape [0, 3]: no dimension may be 0"]),
    ("float[2,3] x", "y = Flatten <axis = -1> (x)", {},
     ["trivial: the partition would be 1 Flatten, which computes nothing"]),
    ("float[1,3] x, int64[1] a", "y = Squeeze (x, a)", {}, [f"constant: input 1 'a' {CONST}"]),
    ("float[1,3] x", "y = Squeeze (x)", {}, []),
    ("float[1,3] x, int64[1] a", "y = Unsqueeze (x, a)", {}, [f"constant: input 1 'a' {CONST}"]),
    ("float[1,3] x", "y = Unsqueeze <axes = [0]> (x)", {"opset": 11}, []),
    (R5, "y = Transpose (x)", {}, [RANK4]),
    ("float[4,3] x, int64[1] i", "y = Gather (x, i)", {}, [f"constant: input 1 'i' {CONST}"]),
    ("float[4,3] x, int32[1] i", "y = Gather (x, i)", {}, []),
    ("float[4,0] x", "y = Gather (x, i)", {"i": i64(0)}, ["empty: input 0 'x' has shape [4, 0]: no dimension may be 0"]),
    ("float[4,3] x, int64[1] i", "y = Slice (x, i, j, j, j)", {"j": i64(1)}, [f"constant: input 1 'i' {CONST}"]),
    ("float[4,0] x", "y = Slice (x, i, j)", {"i": i64(0), "j": i64(1)},
     ["empty: input 0 'x' has shape [4, 0]: no dimension may be 0"]),
    (R5, "y = Slice (x, i, j)", {"i": i64(0), "j": i64(1)}, [AT_MOST_4]),
    ("float[4,3] x, int64[1] t", "y = Slice (x, i, j, i, t)", {"i": i64(0), "j": i64(1)}, [f"constant: input 4 't' {CONST}"]),
    ("float[4,3] x", "y = Slice (x, i, j, , j)", {"i": i64(0), "j": i64(1)},
     ["constant: axes are listed with an empty name: NNAPI needs a constant"]),
    ("float[4,6] x", "y, y2 = Split <axis = 1> (x, n)", {"n": i64(3, 3)}, []),
    ("float[4,6] x", "y, y2 = Split <axis = 1> (x, n)", {"n": i64(2, 4)},
     ["shape: the parts of dimension 6 are [2, 4]: NNAPI needs them equal"]),
    ("float[4,6] x, int64[2] n", "y, y2 = Split (x, n)", {}, [f"constant: input 1 'n' {CONST}"]),
    ("float[4,6] x", "y, y2, y3, y4 = Split <axis = -1, num_outputs = 4> (x)", {"opset": 18},
     ["shape: dimension 6 is split into 4 parts: NNAPI needs them equal"]),
    ("float[2,3] x, int64[4] p", "y = Pad (x, p)", {}, [f"constant: input 1 'p' {CONST}"]),
    ("float[2,3] x", 'y = Pad <mode = "reflect"> (x, p)', {"p": i64(0, 1, 0, 1)},
     ["attribute: mode is reflect: NNAPI accepts constant"]),
    ("float[2,3] x", "y = Pad (x, p)", {"p": i64(0, -1, 0, 1)}, ["attribute: pads are [0, -1, 0, 1]: NNAPI accepts none below 0"]),
    ("float[2,3] x, float v", "y = Pad (x, p, v)", {"p": i64(0, 1, 0, 1)}, [f"constant: input 2 'v' {CONST}"]),
    ("float[2,3] x", "y = Pad (x, p, , a)", {"p": i64(1, 1), "a": i64(1), "opset": 18},
     ["constant: constant_value is listed with an empty name: NNAPI needs a constant",
      "attribute: pads are [1, 1] on some axes: NNAPI needs 4 pads"]),
    ("float[2,3] x", "y = Pad (x, p, v, a)", {"p": i64(1, 1, 0, 0), "v": F(0), "a": i64(0, 1), "opset": 18}, []),
    ("float[0,3] x", "y = Pad (x, p)", {"p": i64(0, 1, 0, 1)},
     ["empty: input 0 'x' has shape [0, 3]: no dimension may be 0"]),
    (X, 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', {}, ["attribute: mode is CRD: NNAPI accepts DCR"]),
    # resize
    ("float[1,4,8] x", f"y = Resize {lin()} (x, , k)", {"k": f32(3) + 2}, [EXACTLY_4]),
    (X, f"y = Resize {lin(mode='cubic')} (x, , , n)", {"n": i64(1, 4, 4, 4)},
     ["attribute: mode is cubic: NNAPI accepts linear or nearest"]),
    (X, f"y = Resize {lin('half_pixel')} (x, , , n)", {"n": i64(1, 4, 4, 4), "feature_level": 29},
     ["feature-level: coordinate_transformation_mode half_pixel needs feature level 30: the target has 29"]),
    (X, f"y = Resize {lin('align_corners')} (x, , , n)", {"n": i64(1, 4, 4, 4), "feature_level": 30}, []),
    (X, f"y = Resize {lin('pytorch_half_pixel')} (x, , , n)", {"n": i64(1, 4, 4, 4)},
     ["attribute: coordinate_transformation_mode is pytorch_half_pixel: NNAPI accepts asymmetric, half_pixel or align_corners"]),
    (X, "y = Resize (x, , , n)", {"n": i64(1, 4, 4, 4)},
     ["attribute: mode nearest has coordinate_transformation_mode half_pixel and nearest_mode round_prefer_floor: "
      "NNAPI accepts asymmetric and floor"]),
    (X, f"""y = Resize {lin(mode='nearest', more=', nearest_mode = "floor"')} (x, , , n)""", {"n": i64(1, 4, 4, 4)}, []),
    (X, f"y = Resize {lin(more=', exclude_outside = 1')} (x, , , n)", {"n": i64(1, 4, 4, 4)},
     ["attribute: exclude_outside is 1: NNAPI accepts 0"]),
    (X, f"y = Resize {lin(more=', antialias = 1')} (x, , , n)", {"n": i64(1, 4, 4, 4), "opset": 18},
     ["attribute: antialias is 1: NNAPI accepts 0"]),
    (X, f"""y = Resize {lin(more=', keep_aspect_ratio_policy = "not_larger"')} (x, , , n)""",
     {"n": i64(1, 4, 4, 4), "opset": 18}, ["attribute: keep_aspect_ratio_policy is not_larger: NNAPI accepts stretch"]),
    (X, f"y = Resize {lin(more=', axes = [0, 1, 2, 3]')} (x, , , n)", {"n": i64(1, 4, 4, 4), "opset": 18},
     ["attribute: axes are [0, 1, 2, 3]: NNAPI accepts none"]),
    (X, f"y = Resize {lin()} (x, , , n)", {"n": i64(2, 4, 4, 4)},
     ["shape: sizes[0] is 2: NNAPI accepts 1, only height and width may change"]),
    (X, f"y = Resize {lin()} (x, , k)", {"k": np.array([1, 2, 2, 3], F)},
     ["shape: scales[3] is 3: NNAPI accepts 1, only height and width may change"]),
    (X, f"y = Resize {lin()} (x, , k)", {"k": np.array([1, 1, 0.5, 0.25], F)}, []),
    (X, f"y = Resize {lin()} (x, , k)", {"k": np.array([1, 1, 1, 0.5], F)},
     ["shape: axis 2 of size 8 is scaled by 1: NNAPI shrinks all by 1 over a divisor of the size"]),
    ("float[1,4,3,3] x", f"y = Resize {lin()} (x, , k)", {"k": np.array([1, 1, 2 / 3, 2 / 3], F)},
     [f"shape: axis {a} of size 3 is scaled by 0.666667: NNAPI shrinks all by 1 over a divisor of the size" for a in (2, 3)]),
    (X, f"y = Resize {lin()} (x, , k)", {"k": np.array([1, 1, 0.5, 0.4], F)},
     ["shape: axis 3 of size 8 is scaled by 0.4: NNAPI shrinks all by 1 over a divisor of the size"]),
    (X, f"y = Resize {lin()} (x, , k, n)", {"k": np.zeros(0, F), "n": i64(1, 4, 4, 4)},
     ["shape: input 2 'k' has 0 elements: NNAPI needs 4, and ONNX Runtime's provider ends the process on none"]),
    (f"{X}, int64[4] n", f"y = Resize {lin()} (x, , , n)", {}, [f"constant: input 3 'n' {CONST}"]),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("inputs", "nodes", "options", "expected"), FLOAT_CASES)
def test_float_rules(inputs, nodes, options, expected):
    assert objections(inputs, nodes, options) == expected


# ---------------------------------------------------------------------- quantized forms

CONV = "y = QLinearConv (x, s, z, w, sw, zw, so, zo)"
GOOD = {"w": u8(2, 4, 3, 3), "sw": SCALE, "zw": np.uint8(128), "so": SCALE, "zo": np.uint8(0)}
S8 = GOOD | {"w": i8(2, 4, 3, 3), "zw": np.int8(0)}
Q8 = "uint8[1,4,8,8] x"
MM = "y = QLinearMatMul (x, s, z, w, sw, zw, so, zo)"
PER_CHANNEL = {"sw": f32(2), "zw": np.zeros(2, np.int8)}

QUANTIZED_CASES = [
    (Q8, CONV, GOOD, []),
    (Q8, CONV, S8, []),
    (Q8, CONV, S8 | PER_CHANNEL, []),
    (Q8, CONV, S8 | {"sw": f32(2)}, []),
    (Q8, CONV, S8 | PER_CHANNEL | {"feature_level": 28},
     ["feature-level: per-channel quantization needs feature level 29: the target has 28"]),
    (Q8, CONV, S8 | {"sw": f32(3)},
     ["quantization: the scale of input 1 'w' has 3 elements: dimension 0 of the weights is 2"]),
    (Q8, CONV, S8 | {"zw": np.int8(-5)}, ["quantization: the zero point of int8 input 1 'w' is -5: NNAPI accepts 0"]),
    (Q8, CONV, S8 | {"zw": np.zeros(3, np.int8)},
     ["quantization: the zero point of input 1 'w' has 3 elements, not 1 or 2"]),
    (Q8, CONV, GOOD | {"sw": f32(2)}, ["quantization: the scale of input 1 'w' has 2 elements: NNAPI accepts 1 here"]),
    (Q8, CONV, GOOD | {"zo": np.zeros(2, np.uint8)},
     ["quantization: the zero point of output 'y' has 2 elements: NNAPI accepts 1 here"]),
    (f"{Q8}, float s", CONV, GOOD | {"s": None},
     ["quantization: the scale of input 0 'x' is computed or fed: NNAPI needs a constant"]),
    (f"{Q8}, uint8 z", CONV, GOOD | {"z": None},
     ["quantization: the zero point of input 0 'x' is computed or fed: NNAPI needs a constant"]),
    (f"{Q8}, float sw", CONV, S8 | {"sw": None},
     ["quantization: the scale of input 1 'w' is computed or fed: NNAPI needs a constant"]),
    (f"{Q8}, int8 zw", CONV, S8 | {"zw": None},
     ["quantization: the zero point of input 1 'w' is computed or fed: NNAPI needs a constant"]),
    ("int8[1,4,8,8] x", CONV, S8 | {"z": np.int8(0), "zo": np.int8(0)},
     ["quantization: input 0 'x' is int8: NNAPI accepts uint8", "quantization: output 'y' is int8: NNAPI accepts uint8"]),
    (f"{Q8}, uint8[2,4,3,3] w", CONV, GOOD | {"w": None}, ["constant: input 1 'w' is computed or fed: NNAPI needs a constant"]),
    (f"{Q8}, int32[2] b", CONV.replace("zo)", "zo, b)"), GOOD,
     ["constant: input 2 'b' is computed or fed: NNAPI needs a constant"]),
    (f"{Q8}, float[N] s", CONV, GOOD | {"s": None},
     ["static-shape: 's' has shape [N]: NNAPI needs every dimension",
      "quantization: the scale of input 0 'x' is computed or fed: NNAPI needs a constant"]),
    (Q8, CONV.replace("QLinear", "com.microsoft.QLinear"), GOOD,
     ["domain: com.microsoft:QLinearConv 'y' is not of domain ai.onnx"]),
    ("uint8[2,4] x", MM, GOOD | {"w": u8(4, 3)}, []),
    ("uint8[2,4] x", MM, S8 | {"w": i8(4, 3)}, []),
    ("uint8[2,4] x", MM, S8 | {"w": i8(4, 3), "sw": f32(3), "zw": np.zeros(3, np.int8)},
     ["quantization: the scale of input 1 'w' has 3 elements: NNAPI accepts 1 here",
      "quantization: the scale of input 1 'w' has 3 elements: dimension 0 of the weights is 4",
      "quantization: the zero point of input 1 'w' has 3 elements, not 1 or 4"]),
    ("uint8[5,2,4] x", MM, GOOD | {"w": u8(4, 3)}, ["rank: input 0 'x' has rank 3: NNAPI accepts 2 here"]),
    ("uint8[5,2,4] x, uint8[5,4,3] w", MM, GOOD | {"w": None},
     ["rank: input 0 'x' has rank 3: NNAPI accepts 2 here", "rank: input 1 'w' has rank 3: NNAPI accepts 2 here",
      "constant: input 1 'w' is computed or fed: NNAPI needs a constant"]),
    ("uint8[1,1,1,1,2] x", "y = com.microsoft.QLinearMul (x, s, z, x, s, z, s, z)", {},
     [AT_MOST_4, "rank: input 1 'x' has rank 5: NNAPI accepts at most 4 here"]),
    ("uint8[2,3] x", "y = com.microsoft.QLinearSigmoid (x, s, z, so, zo)", {"so": F(0.25), "zo": np.uint8(1)},
     ["quantization: the output has scale 0.25 and zero point 1: NNAPI has scale 0.00390625 and 0"]),
    (Q8, "y = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2], channels_last = 1> (x, s, z, so, zo)",
     {"so": F(0.25), "zo": np.uint8(3)},
     ["quantization: input 0 'x' has scale 0.5 and zero point 3, the output 0.25 and 3: NNAPI needs them equal",
      "attribute: channels_last is 1: NNAPI accepts 0"]),
    ("int8[2] x", "y = DequantizeLinear (x, s, z)", {"z": np.int8(0)},
     ["quantization: input 0 'x' is int8: NNAPI accepts uint8"]),
    ("uint8[2,3] x", "y = DequantizeLinear <axis = 0> (x, s2, z2)", {"s2": f32(2), "z2": np.zeros(2, np.uint8)},
     ["quantization: the scale of input 0 'x' has 2 elements: NNAPI accepts 1 here",
      "quantization: the zero point of input 0 'x' has 2 elements: NNAPI accepts 1 here"]),
    ("float[2] x", "y = QuantizeLinear (x, s, z)", {"z": np.int8(0)},
     ["quantization: output 'y' is int8: NNAPI accepts uint8"]),
    ("int32[2] x", "y = QuantizeLinear (x, s, z)", {},
     [f"runtime: input 0 'x' is int32: NNAPI accepts float32 here{FAILS}"]),
    ("uint8[2] x", "y = DequantizeLinear (x, s)", {}, []),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("inputs", "nodes", "options", "expected"), QUANTIZED_CASES)
def test_quantized_rules(inputs, nodes, options, expected):
    assert objections(inputs, nodes, options) == expected


GEMM = "t = Gemm (a, b, c)"
DQ = "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (w, s, z)"
BIAS = "c = DequantizeLinear (bias, s, zb)"
WDQ = "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (w, s, zw)"
END = "y = QuantizeLinear (t, s, z)"
ZB = {"zb": np.int32(0)}

GROUP_CASES = [
    ("uint8[2,4] x", f"{DQ} {BIAS} {GEMM} {END}", "Gemm", {"w": u8(4, 3), "bias": np.zeros(3, np.int32)} | ZB, []),
    ("uint8[2,4] x, int32[3] bias", f"{DQ} {BIAS} {GEMM} {END}", "Gemm", {"w": u8(4, 3)} | ZB,
     ["constant: input 2 'bias' is computed or fed: NNAPI needs a constant"]),
    ("uint8[2,4] x", f"{DQ} t = Gemm (a, b)  y = Neg (t)", "Gemm", {"w": u8(4, 3)},
     ["quantization: output 't' is not quantized: NNAPI needs all tensors of this operator as uint8"]),
    ("uint8[2] x", f"a = DequantizeLinear (x, s, z)  t = Sigmoid (a)  {END}", "Sigmoid", {},
     ["qdq: NNAPI runs Sigmoid only in float: this QDQ group of 3 nodes computes in uint8"]),
    ("uint8[2] x", f"a = DequantizeLinear (x, s, z)  t = Relu (a)  {END}", "Relu", {},
     ["qdq: NNAPI runs Relu only in float: this QDQ group of 3 nodes computes in uint8"]),
    (Q8, f"a = DequantizeLinear (x, s, z)  t = MaxPool <kernel_shape = [2, 2]> (a)  {END}", "MaxPool", {},
     ["qdq: NNAPI runs MaxPool only in float: this QDQ group of 3 nodes computes in uint8"]),
    ("uint8[2,4] x, uint8[2,4] w", f"{DQ} t = Sub (a, b) {END}", "Sub", {},
     ["qdq: NNAPI runs Sub only in float: this QDQ group of 4 nodes computes in uint8"]),
    (Q8, f"a = DequantizeLinear (x, s2, z)  t = AveragePool <kernel_shape = [2, 2]> (a)  {END}", "AveragePool",
     {"s2": F(0.25)},
     ["quantization: input 0 'x' has scale 0.25 and zero point 3, the output 0.5 and 3: NNAPI needs them equal"]),
    ("uint8[2,4] x", f"a = DequantizeLinear (x, s, z)  t = Softmax <axis = 1> (a)  {END}", "Softmax", {},
     ["quantization: the output has scale 0.5 and zero point 3: NNAPI has scale 0.00390625 and 0"]),
    (Q8, f"{WDQ} t = Conv (a, b)  {END}", "Conv", {"w": i8(2, 4, 3, 3), "zw": np.int8(0)}, []),
    (Q8, f"{WDQ} t = Conv (a, b)  {END}", "Conv", {"w": i8(2, 4, 3, 3).astype(np.int16), "zw": np.int16(0), "opset": 21},
     ["quantization: input 1 'w' is int16: NNAPI accepts uint8 or int8"]),
    ("uint8[2,4] x", f"{WDQ} t = Gemm (a, b)  {END}", "Gemm", {"w": i8(4, 3), "zw": np.int8(0)}, []),
    ("uint8[2,4] x", f"{DQ}  c = DequantizeLinear (w, s2, z)  t = Concat <axis = 1> (a, b, c)  {END}", "Concat",
     {"w": u8(2, 4), "s2": F(0.25), "feature_level": 28},
     ["quantization: input 2 'w' has scale 0.25 and zero point 3, the output 0.5 and 3: NNAPI needs them equal"]),
    ("int8[2,4] x", "a = DequantizeLinear (x, s, z)  t = Transpose (a)  y = QuantizeLinear (t, s, z)", "Transpose",
     {"z": np.int8(0)},
     ["quantization: input 0 'x' is int8: NNAPI accepts uint8", "quantization: output 'y' is int8: NNAPI accepts uint8"]),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("inputs", "nodes", "op", "options", "expected"), GROUP_CASES)
def test_group_rules(inputs, nodes, op, options, expected):
    options = dict(options)
    target = {k: options.pop(k) for k in ("feature_level",) if k in options}
    assert messages(make(inputs, nodes, **options), op, **target) == expected


@pytest.mark.parametrize(("dtype", "advised"), [("int8", True), ("int32", False)])
def test_only_int8_can_become_uint8(dtype, advised):
    graph = make(f"{dtype}[2] x", "y = DequantizeLinear (x, s, z)", z=np.zeros((), dtype))
    (objection,) = partition(graph).verdicts[node(graph, "DequantizeLinear")].objections
    assert objection.message == f"input 0 'x' is {dtype}: NNAPI accepts uint8"
    assert ("uint8" in objection.advice) is advised


def test_quantized_max_pool_of_old_versions_is_taken_apart():
    nodes = f"a = DequantizeLinear (x, s, z)  t = MaxPool <kernel_shape = [2, 2]> (a)  {END}"
    assert partition(make(Q8, nodes, opset=11)).taken == 3
    assert partition(make(Q8, nodes, opset=12)).taken == 0


def test_overridable_initializers_are_no_constants():
    graph = make("float[2,4] x, float[4,3] w", "y = MatMul (x, w)")
    (message,) = messages(graph, "MatMul")
    assert message == "constant: input 1 'w' is computed or fed: NNAPI needs a constant"
    graph.add_initializer("w", Tensor.of(f32(4, 3)))
    (objection,) = partition(graph).verdicts[node(graph, "MatMul")].objections
    assert objection.message == "input 1 'w' is computed or fed: NNAPI needs a constant"
    assert objection.advice == "it is a graph input with a default value: convert --freeze-initializers"


def test_newer_versions_of_operators_are_refused(monkeypatch):
    monkeypatch.setattr(units, "since_version", lambda node: 28)
    found = objections("float[2] x", "y = Relu (x)", {})
    assert found == ["since-version: Relu has version 28: NNAPI accepts 1 to 27"]


def test_advice_names_what_there_is():
    check_advice(INSTEAD, ROWS)


@pytest.mark.parametrize(
    ("inputs", "nodes", "advice"),
    [
        ("float[2] x", "y = HardSwish (x)", "Clip from 0 to 6"),
        (R5, "y = Sigmoid (x)", "merge dimensions with a Reshape before and part them after it, to 4 at most"),
        ("float x", "y = Sigmoid (x)", "give the tensor the shape [1] where it is made"),
        ("float16[2] x", "y = Relu (x)", "export the model in float32"),
        ("double[2] x", "y = Relu (x)", "export the model in float32"),
        ("int64[2] x", "y = Add (x, x)", "NNAPI has no 64-bit integers"),
        (X, 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', "use mode DCR"),
        ("float[1,N] x", "y = Relu (x)", "--fix-dim N=SIZE"),
        ("float[M,N] x", "y = Relu (x)", "--fix-dim M=SIZE --fix-dim N=SIZE"),
        ("float[?,N] x", "y = Relu (x)", f"convert {fix_dim_options(['x[0]', 'N'])}"),
        ("float[] x", "y = Relu (x)", "export it with sizes for them"),
        ("int64[N] x", "y = Add (x, x)", "--fix-dim N=SIZE"),
    ],
)
def test_objections_say_what_helps(inputs, nodes, advice):
    graph = make(inputs, nodes, opset=14)
    (objection, *_) = partition(graph).verdicts[next(iter(graph))].objections
    assert advice in objection.advice


def test_per_channel_weights_of_gemm_and_matmul():
    nodes = f"a = DequantizeLinear (x, s, z)  b = DequantizeLinear <axis = 0> (w, sw, zw)  t = {{}} (a, b)  {END}"
    weights = {"w": i8(4, 4), "sw": f32(4), "zw": np.zeros(4, np.int8)}
    assert messages(make("uint8[2,4] x", nodes.format("Gemm"), **weights), "Gemm") == [
        f"runtime: input 1 'w' has a scale for each channel: NNAPI's FULLY_CONNECTED has one{FAILS}"
    ]
    assert messages(make("uint8[2,4] x", nodes.format("Gemm <transB = 1>"), **weights), "Gemm") == [
        f"runtime: input 1 'w' is int8 with transB 1{FAILS}"
    ]
    assert partition(make("uint8[2,4] x", nodes.format("MatMul"), **weights)).taken == 0
    assert partition(make("uint8[2,4] x", nodes.format("Gemm"), **weights), Target(feature_level=28)).taken == 0
