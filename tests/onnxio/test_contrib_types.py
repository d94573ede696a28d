"""Types and shapes of ONNX Runtime's own operators, held against what onnxruntime infers when it loads a node of each."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from ortconv.ir.graph import Graph, Ints, Strings, Value
from ortconv.ir.schema import Formal, Schema, schema
from ortconv.ir.types import DType, MapType, TensorType
from ortconv.onnxio.infer import infer_node
from ortconv.onnxio.load import from_proto
from tests import unoptimized
from tests.batches import batched
from tests.model_inputs import drawn

Q = "float[2, 3, 16] q, float[2, 3, 16] k, float[2, 3, 16] v"
GQA = "int32[2] lens, int32[1] total"
PAST = "float[2, 2, 5, 8] pk, float[2, 2, 5, 8] pv"
NODES = [
    # node with its attributes, its inputs in order ("_" for one left out), what is declared of them, number of outputs
    ("Attention<num_heads = 2>", "x w b", "float[2, 3, 8] x, float[8, 24] w, float[24] b", 1),
    ("Attention<num_heads = 2>", "x w b _ p", "float[2, 3, 8] x, float[8, 24] w, float[24] b, float[2, 2, 2, 5, 4] p", 2),
    ("Attention<num_heads = 2>", "x w b", "float[2, 3, 8] x, float[8, 24] w, float[24] b", 2),
    ("Attention<num_heads = 2, qkv_hidden_sizes = [8, 8, 12]>", "x w b", "float[2, 3, 8] x, float[8, 28] w, float[28] b", 1),
    ("Attention<num_heads = 2, past_present_share_buffer = 1>", "x w b _ p _ l",
     "float[2, 3, 8] x, float[8, 24] w, float[24] b, float[2, 2, 2, 5, 4] p, int32 l", 2),
    ("AttnLSTM<hidden_size = 4>", "x w r b l h c p a m v n t u", "float[3, 2, 5] x, float[1, 16, 9] w, float[1, 16, 4] r, "
     "float[1, 32] b, "
     "int32[2] l, float[1, 2, 4] h, float[1, 2, 4] c, float[1, 12] p, float[1, 4, 4] a, float[1, 4, 4] m, float[1, 4] v, "
     "float[2, 3, 4] n, int32[2] t, float[1, 8, 4] u", 3),
    ("BiasGelu", "x b", "float[2, 3] x, float[3] b", 1),
    ("BifurcationDetector", "s c p d", "int64[M] s, int64[N] c, int64 p, int64[K] d", 2),
    ("BranchwiseRMSNorm", "x", "float[2, 3, 4, 8] x", 1),
    ("CDist<metric = \"sqeuclidean\">", "x y", "float[2, 3] x, float[4, 3] y", 1),
    ("ConvTransposeWithDynamicPads", "x w p", "float[1, 2, 5, 5] x, float[2, 3, 3, 3] w, int64[4] p", 1),
    ("CropAndResize<mode = \"bilinear\">", "x r i s", "float[1, 3, 8, 8] x, float[4, 4] r, int32[4] i, int32[2] s", 1),
    ("DequantizeLinear", "x s z", "uint8[2, 3] x, float s, uint8 z", 1),
    ("DequantizeLinear", "x s", "int32[2, 3] x, float s", 1),
    ("DynamicQuantizeLSTM<hidden_size = 4>", "x w r b _ _ _ _ ws wz rs rz", "float[3, 2, 5] x, uint8[1, 5, 16] w, "
     "uint8[1, 4, 16] r, float[1, 32] b, float[1] ws, uint8[1] wz, float[1] rs, uint8[1] rz", 3),
    ("DynamicQuantizeMatMul", "x w s z", "float[2, 3] x, uint8[3, 4] w, float s, uint8 z", 1),
    ("DynamicTimeWarping", "x", "float[1, 3, 4] x", 1),
    ("EmbedLayerNormalization", "i s w p t g b m",
     "int32[2, 3] i, int32[2, 3] s, float[9, 8] w, float[9, 8] p, float[2, 8] t, float[8] g, float[8] b, int32[2, 3] m", 2),
    ("EmbedLayerNormalization", "i _ w p _ g b", "int32[2, 3] i, float[9, 8] w, float[9, 8] p, float[8] g, float[8] b", 3),
    ("ExpandDims", "x a", "float[2, 3] x, int32 a", 1),
    ("FastGelu", "x", "float[2, 3] x", 1),
    ("FusedConv<activation = \"Relu\">", "x w", "float[1, 2, 5, 5] x, float[3, 2, 3, 3] w", 1),
    ("FusedGemm<activation = \"Relu\">", "x w", "float[2, 3] x, float[3, 4] w", 1),
    ("FusedMatMul<transB = 1>", "x w", "float[2, 3] x, float[4, 3] w", 1),
    ("GatherBlockQuantized<block_size = 16>", "x i s", "uint4[8, 32] x, int64[3] i, float[8, 2] s", 1),
    ("GatherBlockQuantized<block_size = 16>", "x i s", "uint8[8, 16] x, int64[3] i, float[8, 2] s", 1),
    ("GatherBlockQuantized<block_size = 16, bits = 8>", "x i s", "uint8[8, 32] x, int64[3] i, float[8, 2] s", 1),
    ("GatherBlockQuantized<block_size = 16, bits = 2>", "x i s", "uint8[8, 8] x, int64[3] i, float[8, 2] s", 1),
    ("GatherND", "x i", "float[2, 3, 4] x, int64[5, 2] i", 1),
    ("Gelu", "x", "float[2, 3] x", 1),
    ("GridSample", "x g", "float[1, 2, 5, 5] x, float[1, 3, 3, 2] g", 1),
    ("GroupQueryAttention<num_heads = 2, kv_num_heads = 2>", "q k v _ _ lens total", f"{Q}, {GQA}", 1),
    ("GroupQueryAttention<num_heads = 2, kv_num_heads = 2>", "q k v _ _ lens total", f"{Q}, {GQA}", 3),
    ("GroupQueryAttention<num_heads = 2, kv_num_heads = 2>", "q k v pk pv lens total", f"{Q}, {PAST}, {GQA}", 3),
    ("GroupQueryAttention<num_heads = 4, kv_num_heads = 2>", "q _ _ pk pv lens total",
     f"float[2, 3, 64] q, {PAST}, {GQA}", 3),
    ("GroupQueryAttention<num_heads = 2, kv_num_heads = 2, qk_output = 1>", "q k v pk pv lens total", f"{Q}, {PAST}, {GQA}", 4),
    ("Inverse", "x", "float[2, 3, 3] x", 1),
    ("MatMulBnb4<K = 16, N = 4, block_size = 16, quant_type = 0>", "x w a", "float[2, 16] x, uint8[32] w, float[4] a", 1),
    ("MatMulInteger16", "x w", "int16[2, 3] x, int16[3, 4] w", 1),
    ("MatMulIntegerToFloat", "x w a b", "uint8[2, 3] x, int8[3, 4] w, float a, float b", 1),
    ("MatMulIntegerToFloat", "x w a b", "uint8[2, 3] x, int8[3, 4] w, float16 a, float16 b", 1),
    ("MatMulNBits<K = 16, N = 4, block_size = 16, bits = 4>", "x w s", "float[2, 16] x, uint8[4, 1, 8] w, float[4] s", 1),
    ("MaxpoolWithMask<kernel_shape = [2, 2]>", "x m", "float[1, 1, 4, 4] x, int32[1, 1, 4, 4] m", 1),
    ("MultiHeadAttention<num_heads = 2>", "q k v", Q, 1),
    ("MultiHeadAttention<num_heads = 2>", "q k v", Q, 3),
    ("MultiHeadAttention<num_heads = 2>", "q k v _ _ _ pk pv", f"{Q}, {PAST}", 3),
    ("MultiHeadAttention<num_heads = 2>", "q k v _ _ _ pk pv l", f"{Q}, {PAST}, int32[1] l", 3),
    ("MultiHeadAttention<num_heads = 2>", "q k v", "float[2, 3, 16] q, float[2, 2, 5, 8] k, float[2, 2, 5, 8] v", 3),
    ("MultiHeadAttention<num_heads = 2>", "q k v", "float[2, 3, 16] q, float[2, 5, 16] k, float[2, 5, 24] v", 3),
    ("MultiHeadAttention<num_heads = 2>", "q", "float[2, 3, 2, 3, 8] q", 1),
    ("DecoderMaskedMultiHeadAttention<num_heads = 2>", "q k v _ _ pk pv l",
     f"float[2, 1, 16] q, float[2, 1, 16] k, float[2, 1, 16] v, {PAST}, int32 l", 3),
    ("MurmurHash3", "x", "int32[2, 3] x", 1),
    ("MurmurHash3<positive = 0>", "x", "int32[2, 3] x", 1),
    ("NGramRepeatBlock<ngram_size = 2>", "i s", "int64[2, 3] i, float[2, 9] s", 1),
    ("NhwcMaxPool<kernel_shape = [2, 2]>", "x", "uint8[1, 4, 4, 2] x", 1),
    ("Pad", "x p", "float[2, 3] x, int64[4] p", 1),
    ("QAttention<num_heads = 2>", "x w b s t", "uint8[2, 3, 8] x, uint8[8, 24] w, float[24] b, float s, float t", 1),
    ("QAttention<num_heads = 2>", "x w b s t _ y z p",
     "uint8[2, 3, 8] x, uint8[8, 24] w, float[24] b, float s, float t, uint8 y, uint8 z, float[2, 2, 2, 5, 4] p", 2),
    ("QEmbedLayerNormalization", "i _ w p _ g b _ ws ps _ gs bs wz pz _ gz bz",
     "int32[2, 3] i, uint8[9, 8] w, uint8[9, 8] p, uint8[8] g, uint8[8] b, float ws, float ps, float gs, float bs, "
     "uint8 wz, uint8 pz, uint8 gz, uint8 bz", 2),
    ("QGemm", "a s z b t y _ u o", "uint8[2, 3] a, float s, uint8 z, uint8[3, 4] b, float t, uint8 y, float u, uint8 o", 1),
    ("QGemm", "a s z b t y", "uint8[2, 3] a, float s, uint8 z, uint8[3, 4] b, float t, uint8 y", 1),
    ("QLinearAdd", "a s z b t y u o", "uint8[2, 3] a, float s, uint8 z, uint8[3] b, float t, uint8 y, float u, uint8 o", 1),
    ("QLinearMul", "a s z b t y u o", "int8[2, 3] a, float s, int8 z, int8[3] b, float t, int8 y, float u, int8 o", 1),
    ("QLinearAveragePool<kernel_shape = [2, 2]>", "x s z t y", "uint8[1, 2, 4, 4] x, float s, uint8 z, float t, uint8 y", 1),
    ("QLinearAveragePool<kernel_shape = [2, 2], channels_last = 1>", "x s z t y",
     "uint8[1, 4, 4, 2] x, float s, uint8 z, float t, uint8 y", 1),
    ("QLinearGlobalAveragePool", "x s z t y", "uint8[1, 2, 4, 4] x, float s, uint8 z, float t, uint8 y", 1),
    ("QLinearConcat<axis = 1>", "s z a t y b u o",
     "float s, uint8 z, uint8[2, 3] a, float t, uint8 y, uint8[2, 4] b, float u, uint8 o", 1),
    ("QLinearConv", "x s z w t y u o",
     "uint8[1, 2, 4, 4] x, float s, uint8 z, uint8[3, 2, 3, 3] w, float t, uint8 y, float u, uint8 o", 1),
    ("QLinearLeakyRelu", "x s z t y", "uint8[2, 3] x, float s, uint8 z, float t, uint8 y", 1),
    ("QLinearSigmoid", "x s z t y", "uint8[2, 3] x, float s, uint8 z, float t, uint8 y", 1),
    ("QLinearSoftmax<opset = 13>", "x s z t y", "uint8[2, 3] x, float s, uint8 z, float t, uint8 y", 1),
    ("QLinearWhere", "c a s z b t y u o",
     "bool[2, 3] c, uint8[2, 3] a, float s, uint8 z, uint8[3] b, float t, uint8 y, float u, uint8 o", 1),
    ("QuantizeLinear", "x s z", "float[2, 3] x, float s, int8 z", 1),
    ("QuantizeLinear", "x s", "float[2, 3] x, float s", 1),
    ("QuickGelu", "x", "float[2, 3] x", 1),
    ("Range", "a b c", "float a, float b, float c", 1),
    ("RotaryEmbedding", "x p c s", "float[2, 3, 8] x, int64[2, 3] p, float[9, 2] c, float[9, 2] s", 1),
    ("SampleOp", "x", "float[2, 3] x", 1),
    ("ScaledSiLU", "x", "float[2, 3] x", 1),
    ("SkipLayerNormalization", "x s g", "float[2, 3, 8] x, float[2, 3, 8] s, float[8] g", 4),
    ("SkipSimplifiedLayerNormalization", "x s g", "float[2, 3, 8] x, float[2, 3, 8] s, float[8] g", 4),
    ("Tokenizer<mark = 1, mincharnum = 1, pad_value = \"#\", separators = [\" \"]>", "x", "string[2] x", 1),
    ("TransposeMatMul<transA = 1>", "a b", "float[3, 2] a, float[3, 4] b", 1),
    ("Trilu", "x", "float[2, 3] x", 1),
    ("UnfoldTensor<dim = 1, size = 2, step = 1>", "x", "float[2, 5] x", 1),
    ("Unique", "x", "float[5] x", 3),
    ("WordConvEmbedding<conv_window_size = 2>", "s w b c", "int32[2, 3] s, float[4, 1, 2, 5] w, float[4] b, float[9, 5] c", 1),
]  # fmt: skip


LESS_KNOWN = {"GroupQueryAttention"}
"""onnxruntime takes the length of the keys for that of the present ones, which an input states."""


def outputs(text: str) -> tuple[list[TensorType], list[TensorType]]:
    """The types that onnxruntime and ortconv give to the outputs of a model, without symbolic dimensions.

    onnxruntime says of an unknown rank that it is 0.
    """
    proto = parser.parse_model(text)
    for output in proto.graph.output:
        output.ClearField("type")
    theirs = [
        TensorType(DType[o.type[7:-1].upper()], tuple(d if isinstance(d, int) else None for d in o.shape) or None)
        for o in unoptimized.session(proto).get_outputs()
    ]
    ours = []
    for value in from_proto(proto).graph.outputs:
        assert isinstance(value.type, TensorType)
        shape = value.type.shape
        known = None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)
        ours.append(TensorType(value.type.dtype, known))
    return theirs, ours


def text_of(node: str, reads: str, inputs: str, count: int) -> str:
    results = [f"y{i}" for i in range(count)]
    op, _, attributes = node.partition("<")
    call = f"com.microsoft.{op}{'<' + attributes if attributes else ''}({', '.join(n.replace('_', '') for n in reads.split())})"
    return (
        f'<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>\ng ({inputs}) => '
        f"({', '.join(f'float {name}' for name in results)}) {{ {', '.join(results)} = {call} }}"
    )


@batched
@pytest.mark.parametrize(("node", "reads", "inputs", "count"), NODES, ids=[f"{n[0]}-{n[3]}" for n in NODES])
def test_types_are_those_of_onnxruntime(node: str, reads: str, inputs: str, count: int) -> None:
    theirs, ours = outputs(text_of(node, reads, inputs, count))
    for their, our in zip(theirs, ours, strict=True):
        assert our.dtype is their.dtype
        if their.shape is not None:
            assert our.shape is not None
            assert all(None in (a, b) or a == b for a, b in zip(our.shape, their.shape, strict=True)), (our, their)
            unknown = their.shape.count(None) + (node.partition("<")[0] in LESS_KNOWN)
            assert our.shape.count(None) <= unknown, (our, their)


@batched
@pytest.mark.parametrize(("node", "reads", "inputs", "count"), NODES, ids=[f"{n[0]}-{n[3]}" for n in NODES])
def test_results_have_these_types(node: str, reads: str, inputs: str, count: int) -> None:
    proto = parser.parse_model(text_of(node, reads, inputs, count))
    for output in proto.graph.output:
        output.ClearField("type")
    feeds = drawn(proto, lambda rng, shape, dtype: np.ones(shape, dtype), 0)
    try:
        results = unoptimized.session(proto).run(None, feeds)
    except Exception:
        return  # these numbers do not suit the node
    for value, result in zip(from_proto(proto).graph.outputs, results, strict=True):
        assert isinstance(value.type, TensorType)
        dims = value.shape or (None,) * result.ndim
        assert all(not isinstance(d, int) or d == size for d, size in zip(dims, result.shape, strict=True)), value
        assert value.type.dtype.numpy == result.dtype


def test_attention_to_values_of_unknown_size() -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "c": 1]> g (float[2,3,8] q, float[2,4,8] k) => (y)
        { v = c.Custom(q) y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }"""
    )
    assert from_proto(proto).graph.outputs[0].shape == (2, 3, None)


