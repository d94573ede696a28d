"""What ONNX Runtime's provider takes and NNAPI then refuses: an objection of its own, and none of it is given to NNAPI."""

from __future__ import annotations

import re

import numpy as np
import pytest
from partition_graphs import SCALE, f32, i8, make, messages, u8

from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions
from ortconv.backends.nnapi.claims import claim, region_of
from ortconv.errors import GraphError
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.partition import Target, partition
from ortconv.partition.nnapi.runtime import FAILS
from tests.arrays import i64
from tests.batches import batched, sampled

F = np.float32
X = "float[1,4,8,8] x"
R5 = "float[1,1,1,1,2] x"
RANK5 = "input 0 'x' has rank 5: NNAPI accepts at most 4 here"
Q, P = "uint8[2,4] x", {"t": F(0.25), "so": F(0.25)}
W = {"w": f32(4, 4, 3, 3)}

# (inputs, the nodes, their constants and options of make and Target, the refusals of the last node)
CASES = [
    *((R5, f"y = {op} (x)", {}, [RANK5]) for op in ("Floor", "Relu", "Tanh")),
    (R5, "y = Clip (x, lo, hi)", {"lo": F(0), "hi": F(6)}, [RANK5]),
    (R5, "y = Softmax (x)", {"opset": 12}, [RANK5]),
    ("uint8[1,1,1,1,2] x", "y = DequantizeLinear (x, s, z)", {}, [RANK5]),
    (R5, "a = Abs (x)  y = Identity (a)", {}, []),
    (R5, "a = Abs (x)  y = Identity (x)", {}, ["'y' is 'x' of rank 5 under another name: NNAPI copies rank 4 at most"]),
    ("float[1,1,1,2,3] x", "y = MatMul (x, k)", {"k": f32(1, 1, 1, 3, 2)},
     [RANK5, "input 1 'k' has rank 5: NNAPI accepts at most 4 here"]),
    ("float[2,3] x", "y = PRelu (x, k)", {"k": f32(1, 2, 3)},
     ["input 1 'k' has rank 3: NNAPI accepts at most 2 here, the rank of the first input"]),
    ("float[2,3] x", "y = LeakyRelu (x)", {"feature_level": 28},
     ["LeakyRelu by LESS and SELECT needs feature level 29: the target has 28"]),
    (X, "y = Conv <group = 2> (x, w)", {"w": f32(4, 2, 3, 3), "feature_level": 28},
     ["a convolution of 2 groups of 2 channels needs feature level 29: the target has 28"]),
    (X, "y = Conv <group = 4> (x, w)", {"w": f32(4, 1, 3, 3), "feature_level": 28}, []),
    (X, "y = Conv <pads = [3, 0, 0, 0]> (x, w)", W,
     ["pads are [3, 0, 0, 0] around a window of [3, 3]: NNAPI accepts padding smaller than the window"]),
    (X, "y = Conv <pads = [3, 0, 0, 0], dilations = [2, 1]> (x, w)", W, []),
    (X, "y = MaxPool <kernel_shape = [9, 9]> (x)", {},
     ["a window of [9, 9] does not fit into an image of [8, 8] with its padding"]),
    (X, 'y = MaxPool <kernel_shape = [9, 9], auto_pad = "SAME_UPPER"> (x)', {}, []),
    ("float[2,6] x", "y = Gather <axis = 1> (x, i)", {"i": i64(0, -2)}, ["input 1 'i' holds -2: NNAPI accepts indices from 0"]),
    ("float[2,6] x", "y = Gather (x, i)", {"i": np.array(1, np.int32)}, ["input 1 'i' is a single number of int32"]),
    ("float[2,6] x", "y = Gather (x, i)", {"i": np.array(1)}, []),
    ("float[0,2] x", "y = Add (x, x)", {}, ["'x' has shape [0,2]: the runtime cannot be fed such a tensor"]),
    ("float[0,2] x", "y = Add (x, x)", {"feature_level": 28},
     [f"'{v}' has shape [0,2]: the runtime has such tensors from feature level 29: the target has 28" for v in "xy"]),
    ("float[2,2] x", "e = Slice (x, i, i)  y = Add (e, k)", {"i": i64(1), "k": f32(0, 2)},
     ["a constant has no elements: NNAPI has no such constants"]),
    ("float[2,2] x", "e = Slice (x, i, i)  y = Neg (e)", {"i": i64(1)},
     ["'e' has shape [0,2]: the operations of Neg support no such tensor"]),
    ("float[2,2] x", "e = Slice (x, i, i)  y = Relu (e)", {"i": i64(1)}, []),
    (Q, "y = com.microsoft.QLinearMul (x, s, z, x, s, z, so, z)", P,
     ["the output has scale 0.25, the inputs 0.5 and 0.5: NNAPI needs a scale above 0.25"]),
    (Q, "y = QLinearMatMul (x, s, z, w, s, z, so, z)", P | {"w": u8(4, 3), "feature_level": 28},
     ["the output has scale 0.25, the inputs 0.5 and 0.5: NNAPI needs a scale above 0.25 "
      "below feature level 29 (the target has 28)"]),
    (Q, "y = QLinearMatMul (x, s, z, w, s, z, so, z)", P | {"w": u8(4, 3), "feature_level": 29}, []),
    ("uint8[2] x", "y = DequantizeLinear (x, h, z)", {"h": np.float16(0.5), "opset": 19},
     ["the scale 'h' is float16: the provider reads float32"]),
    ("float[2] x", "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, t, z)", P,
     ["'q' has scale 0.25 and zero point 3 here and scale 0.5 and zero point 3 elsewhere: NNAPI knows one of each for a tensor"]),
    ("float[2,1] x", "q = QuantizeLinear (x, s, z)  r = Transpose (q)  y = DequantizeLinear (r, t, z)", P,
     ["'r' has scale 0.25 and zero point 3 here and scale 0.5 and zero point 3 elsewhere: NNAPI knows one of each for a tensor"]),
    ("float[2] x", "q = QuantizeLinear (x, s, z)  r = QuantizeLinear (x, t, z)  y = Concat <axis = 0> (q, r)", P,
     ["'r' has scale 0.25 and zero point 3 here and scale 0.5 and zero point 3 elsewhere: NNAPI knows one of each for a tensor"]),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("inputs", "nodes", "options", "expected"), CASES)
