"""Models that onnxruntime does not load are refused with the node, the rule and what may help; what it loads is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from ortconv.errors import GraphError
from ortconv.onnxio.load import from_proto
from tests.batches import batched

IMAGE = "float[1,1,4,4] x"
KERNEL = "float[1,1,1,1] w = {1}"


def model(body: str, inputs: str = "float[2,3] x", constants: str = "", opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3, "own": 1]>'
    proto = parser.parse_model(f"{header} g ({inputs}) => (float y) <{constants}> {{ {body} }}")
    proto.graph.output[0].ClearField("type")
    return proto


def refusal_of_onnxruntime(proto: onnx.ModelProto, *, run: bool = False) -> str | None:
    """The error with which onnxruntime does not load a model, or if asked, does not run it on ones."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        if run:
            session.run(None, {value.name: _ones(value.type.tensor_type) for value in proto.graph.input})
    except Exception as error:
        return str(error)
    return None


def _ones(type: onnx.TypeProto.Tensor) -> np.ndarray:
    return np.ones([d.dim_value for d in type.shape.dim], helper.tensor_dtype_to_np_dtype(type.elem_type))


INVALID = [
    ("y = Reluu(x)", "opset 17 of ai.onnx has no operator 'Reluu'", "Relu"),
    ("y = com.microsoft.Gello(x)", "opset 1 of com.microsoft has no operator", "Gelu"),
    ("y = ai.onnx.ml.Scaller(x)", "opset 3 of ai.onnx.ml has no operator", "Scaler"),
    ("y = Gelu(x)", "opset 17 of ai.onnx has no operator 'Gelu'", "exists since opset 20: export with this version"),
    ("y = Attention(x, x, x)", "opset 17 of ai.onnx has no operator", "exists since opset 23"),
    ("y = FastGelu(x)", "opset 17 of ai.onnx has no operator", "com.microsoft has it: set the domain of the node"),
    ("y = Upsample(x, x)", "last defined in opset 9", None),
    ("y = LeakyRelu<alfa = 1.0>(x)", "has no attribute 'alfa'", "alpha"),
    ("y = com.microsoft.Gelu<beta = 1>(x)", "has no attribute 'beta'", "remove"),
    ("y = ReduceSum<axes = [1]>(x)", "has no attribute 'axes'", "in opset 13 it is input 1: pass a tensor"),
    ("y = Mod<start = 1>(x, x)", "has no attribute 'start'", "remove"),
    ("y = Cast<to = 1, round_mode = \"up\">(x)", "has no attribute 'round_mode'", "since opset 24: export"),
    ("y = LeakyRelu<alpha = 1>(x)", "'alpha' is of type INT, must be FLOAT", None),
    ('y = Softmax<axis = "1">(x)', "'axis' is of type STRING, must be INT", None),
    ("y = LRN(x)", "required attribute 'size' is missing", None),
    ("y = com.microsoft.Attention(x, x)", "required attribute 'num_heads' is missing", None),
    ("y = Relu(x, x)", "2 inputs, Relu of opset 14 has 1", None),
    ("y = Add(x)", "Add 'y': 1 input, Add of opset 14 has 2", None),
    ("y = Concat<axis = 0>()", "Concat 'y': 0 inputs, Concat of opset 13 has 1 or more", None),
    ("y, z = Relu(x)", "2 outputs, Relu of opset 14 has 1", None),
    ('y = Where(x, "", x)', "is left out, but is required|expected to have type", None),
    ("k = Cast<to = 11>(x) t = Transpose(k) y = MatMul(x, t)", "T of MatMul", "Cast"),
    ("k = Cast<to = 11>(x) y = Concat<axis = 0>(x, k)", "T of Concat", "Cast"),
    ("k = Cast<to = 6>(x) y = Sigmoid(k)", r"is tensor\(int32\), Sigmoid of opset 13 takes tensor\(bfloat16\)", "Cast"),
    ("k = Cast<to = 6>(x) y = com.microsoft.Gelu(k)", r"is tensor\(int32\), Gelu of opset 1 takes", "Cast"),
    ("y = Cast<to = 77>(x)", "Cast 'y': breaks a rule of the operator: Attribute to does not", "onnxruntime"),
    ("y = Concat<axis = -77>(x, x)", "axis must be in", "onnxruntime"),
    ("y = Transpose<perm = [0, 0]>(x)", "perm for Transpose has repeated value", "onnxruntime"),
    ("y = Transpose<perm = [-1, 5]>(x)", "Invalid attribute perm", "onnxruntime"),
    ("c = ReduceMin<keepdims = 0>(x) t = Less(c, c) "
     "r = If<then_branch = a () => (float p) { p = Identity(x) }, else_branch = b () => (float q) { q = Identity(c) }>(t)"
     "y = Transpose<perm = [0, 9]>(r)", r"'perm' is \[0, 9\], must be a permutation of the axes", None),
    ("c = ReduceMin<keepdims = 0>(x) t = Less(c, c) "
     "r = If<then_branch = a () => (float p) { p = Identity(x) }, else_branch = b () => (float q) { q = Identity(c) }>(t)"
     "y = MaxPool<kernel_shape = [3, 3], dilations = [2]>(r)",
     "'dilations' has 1 element, must have 2 for a window of 2 dimensions", None),
    ("y = Conv(x, x)", "at least 3 dimensions", "onnxruntime"),
    ("y = MatMul(x, x)", "Incompatible dimensions for matrix multiplication", "onnxruntime"),
    ("c = Equal(x, x) k = ReduceMin<keepdims = 0>(x) t = Less(k, k) "
     "y = If<then_branch = a () => (float p) { p = MatMul(x, x) }, else_branch = b () => (float q) { q = Identity(x) }>(t)",
     "MatMul 'p': breaks a rule", "onnxruntime"),
]  # fmt: skip