def own_operators() -> list[tuple[str, str, int]]:
    """The operators beside the standard ones that onnxruntime has CPU kernels for, in every version, and those of ai.onnx.ml."""
    native = onnxruntime.capi.onnxruntime_pybind11_state
    kernels = {(k.domain, k.op_name) for k in native.get_all_opkernel_def() if k.provider == "CPUExecutionProvider"}
    return sorted(
        (s.domain, s.name, s.since_version)
        for s in native.get_all_operator_schema()
        if s.domain and (s.domain, s.name) in kernels
    )


NOT_TENSORS = {"CastMap": "map(int64,tensor(float))", "DictVectorizer": "map(string,tensor(int64))"}


def typed(graph: Graph, formals: Iterable[Formal], found: Schema, every: bool) -> list[Value | None]:
    """Inputs of a node of the first type that each formal parameter allows, in alphabetical order."""
    made: list[Value | None] = []
    for formal in formals:
        name = NOT_TENSORS.get(found.op) or min(found.allowed.get(formal.type, {formal.type}))
        element = re.search(r"tensor\((\w+)\)", name)
        if formal.kind == "optional" and not every:
            made.append(None)
        elif element is None:
            made.append(graph.add_input(formal.name, MapType(DType.INT64, TensorType(DType.FLOAT))))
        else:
            inner = TensorType(DType[element[1].upper()])
            made.append(graph.add_input(formal.name, MapType(DType.STRING, inner) if name.startswith("map") else inner))
    return made