def test_refusals_of_the_runtime(inputs, nodes, options, expected):
    options = dict(options)
    target = {k: options.pop(k) for k in ("feature_level",) if k in options}
    graph = make(inputs, nodes, "y", **options)
    assert messages(graph, list(graph)[-1].op, **target) == [f"runtime: {message}{FAILS}" for message in expected]


LINEAR = '<mode = "linear", coordinate_transformation_mode = "asymmetric">'


@pytest.mark.parametrize(("scale", "end"), [("s", None), ("t", "elsewhere")])
def test_a_constant_with_two_scales(scale: str, end: str | None) -> None:
    nodes = f"a = DequantizeLinear (k, s, z)  b = Add (x, a)  c = DequantizeLinear (k, {scale}, z)  y = Add (b, c)"
    found = messages(make("float[2] x", nodes, "y", **P, k=u8(2)), "DequantizeLinear")
    said = "numbers: 'k' has scale 0.25 and zero point 3 here and scale 0.5 and zero point 3 elsewhere: NNAPI knows one of each"
    assert found == ([f"{said} for a tensor; ONNX Runtime's provider accepts the node all the same"] if end else [])


NEAREST = '<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'


@pytest.mark.parametrize(
    ("mode", "scale", "end"),
    [
        (LINEAR, 1.5, "to 10: NNAPI scales it by 10/7"),
        (LINEAR, 2.0, None),
        (NEAREST, 1.5, None),
        (NEAREST, 1.125, "to 7: NNAPI scales it by 7/7"),
    ],
)
def test_other_numbers(mode, scale, end):
    graph = make("float[1,1,7,7] x", f"y = Resize {mode} (x, , k)", k=np.array([1, 1, 1, scale], F))
    said = f"numbers: dimension 3 of size 7 is scaled by {scale:g} {end}; ONNX Runtime's provider accepts the node all the same"
    assert messages(graph, "Resize") == ([said] if end else [])


