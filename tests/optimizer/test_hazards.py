"""For each rule at risk: a model where it fires, and the same model with one thing changed where it must not.

What changes: a caller may override a constant; an inner value is returned or read by a branch; a constant is NaN, infinite, zero or
negative; an element type has no kernel; a tensor is empty. Whether a rule fires or not, the numbers are the source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from differential import examine
from mutations import retype
from onnx import TensorProto, helper, numpy_helper
from rewriting import parse, random_feeds

from ortconv.onnxio.load import from_proto
from ortconv.pipeline import optimize
from tests.batches import sampled

NAN, INF = float("nan"), float("inf")
TYPES = {"double": TensorProto.DOUBLE}


class Hazards(NamedTuple):
    """Constants by name, inner values by name, elements for constants, element types, and pieces of the text to replace."""

    text: str
    constants: str = ""
    inner: str = ""
    elements: tuple[tuple[str, float], ...] = ()
    types: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    opset: int = 13


NORM = "x, s, b, m, v"
STATISTICS = "float[3] s = {1, 2, 3}, float[3] b = {1, 0, 2}, float[3] m = {0, 1, 2}, float[3] v = {1, 2, 4}"
WEIGHTS = "float[3,2,1,1] w = {1, -2, 3, 1, 2, 1}"
GELU = "float r = {1.4142135}, float one = {1}, float half = {0.5}"
SCALES = "float s = {0.05}, float t = {0.02}, float u = {0.1}, uint8 z = {128}, int8 n = {0}, int8[3,2,1,1] c = {1, -2, 3, 9, 2, 1}"
QUANTIZED = "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) w = DequantizeLinear(c, t, n)"

RULES: dict[str, Hazards] = {
    "ConvAddFusion": Hazards(
        f"g (float[N,2,4,4] x) => (float y) <{WEIGHTS}, float[3,1,1] k = {{1, 2, 3}}> {{ i = Conv(x, w) y = Add(i, k) }}",
        "k", "i",
        texts=(("float[3,1,1] k = {1, 2, 3}", "float[1,1,4] k = {1, 2, 3, 4}"),),
    ),
    "ConvMulFusion": Hazards(
        f"g (float[N,2,4,4] x) => (float y) <{WEIGHTS}, float[3,1,1] k = {{1, 2, 3}}> {{ i = Conv(x, w) y = Mul(i, k) }}",
        "w k", "i", (("k", NAN), ("k", INF), ("k", 3e38)),
    ),
    "ConvBNFusion": Hazards(
        f"g (float[N,2,4,4] x) => (float y) <{WEIGHTS}, {STATISTICS}> {{ i = Conv(x, w) y = BatchNormalization(i, s, b, m, v) }}",
        "w s b m v", "i", (("v", NAN), ("v", -4), ("s", INF), ("m", NAN)),
    ),
    "BNConvFusion": Hazards(
        f"g (float[N,3,4,4] x) => (float y) <float[1,3,2,2] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}, {STATISTICS}>"
        " { i = BatchNormalization(x, s, b, m, v) y = Conv(i, w) }",
        "w s b m v", "i", (("v", NAN), ("v", -4), ("b", INF)),
        texts=(("Conv(i, w)", "Conv<pads = [1, 1, 1, 1]>(i, w)"),),
    ),
    "MatMul_BatchNormalization_Fusion": Hazards(
        f"g (float[N,2] x) => (float y) <float[2,3] w = {{1, 2, 3, 4, 5, 6}}, {STATISTICS}>"
        " { i = MatMul(x, w) y = BatchNormalization(i, s, b, m, v) }",
        "w s b m v", "i", (("v", NAN), ("v", -4), ("s", INF)),
    ),
    "Pad_Fusion": Hazards(
        f"g (float[N,2,4,4] x) => (float y) <{WEIGHTS}, int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}, float f = {{0}}>"
        " { i = Pad(x, p, f) y = Conv(i, w) }",
        "p f", "i", (("f", NAN), ("f", 1)),
    ),
    "MatMulAddFusion": Hazards(
        "g (float[N,2] x) => (float y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] k = {1, 2, 3}>"
        " { i = MatMul(x, w) y = Add(i, k) }",
        "", "i",
    ),
    "DivMulFusion": Hazards(
        "g (float[N,2] x, float[N,2] z) => (float y) <float one = {1}> { i = Div(one, x) y = Mul(i, z) }",
        "one", "i", (("one", 2), ("one", NAN)),
    ),
    "NoopElimination": Hazards(
        "g (float[N,2] x) => (float y) <float k = {1}> { i = Mul(x, k) y = Relu(i) }",
        "k", "", (("k", NAN), ("k", 0), ("k", 1.0000001)), texts=(("float k = {1}", "float[1,1,1] k = {1}"),),
    ),
    "FuseReluClip": Hazards(
        "g (float[N,2] x) => (float y) <float k = {1}> { i = Clip(x, k) y = Relu(i) }",
        "k", "i", (("k", NAN),),
    ),
    "EliminateSlice": Hazards(
        "g (float[N,4] x) => (float y) <int64[1] k = {0}, int64[1] e = {4}, int64[1] a = {1}>"
        " { i = Slice(x, k, e, a) y = Relu(i) }",
        "k e a", "", (("k", 1), ("e", 3)), texts=(("float[N,4]", "float[N,M]"),),
    ),
    "ExpandElimination": Hazards(
        "g (float[N,4] x) => (float y) <int64[2] k = {1, 4}> { i = Expand(x, k) y = Relu(i) }",
        "k", "", texts=(("{1, 4}", "{2, 4}"), ("float[N,4]", "float[N,M]")),
    ),
    "EliminateDropout": Hazards(
        "g (float[N,4] x) => (float y) <float r = {0.5}, bool t = {0}> { i = Dropout(x, r, t) y = Relu(i) }",
        "t",
    ),
    "IfInlining": Hazards(
        "g (float[N,4] x) => (float y) <bool c = {1}> { y = If(c) <then_branch = a () => (float p) { p = Relu(x) },"
        " else_branch = b () => (float q) { q = Neg(x) }> }",
        "c",
    ),
    "ConstantFolding": Hazards(
        "g (float[N,2] x) => (float y) <float[2] k = {1, 2}> { i = Exp(k) y = Mul(x, i) }",
        "k",
    ),
    "ReshapeFusion": Hazards(
        "g (float[2,6] x) => (float y) <int64[2] k = {3, 4}, int64[3] e = {2, 2, 3}> { i = Reshape(x, k) y = Reshape(i, e) }",
        "e",
    ),
    "SliceConcatToSpaceToDepthFusion": Hazards(
        "g (float[N,1,4,4] x) => (float y) <int64[2] a = {0, 0}, int64[2] b = {1, 0}, int64[2] c = {0, 1}, int64[2] d = {1, 1},"
        " int64[2] e = {4, 4}, int64[2] w = {2, 3}, int64[2] k = {2, 2}> { p = Slice(x, a, e, w, k) q = Slice(x, b, e, w, k)"
        " r = Slice(x, c, e, w, k) s = Slice(x, d, e, w, k) y = Concat<axis = 1>(p, q, r, s) }",
        "a e w k",
    ),
    "GeluFusion": Hazards(
        f"g (float[N,4] x) => (float y) <{GELU}> {{ d = Div(x, r) e = Erf(d) f = Add(e, one) i = Mul(x, f) y = Mul(i, half) }}",
        "r one half", "d e f i", (("r", NAN), ("half", 0.25)), ("double",),
    ),
    "FastGeluFusion": Hazards(
        "g (float[N,4] x) => (float y) <float h = {0.5}, float one = {1}, float c = {0.044715}, float s = {0.7978846}>"
        " { p = Mul(x, x) q = Mul(p, x) r = Mul(q, c) u = Add(x, r) v = Mul(u, s) t = Tanh(v) f = Add(t, one)"
        " i = Mul(x, f) y = Mul(i, h) }",
        "h one c s", "q u v t f i", (("c", NAN), ("s", INF)), ("double",),
        (("v = Mul(u, s)", "j = Add(x, one) k = Mul(u, s) v = Div(k, j)"),
         ("u = Add(x, r)", "j = Mul(q, q) k = Add(j, r) u = Add(x, k)"), ("float one = {1}", "float[1,1,1] one = {1}")),
    ),
    "QuickGeluFusion": Hazards(
        "g (float[N,4] x) => (float y) <float k = {1.702}> { i = Mul(x, k) s = Sigmoid(i) y = Mul(x, s) }",
        "k", "i s", (("k", NAN), ("k", INF)), ("double",),
    ),
    "BiasGeluFusion": Hazards(
        f"g (float[N,4] x, float[4] b) => (float y) <{GELU}>"
        " { h = Add(x, b) d = Div(h, r) e = Erf(d) f = Add(e, one) i = Mul(h, f) y = Mul(i, half) }",
        "", "h i", (), ("double",),
        (("x, float[4] b", "x, float[1] b"), ("N,4] x, float[4]", "N,M] x, float[M]"),
         ("N,4] x, float[4]", "N,4,4] x, float[4,4]"), ("N,4] x, float[4]", "N,1] x, float[4]")),
    ),
    "LayerNormFusion": Hazards(
        "g (float[N,4] x) => (float y) <float two = {2}, float e = {0.01}, float[4] s = {1, 2, 3, 4}>"
        " { m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean<axes = [-1]>(p)"
        " a = Add(v, e) r = Sqrt(a) q = Div(d, r) y = Mul(q, s) }",
        "two e", "m d p v a r q", (("e", NAN), ("e", -1), ("two", 3)), ("double",),
        (("float[4] s = {1, 2, 3, 4}", "float[1] s = {1}"), ("axes = [-1]", "axes = [0]")),
    ),
    "SimplifiedLayerNormFusion": Hazards(
        "g (float[N,4] x) => (float y) <float two = {2}, float e = {0.01}, float[4] s = {1, 2, 3, 4}> { p = Pow(x, two)"
        " v = ReduceMean<axes = [-1]>(p) a = Add(v, e) r = Sqrt(a) q = Div(x, r) y = Mul(q, s) }",
        "two e", "p v a r q", (("e", NAN), ("e", -1), ("two", 3)), ("double",),
        (("float[4] s = {1, 2, 3, 4}", "float[1] s = {1}"),),
    ),
    "MatMulScaleFusion": Hazards(
        "g (float[N,2,4] x, float[N,4,3] z) => (float y) <float k = {0.5}> { i = MatMul(x, z) y = Mul(i, k) }",
        "k", "i", (("k", NAN), ("k", INF), ("k", 0), ("k", 1e-45)),
    ),
    "MatmulTransposeFusion": Hazards(
        "g (float[2,4,3] x, float[2,4,5] z) => (float y) { i = Transpose<perm = [0, 2, 1]>(x) y = MatMul(i, z) }",

        texts=(("float[2,4,3] x, float[2,4,5] z", "float[2,0,3] x, float[2,0,5] z"),
               ("float[2,4,3] x, float[2,4,5]", "float[N,4,3] x, float[4,5]")),
    ),
    "ConvActivationFusion": Hazards(
        f"g (float[N,2,4,4] x) => (float y) <{WEIGHTS}, float k = {{0}}, float h = {{6}}> {{ i = Conv(x, w) y = Clip(i, k, h) }}",
        "k h", "i", (("h", NAN),), ("double",),
    ),
    "ConvAddActivationFusion": Hazards(
        f"g (float[N,2,4,4] x, float[N,3,4,4] z) => (float y) <{WEIGHTS}> {{ i = Conv(x, w) y = Add(i, z) }}",
        "", "i", (), ("double",),
        (("float[N,3,4,4] z", "float[N,3,1,1] z"), ("float[N,3,4,4] z", "float[N,3,4,M] z")),
    ),
    "PReluFusion": Hazards(
        "g (float[N,3,4,4] x) => (float y) <float[3,1,1] s = {0.5, 0.25, -1}> { y = PRelu(x, s) }",
        "s", "", (("s", NAN), ("s", -INF), ("s", 2), ("s", 0)),
    ),
    "LinearResizeOfBytes": Hazards(
        'g (uint8[1,3,4,4] x) => (uint8 y) <float[4] s = {1, 1, 2, 2}> { y = Resize<mode = "linear">(x, , s) }',
        "s", texts=(('"linear"', '"nearest"'), ('"linear"', '"linear", antialias = 1'), ("1, 1, 2, 2", "1, 2, 2, 2"),
                    ("uint8[1,3,4,4] x) => (uint8", "float[1,3,4,4] x) => (float")), opset=18,
    ),
    "GemmActivationFusion": Hazards(
        "g (float[64,2] x) => (float y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] k = {1, 2, 3}>"
        " { i = Gemm(x, w, k) y = Relu(i) }",
        "", "i", (), ("double",),
    ),
    "MatMulActivationFusion": Hazards(
        "g (float[64,2] x) => (float y) <float[2,3] w = {1, 2, 3, 4, 5, 6}> { i = MatMul(x, w) y = Relu(i) }",
        "w", "i", (), ("double",), texts=(("float[64,2]", "float[5,64,2]"), ("float[64,2]", "float[2]")),
    ),
    "GatherSliceToSplitFusion": Hazards(
        "g (float[N,4] x) => (float y, float z) <int64[1] k = {0}, int64[1] h = {2}, int64[1] e = {4}, int64[1] a = {1}>"
        " { y = Slice(x, k, h, a) z = Slice(x, h, e, a) }",
        "k h e a",
    ),
    "QDQSelectorActionTransformer": Hazards(
        f"g (float[1,2,4,4] x) => (float y) <{SCALES}> {{ {QUANTIZED} i = Conv(a, w) o = QuantizeLinear(i, u, z)"
        " y = DequantizeLinear(o, u, z) }",
        "", "i", (("u", NAN), ("u", INF), ("u", 0), ("u", -1), ("s", INF), ("t", NAN)),
    ),
    "MatMulIntegerToFloatFusion": Hazards(
        "g (uint8[N,2] x, float s) => (float y) <int8[2,3] w = {1, 2, 3, 4, 5, 6}, float t = {0.5}>"
        " { i = MatMulInteger(x, w) j = Cast<to = 1>(i) k = Mul(s, t) y = Mul(j, k) }",
        "", "i j",
    ),
}  # fmt: skip


def fired(proto: onnx.ModelProto) -> set[str]:
    return set(optimize(from_proto(proto), "all").counts())


def overridable(proto: onnx.ModelProto, name: str) -> None:
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    proto.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))


def returned(proto: onnx.ModelProto, name: str) -> None:
    proto.graph.output.append(helper.make_tensor_value_info(name, _type(proto, name), None))


def captured(proto: onnx.ModelProto, name: str) -> None:
    kind = _type(proto, name)
    branches = []
    for op in ("Abs", "Neg"):
        output = helper.make_tensor_value_info(f"{op}_out", kind, None)
        branches.append(helper.make_graph([helper.make_node(op, [name], [output.name])], op, [], [output]))
    proto.graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    proto.graph.node.append(
        helper.make_node("If", ["condition"], ["chosen"], then_branch=branches[0], else_branch=branches[1])
    )
    proto.graph.output.append(helper.make_tensor_value_info("chosen", kind, None))


def _type(proto: onnx.ModelProto, name: str) -> int:
    inferred = onnx.shape_inference.infer_shapes(proto).graph.value_info
    return next(v.type.tensor_type.elem_type for v in inferred if v.name == name)


def with_element(proto: onnx.ModelProto, name: str, element: float) -> None:
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[-1] = element
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))


def variations() -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """Rule, what is changed, and the model with the change."""
    for rule, case in RULES.items():
        for change in (overridable, returned, captured):
            for name in (case.constants if change is overridable else case.inner).split():
                proto = parse(case.text, case.opset)
                change(proto, name)
                yield rule, f"{name} {change.__name__}", proto
        for name, element in case.elements:
            proto = parse(case.text, case.opset)
            with_element(proto, name, element)
            yield rule, f"{name} {element}", proto
        for kind in case.types:
            proto = parse(case.text, case.opset)
            retype(proto.graph, TYPES[kind])
            yield rule, kind, proto
        for old, new in case.texts:
            assert old in case.text
            yield rule, new, parse(case.text.replace(old, new), case.opset)


VARIATIONS = list(variations())


@sampled(4)
@pytest.mark.parametrize("rule", RULES)
def test_fires(rule: str) -> None:
    proto = parse(RULES[rule].text, RULES[rule].opset)
    assert rule in fired(proto)
    examine(proto, [random_feeds(proto, seed) for seed in range(2)])


@sampled(16)
@pytest.mark.parametrize(("rule", "change", "proto"), VARIATIONS, ids=[f"{r}: {c}" for r, c, _ in VARIATIONS])
def test_must_not_fire(rule: str, change: str, proto: onnx.ModelProto) -> None:
    assert rule not in fired(proto)
    examine(proto, [random_feeds(proto, seed) for seed in range(2)], executor=False)
