"""Small models, each with something that the format must get right, in onnx's text form."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper, parser

TEXTS = {
    "conv": """<ir_version: 8, opset_import: ["": 13], producer_name: "tests", producer_version: "1.2", model_version: 7,
        doc_string: "a doc string", metadata_props: ["b": "2", "a": "1"]>
        g (float[1,3,8,N] x) => (float[1,4,M,K] y) <float[4,3,3,3] w> {
            c = Conv (x, w)
            r = Relu (c)
            y = MaxPool <kernel_shape = [2, 2]> (r)
        }""",
    "skipped": """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x, float hi) => (float[2,3] y, float[a,b] s) <int64[1] starts = {0}, int64[1] ends = {1}> {
            y = Clip (x, , hi)
            s = Slice (x, starts, ends)
        }""",
    "variadic": """<ir_version: 8, opset_import: ["": 13]>
        g (float[2,3] x, float[2,3] y) => (float[c,3] z, float[2,1] p, float[2,2] q) <int64[2] split = {1, 2}> {
            z = Concat <axis = 0> (x, y, x, x, y, x)
            p, q = Split <axis = 1> (x, split)
        }""",
    "if": """<ir_version: 8, opset_import: ["": 16]>
        g (bool c, float[2] x) => (float[2] y) {
            a = Abs (x)
            b = Neg (x)
            y = If (c) <
                then_branch = t () => (float[2] t) { u = Add (a, b)  t = Mul (u, a) },
                else_branch = e () => (float[2] e) <float[2] k = {1, 2}> { e = Sub (k, x) }
            >
        }""",
    "branch without nodes": """<ir_version: 8, opset_import: ["": 16]>
        g (bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] t) { t = Constant <value = float[2] {1, 2}> () },
                else_branch = e () => (float[2] e) { e = Constant <value = float[2] {3, 4}> () }
            >
        }""",
    "loop": """<ir_version: 8, opset_import: ["": 16]>
        g (int64 n, float[2] x) => (float[2] last, float[k,2] all) {
            s = Sin (x)
            last, all = Loop (n, , x) <
                body = b (int64 i, bool go, float[2] v) => (bool more, float[2] w, float[2] out) {
                    more = Identity (go)
                    w = Add (v, s)
                    out = Mul (w, x)
                }
            >
        }""",
    "nested": """<ir_version: 8, opset_import: ["": 16]>
        g (bool c, float[2] x, int64 n) => (float[2] y) {
            g0 = Sqrt (x)
            y = If (c) <
                then_branch = t () => (float[2] t) {
                    g1 = Exp (x)
                    t = Loop (n, c, g1) <
                        body = b (int64 i, bool go, float[2] v) => (bool more, float[2] w) {
                            more = Identity (go)
                            p = Add (v, g0)
                            w = Add (p, g1)
                        }
                    >
                },
                else_branch = e () => (float[2] e) { e = Identity (g0) }
            >
        }""",
    "scan": """<ir_version: 8, opset_import: ["": 11]>
        g (float[2] init, float[5,2] x) => (float[2] last, float[5,2] all) {
            last, all = Scan <num_scan_inputs = 1,
                body = b (float[2] s, float[2] v) => (float[2] t, float[2] o) { t = Add (s, v)  o = Identity (t) }
            > (init, x)
        }""",
    "sequence": """<ir_version: 8, opset_import: ["": 13]>
        g (float[2] x, float[3] y) => (seq(float[d]) s, int64 n) {
            s = SequenceConstruct (x, y)
            n = SequenceLength (s)
        }""",
    "maps": """<ir_version: 8, opset_import: ["": 13, "ai.onnx.ml": 2]>
        g (float[N,3] x) => (seq(map(int64, float)) z) {
            n = ai.onnx.ml.Normalizer <norm = "L2"> (x)
            z = ai.onnx.ml.ZipMap <classlabels_int64s = [10, 20, 30]> (n)
        }""",
    "microsoft": """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] z) <float[4,3,3,3] w> {
            y = com.microsoft.FusedConv <activation = "LeakyRelu", activation_params = [0.1]> (x, w)
            z = com.microsoft.Gelu (y)
        }""",
    "quantized": """<ir_version: 8, opset_import: ["": 13]>
        g (float[1,3,8,8] x) => (float[1,4,8,8] y)
            <float s = {0.1}, uint8 z = {128}, int8[4,3,1,1] w, float[4] ws = {0.1, 0.2, 0.3, 0.4},
             int8[4] wz = {0, 0, 0, 0}> {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws, wz)
            c = Conv (d, wd)
            cq = QuantizeLinear (c, s, z)
            y = DequantizeLinear (cq, s, z)
        }""",
    "attributes": """<ir_version: 8, opset_import: ["": 13, "ai.onnx.ml": 2]>
        g (string[3] s) => (int64[3] l, string[k] n) {
            l = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, -2], default_int64 = -7> (s)
            n = StringNormalizer <case_change_action = "LOWER", stopwords = ["x", "y"], locale = ""> (s)
        }""",
    "functions of the model": """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2] x) => (float[2] y) { a = local.twice (x)  y = local.twice (a) }
        <domain: "local", opset_import: ["": 17]>
        twice (v) => (w) { w = Add (v, v) }""",
    "old constants": """<ir_version: 3, opset_import: ["": 8]>
        g (float[2,3] x, float[3] b) => (float[2,3] y) <float[3] b = {1, 2, 3}> { y = Add (x, b) }""",
    "overridable": """<ir_version: 8, opset_import: ["": 13]>
        g (float[2,3] x, float[3] b) => (float[2,3] y) <float[3] b = {1, 2, 3}> { y = Add (x, b) }""",
}  # fmt: skip


def models() -> dict[str, ModelProto]:
    """All of the models by name."""
    found = {name: with_weights(parser.parse_model(text)) for name, text in TEXTS.items()}
    found["constants"] = constants()
    found["empty and scalar"] = empty_and_scalar()
    return found


def with_weights(model: ModelProto) -> ModelProto:
    """Make an initializer of every value named w, which the text only declares."""
    for info in list(model.graph.value_info):
        if info.name == "w":
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            values = (np.arange(np.prod(shape)) % 7 - 3).reshape(shape).astype(dtype)
            model.graph.initializer.append(numpy_helper.from_array(values, "w"))
            model.graph.value_info.remove(info)
    return model


def constants() -> ModelProto:
    """Strings, a sparse constant, numbers of every width, and payloads in every field that ONNX has for them."""
    values = {
        "f16": np.arange(200, dtype=np.float16),
        "i8": np.arange(-100, 100, dtype=np.int8),
        "u64": np.arange(200, dtype=np.uint64),
        "f64": np.linspace(-1, 1, 200),
        "flags": np.arange(200) % 3 == 0,
    }
    initializers = [numpy_helper.from_array(v, k) for k, v in values.items()]
    initializers.append(helper.make_tensor("i32", TensorProto.INT32, [200], list(range(200))))
    initializers.append(helper.make_tensor("bf16", TensorProto.BFLOAT16, [200], np.linspace(0, 1, 200)))
    initializers.append(helper.make_tensor("text", TensorProto.STRING, [200], [f"s{i}".encode() for i in range(200)]))
    sparse = SparseTensorProto(
        values=helper.make_tensor("sparse", TensorProto.FLOAT, [3], [1.5, 2.5, 3.5]),
        indices=helper.make_tensor("", TensorProto.INT64, [3], [1, 150, 40000]),
        dims=[200, 201],
    )
    names = [t.name for t in initializers] + ["sparse"]
    types = {t.name: t.data_type for t in initializers} | {"sparse": TensorProto.FLOAT}
    nodes = [helper.make_node("Shape", [name], [f"shape_{name}"]) for name in names]
    nodes.append(helper.make_node("Constant", [], ["lifted"], value_floats=[1.0, 2.0]))
    nodes.append(helper.make_node("Identity", ["lifted"], ["shape_lifted"]))
    outputs = [
        helper.make_tensor_value_info(f"shape_{n}", TensorProto.INT64, [2 if n == "sparse" else 1]) for n in types
    ]
    outputs.append(helper.make_tensor_value_info("shape_lifted", TensorProto.FLOAT, [2]))
    graph = helper.make_graph(nodes, "g", [], outputs, initializers, sparse_initializer=[sparse])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def empty_and_scalar() -> ModelProto:
    """Constants without elements and without dimensions, a fixed dimension of 0."""
    initializers = [
        numpy_helper.from_array(np.zeros((0, 3), np.float32), "none"),
        numpy_helper.from_array(np.int64(1), "i"),
    ]
    nodes = [
        helper.make_node("Concat", ["x", "none"], ["c"], axis=0),
        helper.make_node("Gather", ["c", "i"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"])
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