@pytest.mark.parametrize("size", [3, 4])
def test_other_numbers_of_lrn(size: int) -> None:
    said = f"numbers: size is {size}: NNAPI sums {size - 1} channels, as many before as behind"
    found = messages(make("float[1,4,8,8] x", f"y = LRN <size = {size}> (x)"), "LRN")
    assert found == ([f"{said}; ONNX Runtime's provider accepts the node all the same"] if size == 4 else [])


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.5])
def test_other_numbers_of_elu(alpha: float) -> None:
    said = f"numbers: alpha is {alpha:g}: NNAPI changes numbers above 0 by it, and makes 0 of those below"
    found = messages(make("float[2,3] x", f"y = Elu <alpha = {alpha}> (x)"), "Elu")
    assert found == ([f"{said}; ONNX Runtime's provider accepts the node all the same"] if alpha < 0 else [])


@pytest.mark.parametrize(
    ("axis", "scales", "options", "refused"),
    [
        ("axis = 0", f32(4), {}, False),
        ("axis = -4", f32(4), {}, False),
        ("axis = 1", f32(4), {}, True),
        ("axis = -3", f32(4), {}, True),
        ("axis = 1, block_size = 4", f32(4, 1, 1, 1), {"opset": 21}, False),
        ("axis = 0, block_size = 4", f32(1, 4, 1, 1), {"opset": 21}, True),
    ],
)
def test_scales_along_another_dimension_of_weights(
    axis: str, scales: Array, options: dict[str, int], refused: bool
) -> None:
    group = f"a = DequantizeLinear (x, s, z)  b = DequantizeLinear <{axis}> (w, sw)  t = Conv (a, b)"
    nodes = f"{group}  y = QuantizeLinear (t, s, z)"
    found = messages(make("uint8[1,4,8,8] x", nodes, w=i8(4, 4, 1, 1), sw=scales, **options), "Conv")
    said = "numbers: input 1 'w' has 4 scales along another dimension than 0: NNAPI applies them to dimension 0"
    assert found == ([f"{said}; ONNX Runtime's provider accepts the node all the same"] if refused else [])


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
@pytest.mark.parametrize(
    ("bias", "scale", "zero", "refused"),
    [
        ([9, -300, 70000], F(0.25), 0, False),
        ([9, -300, 70000], F(0.25) * F(1 + 5e-7), 0, False),
        ([9, -300, 70000], F(0.2), 0, True),
        ([9, -300, 70000], F(0.25), 5, True),
        ([0, 0, 0], F(0.2), 0, False),
        ([9, -300, 4], F([0.25, 0.25, 0.2]), 0, True),
    ],
)
def test_scales_of_biases(op: str, bias: list[int], scale: F, zero: int, refused: bool) -> None:
    shape, w = ("uint8[1,4,8,8]", u8(3, 4, 3, 3)) if op == "Conv" else ("uint8[2,4]", u8(4, 3))
    inner = (
        "a = DequantizeLinear (x, s, z)  b = DequantizeLinear (w, s, z)  c = DequantizeLinear <axis = 0> (bias, sb, zb)"
    )
    values = {"bias": np.array(bias, np.int32), "sb": scale, "zb": np.full(scale.shape, zero, np.int32), "so": F(9)}
    graph = make(f"{shape} x", f"{inner}  t = {op} (a, b, c)  y = QuantizeLinear (t, so, z)", w=w, **values)
    said = (
        "numbers: input 2 'bias' has not the product of the scales of input and weights as its scale, or a zero point"
    )
    end = ": NNAPI takes it so; ONNX Runtime's provider accepts the node all the same"
    assert messages(graph, op) == ([f"{said}{end}"] if refused else [])


