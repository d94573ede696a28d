"""What the table of releases says of uses of operators."""

from __future__ import annotations

import onnx
import pytest

from ortconv.ir.kernels import first_release_of, has_kernel, lacks_kernel, release_named, releases
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.functions import expand_functions, without_kernel


def model(text: str, opset: int = 18) -> Model:
    imports = f'"": {opset}, "ai.onnx.ml": 3, "com.microsoft": 1'
    return from_proto(onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{imports}]> {text}"))


def only(text: str, opset: int = 18):  # type: ignore[no-untyped-def]
    (node,) = model(text, opset).graph
    return node


BY_FUNCTION = {
    "LeakyRelu": ("g (double[2] x) => (double[2] y) { y = LeakyRelu (x) }", 18),
    "Elu": ("g (double[2] x) => (double[2] y) { y = Elu (x) }", 18),
    "Clip": ("g (int16[2] x) => (int16[2] y) { y = Clip (x) }", 18),
    "Attention": (
        "g (double[1,2,4,4] q, double[1,2,4,4] k, double[1,2,4,4] v) => (double[1,2,4,4] y) { y = Attention (q, k, v) }",
        23,
    ),
    "GroupNormalization": (
        "g (float[1,4,3] x, float[2] s, float[2] b) => (float[1,4,3] y) { y = GroupNormalization <num_groups = 2> (x, s, b) }",
        20,
    ),
}


@pytest.mark.parametrize("op", BY_FUNCTION)
def test_functions_are_expanded_by_operator_and_type(op: str) -> None:
    found = model(*BY_FUNCTION[op])
    assert all(map(lacks_kernel, found.graph))
    if op == "Elu":  # its body came with operator set 22
        return
    assert expand_functions(found) >= 1
    assert without_kernel(found.graph) == []


def test_float16_is_left_to_casts() -> None:
    node = only("g (float16[2] x) => (float16[2] y) { y = LeakyRelu (x) }")
    assert not has_kernel(node)
    assert not lacks_kernel(node)


@pytest.mark.parametrize(
    "text",
    [
        "g (double[2,2] x) => (double y) { y = Det (x) }",
        "g (double[1,1,4,4] x, double[1,1,2,2] w) => (double[1,1,5,5] y) { y = ConvTranspose (x, w) }",
    ],
)
def test_without_kernel(text: str) -> None:
    found = model(text)
    expand_functions(found)
    assert without_kernel(found.graph) == list(found.graph)


CONV = "g (float[1,3,8,8] x, float[4,3,3,3] w) => (float y) { y = com.microsoft.FusedConv <activation = %s> (x, w) }"
HEADS = """g (float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[24] b, float[%d,%d,3,3] m) => (float y) {
    y = com.microsoft.MultiHeadAttention <num_heads = 2> (%s) }"""


PAST = """g (float[2,3,8] q, float[%s] k, float[2,2,5,4] past) => (float y, float a, float b) {
    y, a, b = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k, , , , past, past) }"""


BITS = """g (float[2,32] x, uint8[1,1,N] w, float[1] s) => (float y) {
    y = com.microsoft.MatMulNBits <K = 32, N = 1, bits = %d, block_size = 32> (x, w, s) }"""


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu (x) }", "1.13"),
        (CONV % '"Relu"', "1.13"),
        (CONV % '"HardSwish"', "1.30"),
        ("g (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu (x) }", "1.14"),
        (HEADS % (2, 2, "q, k, v, b"), "1.14"),
        (HEADS % (2, 2, "q, k, v"), "1.16"),
        (HEADS % (2, 2, "q, k, v, b, , m"), "1.15"),
        (HEADS % (1, 2, "q, k, v, b, , m"), "1.20"),
        (HEADS % (2, 1, "q, k, v, b, , m"), "1.22"),
        (PAST % "2,3,8", "1.16"),
        (PAST % "2,2,3,4", "1.19"),
        ("g (float[2] x, float s) => (uint8[2] y) { y = com.microsoft.QuantizeLinear (x, s) }", "1.17"),
        ("g (float[2] x, float s, uint8 z) => (uint8[2] y) { y = com.microsoft.QuantizeLinear (x, s, z) }", "1.13"),
        ("g (int8[2] x, float s) => (float[2] y) { y = com.microsoft.DequantizeLinear (x, s) }", "1.17"),
        (BITS % 4, "1.17"),
        (BITS % 2, "1.24"),
        (BITS % 8, "1.23"),
    ],
)
def test_first_release(text: str, release: str) -> None:
    assert releases()[first_release_of(only(text))] == release


def test_first_release_without_a_first_output() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
        g (float[3,2,4] x, int8[1,4,32] w, int8[1,8,32] r, float[1,32] s, int8[1,32] z) => (float h) {
        y, h = com.microsoft.DynamicQuantizeLSTM <hidden_size = 8> (x, w, r, , , , , , s, z, s, z) }"""
    )
    proto.graph.node[0].output[0] = ""
    (node,) = from_proto(proto).graph
    assert releases()[first_release_of(node)] == "1.13"


@pytest.mark.parametrize(
    ("text", "opset", "release"),
    [
        ("g (float[1,5,2] x, int64 axis) => (float y) { y = DFT <inverse = 1, onesided = 1> (x, , axis) }", 20, "1.27"),
        ("g (float[1,5,2] x, int64 axis) => (float y) { y = DFT <inverse = 1> (x, , axis) }", 20, "1.17"),
        ("g (float[1,1,4,4] x) => (float y) { y = AveragePool <kernel_shape = [2, 2]> (x) }", 19, "1.16"),
        ("g (float[2] x) => (double[2] y) { y = Cast <to = 11> (x) }", 19, "1.16"),
    ],
)
def test_first_release_of_newer_sets(text: str, opset: int, release: str) -> None:
    assert releases()[first_release_of(only(text, opset))] == release


def test_releases_are_found_by_name() -> None:
    assert releases()[release_named("1.18")] == releases()[release_named("1.18.1")] == "1.18"
    for name in ("1.1", "2.0", "x", ""):
        with pytest.raises(ValueError, match="not in list"):
            release_named(name)