@batched
@pytest.mark.parametrize(("body", "message", "hint"), INVALID)
def test_refused(body: str, message: str, hint: str | None) -> None:
    proto = model(body)
    assert refusal_of_onnxruntime(proto) is not None
    with pytest.raises(GraphError, match=message) as raised:
        from_proto(proto)
    assert hint is None or hint in (raised.value.hint or "")
    assert raised.value.node is not None


@pytest.mark.parametrize(
    "attribute", ["strides = [0, 0]", "dilations = [0, 0]", "pads = [0, -1, 0, 0]", "strides = [1, 1, 1]"]
)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_impossible_windows_are_refused(op: str, attribute: str) -> None:
    proto = model(f"y = {op}<{attribute}>(x, w)", IMAGE, KERNEL)
    assert refusal_of_onnxruntime(proto) is not None
    with pytest.raises(GraphError, match=f"{op} 'y': breaks a rule of the operator: Attribute"):
        from_proto(proto)


WEIGHTS = f"{IMAGE}, float[1,1,1,1] w"
BROKEN_RULES = [
    ("y = LpNormalization<p = 3>(x)", "float[2,3] x", "'p' is 3, must be 1 or 2"),
    ("y = Conv<kernel_shape = [2, 1]>(x, w)", WEIGHTS,
     r"'kernel_shape' is \[2, 1\], but the weights have the shape \[1,1,1,1\]"),
    ("y = ConvTranspose<output_padding = [2, 0], strides = [2, 2]>(x, w)", WEIGHTS,
     r"'output_padding' is \[2, 0\], must be less than"),
    ("y, z = Split<num_outputs = 3>(x)", "float[6] x", "num_outputs is 3, but there are 2 outputs"),
    ("y = com.microsoft.BiasGelu(x, b)", "float[2,3] x, float[1] b", r"shape \[1\], must be \[3\]"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "inputs", "message"), BROKEN_RULES)
def test_a_node_on_which_onnxruntime_fails_is_refused(body: str, inputs: str, message: str) -> None:
    """onnxruntime loads most of them, and fails when they run."""
    proto = model(body, inputs, opset=18)
    assert refusal_of_onnxruntime(proto, run=True) is not None
    with pytest.raises(GraphError, match=message):
        from_proto(proto)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("y = Conv<kernel_shape = [3, 3]>(x, w)", f"{IMAGE}, float[N,M,3,3] w"),
        ("y = ConvTranspose<output_padding = [1, 0], strides = [1, 1], dilations = [2, 1]>(x, w)", WEIGHTS),
        ("y = com.microsoft.BiasGelu(x, b)", "float[2,N] x, float[3] b"),
    ],
)
def test_a_node_that_keeps_the_rules_is_not_refused(body: str, inputs: str) -> None:
    from_proto(model(body, inputs))