@pytest.mark.parametrize(
    ("inputs", "nodes", "refused"),
    [
        ("float[2,6] x", "t = Pad (x, p)", True),
        ("float[2,6] x", "a = Pad (x, p)  t = Relu (a)", True),
        ("float[2,6] x", "a = Pad (x, p)  t = Identity (a)", False),
        ("uint8[2,6] x", "a = DequantizeLinear (x, s, z)  b = Neg (a)  t = Pad (b, p)", True),
    ],
)
def test_a_pad_that_the_provider_takes_for_a_group(inputs: str, nodes: str, refused: bool) -> None:
    graph = make(inputs, f"{nodes}  y = QuantizeLinear (t, s, z)", p=i64(0, 0, 1, 1))
    said = f"runtime: Pad is between values that are not quantized and QuantizeLinear{FAILS}"
    assert messages(graph, "Pad") == ([said] if refused else [])


@pytest.mark.parametrize(
    ("nodes", "refused"),
    [
        ("r = Concat <axis = 0> (a, b)", [1]),
        ("r = Concat <axis = 0> (a, b, c)", [1, 2]),
        ("r = Concat <axis = 0> (a, m)", []),
        ("r = Concat <axis = 0> (b, a)  k = Relu (c)  l = QuantizeLinear (k, s, z)", [1]),
        ("r = Concat <axis = 0> (b, a)  k = Sigmoid (d)  l = QuantizeLinear (k, s, z)", []),
    ],
)
def test_a_concat_of_values_from_outside(nodes: str, refused: list[int]) -> None:
    read = {"a": "x", "b": "w", "c": "v", "d": "x"}
    makers = "  ".join(f"{name} = DequantizeLinear ({value}, s, z)" for name, value in read.items())
    inner = "n = QuantizeLinear (f, s, z)  m = DequantizeLinear (n, s, z)"
    inputs = "uint8[2,4] x, uint8[2,4] w, uint8[2,4] v, float[2,4] f"
    graph = make(inputs, f"{makers}  {inner}  {nodes}  y = QuantizeLinear (r, s, z)")
    found = [message for message in messages(graph, "Concat") if "comes from outside" in message]
    assert [int(message.split()[2]) for message in found] == refused


def test_a_node_that_the_provider_refuses_is_not_said_to_be_taken():
    found = messages(make("float[N,1,1,1,2] x", "y = Tanh (x)"), "Tanh")
    assert found == ["static-shape: 'x' has shape [N,1,1,1,2]: NNAPI needs every dimension"]


# ---------------------------------------------------------------------- against the runtime itself

UNARY = "Abs Elu Exp Floor Identity LeakyRelu Log Neg Relu Sigmoid Sin Sqrt Tanh Softmax Transpose Flatten Squeeze ReduceMean"
NODES = {
    **{op: f"y = {op} (x)" for op in UNARY.split()},
    **{op: f"y = {op} (x, x)" for op in ("Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub")},
    "PRelu by a number": "y = PRelu (x, one)",
    "Softmax before version 13": "y = Softmax (x)",
    "Clip": "y = Clip (x, lo, hi)",
    "Cast": "y = Cast <to = 6> (x)",
    "Concat": "y = Concat <axis = -1> (x, x)",
    "BatchNormalization": "y = BatchNormalization (x, k, k, k, k)",
    "DepthToSpace": "y = DepthToSpace <blocksize = 2> (x)",
    "Gather": "y = Gather (x, i)",
    "Gather of one": "y = Gather <axis = -1> (x, j)",
    "GlobalAveragePool": "y = GlobalAveragePool (x)",
    "LRN": "y = LRN <size = 3> (x)",
    "MatMul": "y = MatMul (x, x)",
    "MaxPool": "y = MaxPool <kernel_shape = [2, 2]> (x)",
    "Reshape": "y = Reshape (x, rows)",
    "Reshape to rank 6": "y = Reshape (x, ones)",
    "Slice": "y = Slice (x, i, j, i, i)",
    "Unsqueeze": "y = Unsqueeze (x, i)",
    "DequantizeLinear": "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)",
    "raw Transpose": "q = QuantizeLinear (x, s, z)  w = Transpose (q)  y = DequantizeLinear (w, s, z)",
    "QDQ Add": "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  e = DequantizeLinear (q, s, z)"
    "  a = Add (d, e)  p = QuantizeLinear (a, s, z)  y = DequantizeLinear (p, s, z)",
}  # fmt: skip
VALUES = {
    "lo": F(0), "hi": F(6), "k": f32(4) + 2, "i": i64(1), "j": np.int64(2), "rows": i64(-1, 2), "ones": i64(1, 1, 1, 1, 1, -1),
    "one": F(0.5), "s": SCALE,
}  # fmt: skip


