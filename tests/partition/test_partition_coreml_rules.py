"""What CoreML takes, in both formats, and every objection with limit and actual value."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import check_advice, f32, make, messages, node, objections

from ortconv.choices import COREML_FORMATS
from ortconv.ir.types import DType, TensorType
from ortconv.partition import Target, partition
from ortconv.partition.coreml.rules import INSTEAD, ROWS
from tests.arrays import i64
from tests.batches import batched, sampled

NN, MLP = COREML_FORMATS
BOTH = COREML_FORMATS
F, B = np.float32, np.bool_

LISTED = {  # the tables of operators in the wheel of ONNX Runtime 1.31.1, and what pull requests and builders add to them
    NN: """Add ArgMax AveragePool BatchNormalization Cast Clip Concat Conv DepthToSpace Div Flatten Gather Gemm
        GlobalAveragePool GlobalMaxPool LeakyRelu LRN MatMul MaxPool Mul Pad Pow PRelu Reciprocal ReduceSum Relu Reshape Resize
        Shape Sigmoid Slice Softmax Split Squeeze Sqrt Sub Tanh Transpose  HardSigmoid Identity ReduceMean Tile""",
    MLP: """Add And ArgMax AveragePool Cast Clip Concat Conv ConvTranspose Cos DepthToSpace Ceil Div Elu Erf Exp GatherND Gemm
        Gelu GlobalAveragePool GlobalMaxPool GridSample GroupNormalization HardSigmoid Identity InstanceNormalization
        LayerNormalization LeakyRelu MatMul MaxPool Max Mul Pow PRelu Reciprocal ReduceSum ReduceMean ReduceMax Relu Reshape Resize
        Round Shape Sin Slice Softplus Split Sub Sigmoid Softmax Sqrt Squeeze Tanh Tile Transpose Unsqueeze Where QuickGelu
        FusedConv  BatchNormalization Gather Pad ReduceMin ReduceProd""",
}


@pytest.mark.parametrize("form", BOTH)
def test_every_listed_operator_has_a_row(form):
    assert sorted(op for op, row in ROWS.items() if form in row.formats) == sorted(LISTED[form].split())


# One node of each operator that is taken wherever the operator is, with `tail` to make a partition of those that make none alone.
LINEAR = 'mode = "linear", coordinate_transformation_mode = "asymmetric"'
KERNEL = "<kernel_shape = [2, 2]>"
PLAIN = {
    "Add": "y = Add (x, x)", "And": "y = And (p, p)", "ArgMax": "n = ArgMax (x)  y = Cast <to = 6> (n)",
    "AveragePool": f"y = AveragePool {KERNEL} (x)", "BatchNormalization": "y = BatchNormalization (x, k, k, k, k)",
    "Cast": "n = ArgMax (x)  y = Cast <to = 6> (n)", "Ceil": "y = Ceil (x)", "Clip": "y = Clip (x, lo, hi)",
    "Concat": "y = Concat <axis = 1> (x, x)", "Conv": "y = Conv (x, w)", "ConvTranspose": "y = ConvTranspose (x, w)",
    "Cos": "y = Cos (x)", "DepthToSpace": "y = DepthToSpace <blocksize = 2> (x)", "Div": "y = Div (x, x)", "Elu": "y = Elu (x)",
    "Erf": "y = Erf (x)", "Exp": "y = Exp (x)", "Flatten": "y = Flatten (x)",
    "FusedConv": 'y = com.microsoft.FusedConv <activation = "Relu"> (x, w)', "Gather": "y = Gather (x, i)",
    "GatherND": "y = GatherND (x, i)", "Gelu": "y = Gelu (x)", "Gemm": "y = Gemm (m, b)",
    "GlobalAveragePool": "y = GlobalAveragePool (x)", "GlobalMaxPool": "y = GlobalMaxPool (x)",
    "GridSample": "y = GridSample (x, g)", "GroupNormalization": "y = GroupNormalization <num_groups = 2> (x, k, k)",
    "HardSigmoid": "y = HardSigmoid (x)", "Identity": "y = Identity (x)",
    "InstanceNormalization": "y = InstanceNormalization (x, k, k)", "LRN": "y = LRN <size = 3> (x)",
    "LayerNormalization": "y = LayerNormalization (x, k8)", "LeakyRelu": "y = LeakyRelu (x)", "MatMul": "y = MatMul (m, b)",
    "Max": "y = Max (x, x, x)", "MaxPool": f"y = MaxPool {KERNEL} (x)", "Mul": "y = Mul (x, x)", "PRelu": "y = PRelu (x, c)",
    "Pad": "y = Pad (x, pads, lo)", "Pow": "y = Pow (x, x)", "QuickGelu": "y = com.microsoft.QuickGelu (x)",
    "Reciprocal": "y = Reciprocal (x)", "ReduceMax": "y = ReduceMax (x)", "ReduceMean": "y = ReduceMean (x)",
    "ReduceMin": "y = ReduceMin (x)", "ReduceProd": "y = ReduceProd (x)", "ReduceSum": "y = ReduceSum (x)", "Relu": "y = Relu (x)",
    "Reshape": "y = Reshape (x, shape)", "Round": "y = Round (x)", "Shape": "y = Shape (x)", "Sigmoid": "y = Sigmoid (x)",
    "Sin": "y = Sin (x)", "Slice": "y = Slice (x, i, j)", "Softmax": "y = Softmax (x)", "Softplus": "y = Softplus (x)",
    "Split": "y, y2 = Split <axis = 1, num_outputs = 2> (x)", "Sqrt": "y = Sqrt (x)", "Squeeze": "y = Squeeze (x, i)",
    "Sub": "y = Sub (x, x)", "Tanh": "y = Tanh (x)", "Tile": "y = Tile (x, reps)", "Transpose": "y = Transpose (x)",
    "Unsqueeze": "y = Unsqueeze (x, i)", "Where": "y = Where (p, x, x)",
    "Resize": 'y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , sc)',
}  # fmt: skip
VALUES = {
    "k": f32(4), "k8": f32(8), "lo": F(0), "hi": F(5), "w": f32(4, 4, 3, 3), "i": i64(0), "j": i64(1), "b": f32(4, 3),
    "c": f32(4, 1, 1), "pads": i64(0, 0, 1, 1, 0, 0, 1, 1), "shape": i64(4, 64), "sc": f32(4) * 0 + np.array([1, 1, 2, 2], F),
    "reps": i64(1, 1, 2, 1), "p": np.ones((1, 4, 8, 8), B),
}  # fmt: skip
INPUTS = "float[1,4,8,8] x, float[2,4] m, float[1,8,8,2] g, float[1,4] tail"


def plain(op: str):
    nodes = (
        PLAIN[op].replace("m = ArgMax", "am = ArgMax").replace("> (m)", "> (am)")
        if "ArgMax" in PLAIN[op]
        else PLAIN[op]
    )
    return make(INPUTS, f"{nodes}  t = {'Tanh' if op == 'Relu' else 'Relu'} (tail)", "y t", opset=21, **VALUES)


def test_the_table_of_plain_nodes_is_complete():
    assert sorted(PLAIN) == sorted(ROWS)


@batched
@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("op", PLAIN)
def test_plain_nodes(op, form):
    graph = plain(op)
    verdict = partition(graph, Target("coreml", coreml_format=form)).verdicts[node(graph, op)]
    rules = [o.rule for o in verdict.objections]
    if form not in ROWS[op].formats:
        assert rules == ["format"]
        assert f"--coreml-format {ROWS[op].formats[0]}" in verdict.objections[0].advice
    else:
        assert verdict.taken, verdict.objections


@sampled(4)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("op", PLAIN)
def test_nodes_with_computed_operands(op, form, known):
    """Every operand is an input of the model. CoreML gets a node only if the ranks of its operands are known."""
    graph = plain(op)
    for value in (*graph.inputs, *graph.initializers.values()):
        value.is_input = True
        value.type = value.type if known else TensorType(value.dtype, None)
    verdict = partition(graph, Target("coreml", coreml_format=form)).verdicts[node(graph, op)]
    assert known or not verdict.taken


FLOATS = sorted(op for op, nodes in PLAIN.items() if "(x" in nodes and op not in ("GatherND", "Cast"))


@sampled(4)
@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.DOUBLE, DType.UINT8])
@pytest.mark.parametrize("op", FLOATS)
def test_only_mlprogram_has_float16(op, dtype, form):
    if form not in ROWS[op].formats:
        return
    graph = plain(op)
    for value in graph.inputs[:1]:
        value.type = TensorType(dtype, value.shape)
    found = [m for m in messages(graph, op, ep="coreml", coreml_format=form) if m.startswith("dtype: input 0")]
    assert bool(found) == (dtype is not DType.FLOAT16 or form == NN)


# ---------------------------------------------------------------------- objections

X = "float[1,4,8,8] x"
TRIVIAL = "trivial: the partition would be 1 Cast, which computes nothing"
CONST = "is computed or fed: CoreML {} needs a constant"


def const(form: str, name: str, slot: int) -> str:
    return f"constant: input {slot} '{name}' {CONST.format(form)}"


def rs(mode: str, transform: str, more: str = "") -> str:
    return f'y = Resize <mode = "{mode}", coordinate_transformation_mode = "{transform}"{more}>'


FLOOR = ', nearest_mode = "floor"'


def s(*values: float) -> dict[str, np.ndarray]:
    return {"s": np.array(values, F)}


# (formats, inputs, the node, its constants and options of make and Target, all objections; {} is the format)
CASES = [
    (BOTH, "float[1,N] x", "y = Relu (x)", {}, []),
    (BOTH, "float[1,N] x", "y = Relu (x)", {"coreml_static_inputs": True},
     ["static-shape: 'x' has shape [1,N]: CoreML {} needs every dimension here"]),
    (BOTH, "float[1,4] x", "y = Relu (x)", {"coreml_static_inputs": True}, []),
    (BOTH, "float[1,1,1,1,1,2] x", "y = Relu (x)", {}, ["rank: 'x' has rank 6: CoreML {} accepts 5 at most"]),
    (BOTH, "float[1,1,1,1,2] x", "y = Relu (x)", {}, []),
    (BOTH, "float[2,16384] x", "y = Relu (x)", {}, []),
    (BOTH, "float[2,16385] x", "y = Relu (x)", {}, []),
    (BOTH, "float[1,1,16385] x", "y = Conv (x, k)", {"k": f32(1, 1, 1)},
     [f"dimension: '{name}' has a dimension of 16385: CoreML {{}} accepts 16384 at most here" for name in "xy"]),
    ((MLP,), "float[1,1,1,16384] x", "y = ConvTranspose <strides = [1, 2]> (x, k)", {"k": f32(1, 1, 1, 1)}, []),
    ((MLP,), "float[1,1,1,16385] x", "y = ConvTranspose (x, k)", {"k": f32(1, 1, 1, 1)},
     ["dimension: 'x' has a dimension of 16385: CoreML {} accepts 16384 at most here"]),
    (BOTH, "float[0,2] x", "y = Relu (x)", {}, ["empty: 'x' has shape [0, 2]: no dimension may be 0"]),
    (BOTH, "float[2] x", "y = Sinh (x)", {}, ["operator: CoreML has no operation for Sinh"]),
    (BOTH, "float[2] x", "y = other.Relu (x)", {}, ["domain: other:Relu 'y' is not of domain ai.onnx"]),
    (BOTH, "float[2] x", "y = Relu (x)", {"coreml_version": 2},
     ["coreml-version: the target has CoreML version 2: the least is 3"]),
    # dtypes
    (BOTH, "float[2] x, int64[2] e", "y = Pow (x, e)", {},
     ["dtype: input 1 'e' is int64 and the base float32: CoreML {} accepts equal types"]),
    ((NN,), "float16[2] x", "y = Pow (x, x)", {}, ["dtype: input 0 'x' is float16: CoreML {} accepts float32 here"]),
    ((MLP,), "float16[2] x", "y = Pow (x, x)", {}, []),
    ((NN,), "int64[2] x", "y = Add (x, x)", {}, ["dtype: input 0 'x' is int64: CoreML {} accepts float32 here"]),
    ((MLP,), "int64[2] x", "y = Add (x, x)", {}, []),
    ((MLP,), "float16[4] x", "e = Exp (x)  y = Tile (e, r)", {"r": i64(2), "coreml_version": 5},
     ["coreml-version: Tile of float16 needs CoreML version 6: the target has 5"]),
    ((MLP,), "bool[2] p, int32[2] x", "y = Where (c, x, x)", {"c": np.array([True, False])},
     ["dtype: input 1 'x' is int32: CoreML {} accepts float32 or float16 here",
      "dtype: input 2 'x' is int32: CoreML {} accepts float32 or float16 here"]),
    ((MLP,), "bool[2] p, float[2] x", "y = Where (p, x, x)", {}, []),
    # convolutions
    (BOTH, "float[1,3,8] x", "y = Conv (x, w)", {"w": f32(4, 3, 3)}, []),
    (BOTH, "float[1,1,8,8,8] x", "y = Conv (x, w)", {"w": f32(1, 1, 3, 3, 3)},
     ["rank: input 1 'w' has rank 5: CoreML {} accepts 3 to 4 here"]),
    ((NN,), f"{X}, float[4,4,3,3] w", "y = Conv (x, w)", {}, [const(NN, "w", 1)]),
    ((MLP,), f"{X}, float[4,4,3,3] w", "y = Conv (x, w)", {}, []),
    (BOTH, f"{X}, float[4] b", "y = Conv (x, w, b)", {"w": f32(4, 4, 3, 3)}, [const("{}", "b", 2)]),
    (BOTH, X, 'y = Conv <auto_pad = "SAME_LOWER"> (x, w)', {"w": f32(4, 4, 3, 3), "coreml_version": 6}, []),
    ((MLP,), X, 'y = Conv <auto_pad = "SAME_LOWER"> (x, w)', {"w": f32(4, 4, 3, 3), "coreml_version": 5},
     ["coreml-version: auto_pad SAME_LOWER needs CoreML version 6: the target has 5"]),
    ((NN,), X, 'y = Conv <auto_pad = "SAME_LOWER"> (x, w)', {"w": f32(4, 4, 3, 3), "coreml_version": 5}, []),
    ((MLP,), X, 'y = com.microsoft.FusedConv <activation = "Elu"> (x, w)', {"w": f32(4, 4, 3, 3)},
     ["attribute: activation is Elu: CoreML {} accepts Relu or Sigmoid or Tanh or LeakyRelu or Clip or HardSigmoid"]),
    ((MLP,), f"{X}, float[1,4,6,6] z", 'y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b, z)',
     {"w": f32(4, 4, 3, 3), "b": f32(4)},
     ["inputs: the node adds input 3 before the activation: CoreML has convolution and activation only"]),
    ((MLP,), X, "y = ConvTranspose <pads = [0, 0, 1, 1], output_padding = [1, 1], strides = [2, 2]> (x, w)", {"w": f32(4, 4, 3, 3)},
     ["attribute: pads are [0, 0, 1, 1]: CoreML needs them equal", "attribute: output_padding is [1, 1]: CoreML accepts 0"]),
    ((MLP,), X, 'y = ConvTranspose <auto_pad = "SAME_UPPER", output_shape = [8, 8]> (x, w)', {"w": f32(4, 4, 3, 3)},
     ["attribute: auto_pad is SAME_UPPER: CoreML {} accepts NOTSET or VALID",
      "attribute: output_shape is [8, 8]: CoreML accepts none"]),
    ((MLP,), f"{X}, float[4,4,3,3] w", "y = ConvTranspose (x, w)", {}, [const(MLP, "w", 1)]),
    # pooling
    (BOTH, "float[1,4,8] x", "y = MaxPool <kernel_shape = [2]> (x)", {},
     ["rank: input 0 'x' has rank 3: CoreML {} accepts 4 here",
      "attribute: kernel_shape is [2]: CoreML {} pools over 2 dimensions"]),
    ((NN,), X, "y = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (x)", {}, ["attribute: ceil_mode is 1: CoreML {} accepts 0"]),
    ((MLP,), X, "y = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (x)", {}, []),
    (BOTH, X, "y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1, dilations = [2, 1]> (x)", {},
     ["attribute: storage_order is 1: CoreML {} accepts 0", "attribute: dilations is [2, 1]: CoreML {} accepts 1 here",
      "outputs: the node has 2 outputs: CoreML {} makes 1"]),
    (BOTH, "float[1,4,8] x", "y = GlobalAveragePool (x)", {}, ["rank: input 0 'x' has rank 3: CoreML {} accepts 4 here"]),
    # products
    (BOTH, "float[2,4] x", "y = Gemm <transA = 1, alpha = 2.0, beta = 0.5> (x, b)", {"b": f32(2, 3)},
     ["attribute: transA is 1: CoreML {} accepts 0", "attribute: alpha is 2.0: CoreML {} accepts 1.0",
      "attribute: beta is 0.5: CoreML {} accepts 1.0"]),
    (BOTH, "float[2,4] x, float[4,3] b", "y = Gemm (x, b)", {}, [const("{}", "b", 1)]),
    *((BOTH, "float[2,4] x", "y = Gemm (x, b, c)", {"b": f32(4, 3), "c": c}, []) for c in (F(1), f32(1), f32(3), f32(1, 3))),
    (BOTH, "float[2,4] x", "y = Gemm <transB = 1> (x, b, c)", {"b": f32(3, 4), "c": f32(3)}, []),
    (BOTH, "float[2,4] x", "y = Gemm (x, b, c)", {"b": f32(4, 3), "c": f32(2, 3)},
     ["shape: input 2 'c' has shape [2, 3]: CoreML accepts 1 value, [3] or [1,3]"]),
    (BOTH, "float[2,4] x, float[3] c", "y = Gemm (x, b, c)", {"b": f32(4, 3)}, [const("{}", "c", 2)]),
    ((NN,), "float[5,2,4] x, float[5,4,3] b", "y = MatMul (x, b)", {},
     ["rank: input 0 'x' has rank 3: CoreML {} accepts 2 here", "rank: input 1 'b' has rank 3: CoreML {} accepts 2 here",
      const(NN, "b", 1)]),
    ((MLP,), "float[5,2,4] x, float[5,4,3] b", "y = MatMul (x, b)", {}, []),
    ((MLP,), "float[4] x, float[4,3] b", "y = MatMul (x, b)", {},
     ["rank: input 0 'x' has rank 1 and the other input 2: CoreML {} needs 2 at least"]),
    ((MLP,), "float[4] x, float[4] b", "y = MatMul (x, b)", {}, []),
    ((MLP,), "float16[2,4] x", "y = com.microsoft.Gelu (x)", {}, ["domain: com.microsoft:Gelu 'y' is not of domain ai.onnx"]),
    (BOTH, "float[2,4] x", "y = HardSigmoid (x)", {}, []),
    ((MLP,), X, 'y = com.microsoft.FusedConv <activation = "Clip", activation_params = [0.0]> (x, w)', {"w": f32(4, 4, 1, 1)},
     ["attribute: Clip has 1 activation_params: CoreML {} needs 2"]),
    (BOTH, "float[2,4] x", "y = Clip (x, k, k)", {"k": F(1)},
     ["attribute: both bounds are 1.0: CoreML {} accepts different ones"]),
    (BOTH, "float[2,4] x", "y = Clip <min = 1.0, max = 1.0> (x)", {"opset": 6},
     ["attribute: both bounds are 1.0: CoreML {} accepts different ones"]),
    ((MLP,), "int64[2,4] x", "y = Clip (x, k)", {"k": np.int64(1)},
     ["dtype: input 0 'x' is int64: CoreML {} accepts float32 or float16 here"]),
    (BOTH, "float[1,C,8,8] x", "y = PRelu (x, c)", {"c": f32(1)},
     ["static-shape: 'x' has shape [1,C,8,8]: CoreML {} needs its number of channels"]),
    # elementwise
    (BOTH, X, "y = PRelu (x, c)", {"c": f32(1)}, []),
    (BOTH, "float[1,1,8,8] x", "y = PRelu (x, c)", {"c": f32(1)},
     ["shape: input 1 'c' has 1 value for 1 channel: CoreML accepts 1 value for several channels only"]),
    (BOTH, X, "y = PRelu (x, c)", {"c": f32(8)}, ["shape: input 1 'c' has shape [8]: CoreML accepts [C,1,1] or 1 value"]),
    (BOTH, f"{X}, float[4,1,1] c", "y = PRelu (x, c)", {}, [const("{}", "c", 1)]),
    (BOTH, X, "y = PRelu (x, c)", {"c": f32(4, 8, 1)},
     ["shape: input 1 'c' has shape [4, 8, 1]: CoreML accepts [C,1,1] or 1 value"]),
    ((MLP,), "int64[2,4] x", "y = Clip (x)", {}, []),
    ((MLP,), "int64[2,4] x", "y = Clip (x, , k)", {"k": np.int64(1)},
     ["dtype: input 0 'x' is int64: CoreML {} accepts float32 or float16 here"]),
    (BOTH, "float[2] x, float hi", "y = Clip (x, , hi)", {}, [const("{}", "hi", 2)]),
    # normalization and reductions
    (BOTH, "float[1,4,8] x", "y = BatchNormalization (x, k, k, k, k)", {"k": f32(4)},
     ["rank: input 0 'x' has rank 3: CoreML {} accepts 4 here"]),
    (BOTH, f"{X}, float[4] k", "y = BatchNormalization (x, k, c, c, c)", {"c": f32(4)}, [const("{}", "k", 1)]),
    ((MLP,), "float[2,4] x", "y, mean = LayerNormalization <stash_type = 16> (x, k)", {"k": f32(4), "opset": 17},
     ["attribute: stash_type is 16: CoreML {} accepts 1", "outputs: the node has 2 outputs: CoreML {} makes 1"]),
    ((MLP,), "float[2,4] x, float[4] k", "y = LayerNormalization (x, k)", {"opset": 17}, [const(MLP, "k", 1)]),
    (BOTH, "float[2,N] x", "y = Softmax (x)", {}, []),
    (BOTH, "float[2,N] x", "y = Softmax (x)", {"opset": 11},
     ["static-shape: 'x' has shape [2,N]: CoreML {} needs every dimension here"]),
    (BOTH, "float[2,N] x, int64[1] a", "y = ReduceSum (x, a)", {}, [const("{}", "a", 1)]),
    ((MLP,), "float[2,N] x", "y = ReduceSum <noop_with_empty_axes = 1> (x)", {}, []),
    ((NN,), "float[2,N] x", "y = ReduceSum <noop_with_empty_axes = 1> (x)", {},
     ["attribute: noop_with_empty_axes is 1 and axes are empty: CoreML {} needs at least 1 axis"]),
    # moves
    (BOTH, "float[2,N] x", "y = Reshape (x, d)", {"d": i64(-1)},
     ["static-shape: 'x' has shape [2,N]: CoreML {} needs every dimension here"]),
    (BOTH, "float[2,4] x, int64[2] d", "y = Reshape (x, d)", {}, [const("{}", "d", 1)]),
    (BOTH, "float[2,4] x", "y = Reshape (x, d)", {"d": i64(1, 1, 1, 1, 2, 4)},
     ["rank: the result has rank 6: CoreML {} accepts 5 at most"]),
    (BOTH, "float x", "y = Reshape (x, d)", {"d": i64(1, 1)},
     ["rank: input 0 'x' has rank 0: CoreML {} accepts 1 to 5 here"]),
    ((NN,), "float x", "y = Flatten <axis = 0> (x)", {}, ["rank: input 0 'x' has rank 0: CoreML {} accepts 1 to 5 here"]),
    ((MLP,), "float[N,4] x", "y = GatherND (x, d)", {"d": i64(0)[None]},
     ["static-shape: 'x' has shape [N,4]: CoreML {} needs every dimension that is indexed"]),
    ((MLP,), "float[4,N] x", "y = GatherND (x, d)", {"d": i64(0)[None]}, []),
    ((MLP,), "float16[1,4,2,2] x", "y = DepthToSpace <blocksize = 2> (x)", {"coreml_version": 6},
     ["coreml-version: DepthToSpace of float16 needs CoreML version 7: the target has 6"]),
    ((MLP,), "float[2,4] x", "y = Shape <start = 2> (x)", {"opset": 15},
     ["empty: nothing is left of 2 dimensions from 2 on: CoreML {} needs an element"]),
    ((MLP,), "float[N,4] x", 'y = Pad <mode = "reflect"> (x, d)', {"d": i64(0, 1, 0, 0)},
     ["static-shape: 'x' has shape [N,4]: CoreML {} needs every dimension here"]),
    (BOTH, "float[2,4] x", "y = Reshape <allowzero = 1> (x, d)", {"d": i64(0, 4), "opset": 14},
     ["empty: the shape is [0, 4] with allowzero 1: no dimension may be 0"]),
    (BOTH, "float[1,4] x, int64[1] a", "y = Squeeze (x, a)", {}, [const("{}", "a", 1)]),
    *(((MLP,), "float[1,1,1,4] x", nodes, options, ["rank: the result has rank 6: CoreML {} accepts 5 at most"])
      for nodes, options in (("y = Unsqueeze (x, a)", {"a": i64(0, 1)}), ("y = Unsqueeze <axes = [0, 1]> (x)", {"opset": 12}))),
    (BOTH, "float[4,4] x, int64[1] a", "y = Slice (x, a, b)", {"b": i64(2)}, [const("{}", "a", 1)]),
    (BOTH, "float[4,4] x", "y = Slice (x, a, a)", {"a": i64(2)},
     ["empty: nothing is left of dimension 0 of size 4 from 2 to 2 by 1: CoreML {} needs an element"]),
    (BOTH, "float[4,4] x", "y = Slice (x, a, b, c, d)", {"a": i64(-1), "b": i64(-100), "c": i64(-1), "d": i64(-1)}, []),
    (BOTH, "int64[4,4] x", "y = Slice (x, a, b)", {"a": i64(0), "b": i64(2)}, []),
    ((MLP,), "float16[4,4] x", "y = Slice (x, a, b)", {"a": i64(0), "b": i64(2), "coreml_version": 5},
     ["coreml-version: Slice of float16 needs CoreML version 6: the target has 5"]),
    (BOTH, "float[4,4] x", "y = Slice <starts = [0], ends = [1]> (x)", {"opset": 9},
     ["since-version: Slice has version 1: CoreML accepts 10 to 27"]),
    (BOTH, "float[4,N] x", "y, z = Split <axis = 1> (x)", {},
     ["static-shape: 'x' has shape [4,N]: CoreML {} needs every dimension here"]),
    (BOTH, "float[4,N] x", "y, z = Split (x)", {}, []),
    (BOTH, "float[4,5] x", "y, z = Split <axis = 1, num_outputs = 2> (x)", {"opset": 18}, []),
    (BOTH, "float[4,1] x", "y, z = Split <axis = 1, num_outputs = 2> (x)", {"opset": 18},
     ["shape: dimension 1 is split into 2 parts: CoreML {} needs no part 0"]),
    (BOTH, "float[4,5] x", "y, z = Split <axis = 1, split = [2, 3]> (x)", {"opset": 11}, []),
    (BOTH, "float[4,5] x, int64[2] p", "y, z = Split (x, p)", {}, [const("{}", "p", 1)]),
    (BOTH, "float[4,5] x", "y, z = Split <axis = 1, split = [5, 0]> (x)", {"opset": 11},
     ["shape: the parts of dimension 5 are [5, 0]: CoreML {} needs all of it, no part 0"]),
    (BOTH, "float[4,5] x", "y, z = Split <axis = 1> (x, p)", {"p": i64(5, 0)},
     ["shape: the parts of dimension 5 are [5, 0]: CoreML {} needs all of it, no part 0"]),
    (BOTH, "float[4,5] x", "y = Split <axis = 1> (x, p)", {"p": i64(5)},
     ["outputs: the node has 1 output: CoreML {} splits into 2 at least"]),
    (BOTH, X, "y = Pad (x, p, v)", {"p": i64(0, 0, 1, -1, 0, 0, 0, 0), "v": F(0)},
     ["attribute: pads are [0, 0, 1, -1, 0, 0, 0, 0]: CoreML {} accepts none below 0"]),
    ((NN,), X, "y = Pad (x, p, v)", {"p": i64(0, 1, 0, 0, 0, 0, 0, 0), "v": F(0)},
     ["attribute: axis 1 of 4 is padded: CoreML {} pads the last 2 here"]),
    ((MLP,), X, "y = Pad (x, p)", {"p": i64(0, 1, 0, 0, 0, 0, 0, 0)}, []),
    ((NN,), X, 'y = Pad <mode = "reflect"> (x, p)', {"p": i64(0, 0, 1, 1, 0, 0, 1, 1)},
     ["attribute: mode is reflect: CoreML {} accepts constant"]),
    ((MLP,), X, 'y = Pad <mode = "reflect"> (x, p)', {"p": i64(0, 0, 1, 1, 0, 0, 1, 1)}, []),
    ((MLP,), X, 'y = Pad <mode = "reflect"> (x, p)', {"p": i64(0, 1, 1, 1, 0, 0, 1, 1)},
     ["attribute: axis 1 of 4 is padded: CoreML {} pads the last 2 when reflecting"]),
    ((MLP,), X, "y = Pad (x, p, , a)", {"p": i64(1, 1), "a": i64(-1), "opset": 18}, []),
    ((NN,), X, "y = Pad (x, p, , a)", {"p": i64(1, 1), "a": i64(-1), "opset": 18},
     ["inputs: the node has no constant_value: CoreML {} needs one"]),
    ((NN,), "float[8] x", "y = Pad (x, p, v)", {"p": i64(1, 1), "v": F(0)},
     ["rank: input 0 'x' has rank 1: CoreML {} accepts 2 to 5 here"]),
    ((MLP,), "float[8] x", "y = Pad (x, p)", {"p": i64(1, 1)}, []),
    ((MLP,), "float x", "y = Pad (x, p)", {"p": i64()}, ["empty: 'p' has shape [0]: no dimension may be 0"]),
    ((MLP,), "float[8] x", 'y = Pad <mode = "reflect"> (x, p)', {"p": i64(1, 8)},
     ["shape: axis 0 of size 8 is padded by 8: CoreML {} reflects fewer elements than there are"]),
    (BOTH, X, "y = Concat <axis = 1> (x)", {}, ["inputs: the node has 1 input: CoreML {} joins 2 at least"]),
    ((NN,), X, "y = Concat <axis = -1> (x, x)", {}, ["attribute: axis is -1: CoreML {} accepts 1 of 4, the channels"]),
    ((NN,), "float[4,8,8] x", "y = Concat <axis = 0> (x, x)", {}, ["rank: input 0 'x' has rank 3: CoreML {} accepts 4 here"]),
    ((MLP,), "float[4,8,8] x", "y = Concat <axis = 0> (x, x)", {}, []),
    ((NN,), "float[1,4,8] x", "y = LRN <size = 3> (x)", {}, []),
    ((NN,), "float[1,4,8,8,1] x", "y = LRN <size = 3> (x)", {}, ["rank: input 0 'x' has rank 5: CoreML {} accepts 3 to 4 here"]),
    ((NN,), X, "y = Pad (x, p, v, a)", {"p": i64(1, 1), "a": i64(-3), "opset": 18, "v": F(0)},
     ["attribute: axis 1 of 4 is padded: CoreML {} pads the last 2 here"]),
    ((NN,), X, 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', {}, ["attribute: mode is CRD: CoreML {} accepts DCR"]),
    ((MLP,), X, 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', {}, []),
    ((MLP,), "float[1,4,H,8] x", 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', {},
     ["static-shape: 'x' has shape [1,4,H,8]: CoreML {} needs every dimension here"]),
    (BOTH, "float[1,4,H,8] x", "y = DepthToSpace <blocksize = 2> (x)", {}, []),
    ((NN,), "float[2] x, int64[1] r", "y = Tile (x, r)", {}, [const(NN, "r", 1)]),
    (BOTH, "float[2] x", "y = Tile (x, r)", {"r": i64(0)}, ["attribute: input 1 'r' is [0]: CoreML {} repeats once at least"]),
    ((NN,), "float[2,3] x", "y = Shape <start = 1, end = 2> (x)", {"opset": 15},
     ["attribute: start is 1: CoreML {} accepts 0", "attribute: end is 2: CoreML {} accepts none"]),
    ((MLP,), "float[2,3] x", "y = Shape <start = 1, end = 2> (x)", {"opset": 15}, []),
    # indices
    (BOTH, "float[2,3] x", "y = Gather (x, i)", {"i": np.int64(1)}, []),
    (BOTH, "float[2,N] x", "y = Gather (x, i)", {"i": np.int64(1)},
     ["static-shape: 'x' has shape [2,N]: CoreML {} needs every dimension here"]),
    (BOTH, "float[2,N] x", "y = Gather (x, i)", {"i": i64(1)}, []),
    (BOTH, "float[1,1,1,1,3] x", "y = Gather (x, i)", {"i": np.int64(0)},
     ["rank: 'x' has rank 5 and the index is a scalar: CoreML {} accepts rank 4 at most then"]),
    (BOTH, "float[1,1,1,3] x", "y = Gather (x, i)", {"i": i64(0, 0, 0).reshape(1, 1, 3)},
     ["rank: the result has rank 6: CoreML {} accepts 5 at most"]),
    (BOTH, "int64[4] x", "y = Gather (x, i)", {"i": i64(1)}, []),
    (BOTH, "int32[4] x", "y = Gather (x, i)", {"i": i64(1)}, None),
    ((MLP,), "float[2,3] x, int64[1,1] i", "y = GatherND (x, i)", {}, [const(MLP, "i", 1)]),
    ((MLP,), "float[2,3] x", "y = GatherND <batch_dims = 1> (x, i)", {"i": i64(0, 1).reshape(2, 1)},
     ["attribute: batch_dims is 1: CoreML {} accepts 0"]),
    (BOTH, "float[2,3] x", "y = ArgMax <select_last_index = 1> (x)", {}, None),
    ((NN,), "float[2,3] x", "n = ArgMax <select_last_index = 1> (x)  y = Cast <to = 6> (n)", {},
     ["operator: CoreML {} casts only the result of ArgMax, and refuses ArgMax 'n'"]),
    ((NN,), "float[2,3] x", "n = Shape (x)  y = Cast <to = 6> (n)", {},
     ["operator: CoreML {} casts only the result of ArgMax"]),
    ((NN,), "float[2,3] x", "y = ArgMax (x)", {}, []),
    ((MLP,), "float[2,3] x", "y = ArgMax (x)", {}, []),
    ((NN,), "int64[2,3] x", "y = Cast <to = 6> (x)", {}, ["operator: CoreML {} casts only the result of ArgMax"]),
    ((NN,), "float[2,3] x", "y = Cast <to = 6> (x)", {},
     ["dtype: input 0 'x' is float32: CoreML {} accepts int64 here", "operator: CoreML {} casts only the result of ArgMax"]),
    *(((MLP,), f"{t}[2,3] x", "y = Cast <to = 1> (x)", {}, [TRIVIAL]) for t in ("float", "float16", "int32", "int64")),
    ((MLP,), "float[2,3] x", "y = Cast <to = 11> (x)", {},
     ["attribute: to is float64: CoreML {} casts to float32, float16, int32, int64, bool"]),
    ((MLP,), "double[2,3] x", "y = Cast <to = 1> (x)", {},
     ["dtype: input 0 'x' is float64: CoreML {} accepts float32 or float16 or int32 or int64 or bool here"]),
    # images
    ((MLP,), "float[1,4,8,8] x, float[1,8,8,2] g", 'y = GridSample <mode = "bicubic"> (x, g)', {"opset": 16},
     ["attribute: mode is bicubic: CoreML {} accepts linear or bilinear"]),
    ((MLP,), "float[1,4,8,8] x, float[1,8,8,2] g", 'y = GridSample <padding_mode = "reflection"> (x, g)', {"opset": 16},
     ["attribute: padding_mode is reflection with align_corners 0: CoreML {} accepts that with align_corners 1"]),
    ((MLP,), "float[1,4,8,8] x, float[1,8,8,2] g", 'y = GridSample <padding_mode = "reflection", align_corners = 1> (x, g)',
     {"opset": 16}, []),
    (BOTH, X, f"{rs('nearest', 'asymmetric', FLOOR)} (x, , s)", s(1, 1, 2, 3), []),
    (BOTH, X, f"{rs('nearest', 'half_pixel')} (x, , s)", s(1, 1, 2, 2),
     ["attribute: mode nearest has coordinate_transformation_mode half_pixel and nearest_mode round_prefer_floor: "
      "CoreML {} accepts asymmetric and floor"]),
    (BOTH, X, f"{rs('cubic', 'asymmetric')} (x, , s)", s(1, 1, 2, 2),
     ["attribute: mode is cubic: CoreML {} accepts linear or nearest"]),
    ((NN,), X, f"{rs('linear', 'asymmetric')} (x, , s)", s(1, 1, 2, 2), []),
    ((MLP,), X, f"{rs('linear', 'asymmetric')} (x, , s)", s(1, 1, 2, 2),
     ["attribute: mode linear has asymmetric coordinates and scales: CoreML MLProgram accepts them with sizes"]),
    (BOTH, X, f"{rs('linear', 'asymmetric')} (x, , , d)", {"d": i64(1, 4, 16, 24)}, []),
    (BOTH, X, f"{rs('linear', 'asymmetric')} (x, e, e, d)", {"d": i64(1, 4, 16, 24), "e": f32(0)}, []),
    ((NN,), X, f"{rs('linear', 'half_pixel')} (x, , s)", s(1, 1, 2, 2),
     ["attribute: coordinate_transformation_mode is half_pixel: CoreML {} accepts asymmetric"]),
    *(((MLP,), X, f"{rs('linear', t)} (x, , s)", s(1, 1, 2, 3), [])
     for t in ("half_pixel", "align_corners", "pytorch_half_pixel")),
    ((MLP,), X, f"{rs('linear', 'half_pixel')} (x, , s)", s(1, 1, 2, 1.5),
     ["shape: axis 3 of size 8 is scaled by 1.5: CoreML {} accepts whole numbers"]),
    ((MLP,), X, f"{rs('linear', 'half_pixel')} (x, , s)", s(1, 1, 2, 0.5),
     ["shape: axis 2 of size 8 is scaled by 2: CoreML {} shrinks all by 1 over a divisor of the size"]),
    ((MLP,), X, f"{rs('linear', 'half_pixel')} (x, , s)", s(1, 1, 1, 0.5),
     ["shape: axis 2 of size 8 is scaled by 1: CoreML {} shrinks all by 1 over a divisor of the size"]),
    ((MLP,), "float[1,4,H,W] x", f"{rs('linear', 'half_pixel')} (x, , , d)", {"d": i64(1, 4, 16, 3)}, []),
    ((NN,), "float[N,4,8,8] x", f"{rs('linear', 'asymmetric')} (x, , , d)", {"d": i64(1, 4, 16, 16)},
     ["static-shape: 'x' has shape [N,4,8,8]: CoreML {} needs every dimension here"]),
    ((MLP,), X, f"{rs('linear', 'half_pixel')} (x, , , d)", {"d": i64(1, 4, 16, 3)}, []),
    ((MLP,), X, f"{rs('linear', 'tf_crop_and_resize')} (x, , s)", s(1, 1, 2, 2),
     ["attribute: coordinate_transformation_mode is tf_crop_and_resize: CoreML {} accepts half_pixel, align_corners, "
      "pytorch_half_pixel or asymmetric"]),
    ((MLP,), X, f"{rs('linear', 'pytorch_half_pixel')} (x, , , d)", {"d": i64(1, 4, 1, 8)},
     ["attribute: axis 2 becomes 1: CoreML {} accepts pytorch_half_pixel for more than 1"]),
    ((NN,), X, f"{rs('linear', 'asymmetric')} (x, , s)", s(1, 1, 1.5, 0.5),
     ["shape: axis 2 of size 8 is scaled by 1.5: CoreML {} accepts whole numbers",
      "shape: axis 3 of size 8 is scaled by 0.5: CoreML {} accepts whole numbers"]),
    ((NN,), X, f"{rs('linear', 'asymmetric')} (x, , , d)", {"d": i64(1, 4, 12, 16)},
     ["shape: axis 2 of size 8 becomes 12: CoreML {} needs a multiple"]),
    ((MLP,), X, f"{rs('linear', 'half_pixel')} (x, , , d)", {"d": i64(1, 4, 12, 4)}, []),
    ((MLP,), X, f"{rs('linear', 'half_pixel')} (x, , s)", s(1, 1, 0.25, 1 / 3),
     ["shape: axis 3 of size 8 is scaled by 0.333333: CoreML {} shrinks all by 1 over a divisor of the size"]),
    (BOTH, X, f"{rs('nearest', 'asymmetric', FLOOR)} (x, , s)", s(1, 2, 2, 2),
     ["shape: axis 1 changes to 2 from 1: CoreML {} changes the last 2 axes only"]),
    (BOTH, X, f"{rs('nearest', 'asymmetric', FLOOR + ', antialias = 1, axes = [2, 3]')} (x, , s)", s(2, 2) | {"opset": 18},
     ["attribute: antialias is 1: CoreML {} accepts 0"]),
    (BOTH, "float[1,4,H,8] x", f"{rs('nearest', 'asymmetric', FLOOR)} (x, , s)", s(1, 1, 2, 2),
     ["static-shape: 'x' has shape [1,4,H,8]: CoreML {} needs every dimension here"]),
    (BOTH, f"{X}, float[4] s", f"{rs('nearest', 'asymmetric', FLOOR)} (x, , s)", {}, [const("{}", "s", 2)]),
    ((NN,), "float[4,8,8] x", f"{rs('nearest', 'asymmetric', FLOOR)} (x, , s)", s(1, 2, 2),
     ["rank: input 0 'x' has rank 3: CoreML {} accepts 4 here"]),
    ((MLP,), "float[4,8,8] x", f"{rs('nearest', 'asymmetric', FLOOR)} (x, , s)", s(1, 2, 2), []),
]  # fmt: skip

RUNS = [pytest.param(form, *case[1:], id=f"{form}-{i}") for i, case in enumerate(CASES) for form in case[0]]


@batched
@pytest.mark.parametrize(("form", "inputs", "nodes", "options", "expected"), RUNS)
def test_rules(form, inputs, nodes, options, expected):
    found = objections(inputs, nodes, options, ep="coreml", coreml_format=form)
    if expected is None:
        assert len(found) >= 1
    else:
        assert found == [message.format(form) if "{}" in message else message for message in expected]


def test_advice_names_what_there_is():
    check_advice(INSTEAD, ROWS)