@pytest.mark.parametrize("inner", [False, True])
def test_a_value_of_another_type_than_declared_is_refused(inner: bool) -> None:
    proto = model("a = Relu(x) y = Cast<to = 1>(a)", "float16[2,3] x")
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 3])
    if inner:
        proto.graph.node.append(helper.make_node("Identity", ["y"], ["z"]))
        proto.graph.value_info.append(declared)
        proto.graph.output[0].name = "z"
    else:
        proto.graph.output[0].CopyFrom(declared)
    assert refusal_of_onnxruntime(proto) is not None
    with pytest.raises(GraphError, match=r"'y' .*float16.* float"):
        from_proto(proto)


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean", "Concat<axis = 0>"])
@pytest.mark.parametrize("inputs", ['""', 'x, ""', 'x, "", x'])
def test_a_variadic_input_that_is_left_out_is_refused(op: str, inputs: str) -> None:
    """onnxruntime loads some of these, and ends the process when they run."""
    with pytest.raises(GraphError, match=r"is left out, but is required|breaks a rule"):
        from_proto(model(f"y = {op}({inputs})"))


CACHES = "float[5,1] cos = {1, 1, 1, 1, 1}, float[5,1] sin = {0, 0, 0, 0, 0}, int64[1] p = {0}"


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [("float[2,2,3,0] x", ""), ("float[N,2,3,0] x", ""), ("float[2,3,0] x", "<num_heads = 2>")],
)
def test_empty_heads_with_caches_that_have_columns_are_refused(inputs: str, attributes: str) -> None:
    """onnxruntime loads such a node, and ends the process when it runs."""
    proto = model(f"y = com.microsoft.RotaryEmbedding{attributes}(x, p, cos, sin)", inputs, CACHES)
    with pytest.raises(GraphError, match="the heads are empty, must have 2 elements for caches of 1 column"):
        from_proto(proto)


@pytest.mark.parametrize("inputs", ["float[2,2,3,2] x", "float[0,2,3,0] x", "float[2,3,0] x"])
def test_heads_that_onnxruntime_rotates_are_not_refused(inputs: str) -> None:
    from_proto(model("y = com.microsoft.RotaryEmbedding(x, p, cos, sin)", inputs, CACHES))


@pytest.mark.parametrize("name", ["value", "value_int", "value_floats", "sparse_value"])
def test_a_constant_of_another_type_than_its_attribute_is_refused(name: str) -> None:
    proto = model('y = Constant<value_string = "text">()')
    proto.graph.node[0].attribute[0].name = name
    with pytest.raises(GraphError, match=f"attribute '{name}' is of type STRING, must be|Constant 'y': breaks a rule"):
        from_proto(proto)


VALID = [
    "a = Relu(x) y = MatMul(a, t) t = Transpose(x)",  # not sorted
    "y = Relu<__own = 1>(x)",
    'y = Dropout(x, "", "")',
    "k = own.Anything<what = 1>(x, x) y = Relu(k)",
    "k = own.Anything(x) c = Concat<axis = 77>(k, k) y = Relu(c)",
    "s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 2>(s)",
    "s = SequenceConstruct(x, x) i = Constant<value_int = 0>() a = SequenceAt(s, i) y = Concat<axis = 2>(a, a)",
]


@pytest.mark.parametrize("body", VALID)
def test_accepted(body: str) -> None:
    proto = model(body)
    if "own." not in body:
        assert refusal_of_onnxruntime(proto) is None
    from_proto(proto)


def test_declared_shapes_that_contradict_are_no_reason_to_refuse() -> None:
    proto = model("a = Relu(x) y = Add(a, x)")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [7, 5]))
    assert refusal_of_onnxruntime(proto) is None
    from_proto(proto)


def test_what_onnx_calls_deprecated_and_onnxruntime_does_not() -> None:
    proto = model("y = GroupNormalization<num_groups = 2>(x, s, s)", "float[1,4,3] x", "float[2] s = {1, 1}", opset=18)
    assert refusal_of_onnxruntime(proto) is None
    from_proto(proto)


def test_an_outer_value_that_a_branch_returns() -> None:
    """What is declared of it is left out where a contradiction elsewhere makes inference run again."""
    proto = model(
        "k = ReduceMin<keepdims = 0>(x) t = Less(k, k) a = Relu(x) "
        "y = If<then_branch = a () => (float p) { p = Identity(a) }, else_branch = b () => (float q) { q = Neg(a) }>(t)"
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [7, 5]))
    assert refusal_of_onnxruntime(proto) is None
    from_proto(proto)


def test_a_type_that_no_schema_compares() -> None:
    proto = model("s = SequenceConstruct(x, x) n = SequenceLength(s) y = Cast<to = 1>(n)")
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "unused"))
    assert refusal_of_onnxruntime(proto) is None
    from_proto(proto)