UNKNOWN = {
    ("com.microsoft", "DecoderMaskedMultiHeadAttention", 3),
    ("com.microsoft", "MultiHeadAttention", 3),
    ("com.microsoft", "WhisperBeamSearch", 3),
}
"""Outputs whose element type neither an input nor an attribute gives: onnxruntime does not know them either."""


@pytest.mark.parametrize("every", [False, True], ids=["required", "all"])
def test_element_types_are_known(every: bool) -> None:
    unknown = set()
    for domain, op, version in own_operators():
        found = schema(domain, op, version)
        if found is None:  # deprecated
            continue
        graph = Graph()
        graph.opsets.update({"": 17, domain: version})
        inputs = typed(graph, found.inputs, found, every)
        attributes = {"values_int64s": Ints((1,)), "classes_strings": Strings("a")} if op == "LabelEncoder" else {}
        node = graph.add_node(op, inputs, len(found.outputs), attributes, domain=domain)
        for slot, type in enumerate(infer_node(node)):
            if type is None:
                unknown.add((domain, op, slot))
    assert unknown <= UNKNOWN


@pytest.mark.parametrize(("pads", "windows"), [((0, 0), 1), ((1, 0), 1), ((0, 1), 1), ((0, 5), 2)])
@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
def test_window_that_exceeds_the_image_by_less_than_a_stride(op: str, pads: tuple[int, int], windows: int) -> None:
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,5] x) => (float y) {{
        y = {op}<kernel_shape = [7], strides = [3], pads = [{pads[0]}, {pads[1]}]>(x) }}""")
    proto.graph.output[0].ClearField("type")
    (result,) = unoptimized.session(proto).run(None, {"x": np.ones((2, 3, 5), np.float32)})
    assert from_proto(proto).graph.outputs[0].shape == result.shape == (2, 3, windows)