WITH_WEIGHTS = {
    "Conv": "y = Conv (x, w1)",
    "depthwise Conv": "y = Conv <group = 4> (x, w4)",
    "Conv in groups": "y = Conv <group = 2> (x, w2)",
    "Resize": f"y = Resize {LINEAR} (x, , twice)",
    "AveragePool": "y = AveragePool <kernel_shape = [2, 2]> (x)",
    "GlobalMaxPool": "y = GlobalMaxPool (x)",
    "QuantizeLinear": "y = QuantizeLinear (x, s, z)",
}


@sampled(4)
@pytest.mark.parametrize("name", sorted((NODES.keys() | WITH_WEIGHTS.keys()) - {"MatMul", "QDQ Add", "Squeeze"}))
def test_operators_of_tensors_without_elements(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules know, as the runtime does, which operators support a tensor without elements that another operation makes.

    They refuse two more: a Squeeze of no axis, and what reads such a tensor from a QDQ group.
    """
    nodes = re.sub(r"\bx\b", "none", (NODES | WITH_WEIGHTS)[name])
    weights = {
        "w1": f32(3, 4, 2, 2),
        "w4": f32(4, 1, 2, 2),
        "w2": f32(4, 2, 2, 2),
        "twice": F([1, 1, 2, 2]),
        "far": i64(4),
    }
    graph = make("float[4,4,2,4] x", f"f = Floor (x)  none = Slice (f, far, far)  {nodes}", "y", **VALUES, **weights)
    taken = [node.op for node, verdict in partition(graph, Target()).verdicts.items() if verdict.taken]
    with monkeypatch.context() as without:
        without.setattr("ortconv.partition.nnapi.runtime._empty", lambda *given: iter(()))
        refused = claim(graph, Target()).refused
    assert taken == [node.op for node in graph if node not in refused]


@pytest.mark.slow
@batched
@pytest.mark.parametrize("level", range(27, 32))
@pytest.mark.parametrize("rank", range(7))
@pytest.mark.parametrize("name", NODES)
def test_what_is_given_to_nnapi_runs_there(name, rank, level):
    """Every operator at every rank: with a Relu, which has a limit of its own, and an Abs, which has none, behind it."""
    dims = [4] * rank
    dims[2:3] = [2] if rank > 3 else dims[2:3]
    shape = f"float[{','.join(map(str, dims))}]" if rank else "float"
    nodes = f"{NODES[name]}  r = Relu (y)  t = Abs (r)"
    try:
        graph = make(f"{shape} x", nodes, "t", opset=11 if name == "Softmax before version 13" else 13, **VALUES)
    except GraphError:
        return  # the operator has no such form
    unknown = any(value.static_shape is None for n in graph for value in n.outputs)
    if unknown or (name == "BatchNormalization" and rank < 2):
        return  # the operator has no such form
    backend = Nnapi(NnapiOptions(feature_level=level))
    for found in partition(graph, Target(feature_level=level)).partitions:
        region = region_of(graph, found.units)
        program = backend.compile(region)
        program.run([fed(value) for value in region.inputs])
        program.close()


def fed(value):
    kinds = {DType.FLOAT: f32, DType.UINT8: u8}
    return kinds.get(value.dtype, lambda *dims: np.ones(dims, np.int32))(*value.static_shape)
