"""Texts and colors of boxes: constants by their formal names, names of blocks, families of operators."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import f32, make

from ortconv.ir.graph import Node
from ortconv.ir.tensor import Tensor
from ortconv.report.details import GraphDetails, family
from ortconv.report.labels import LONGEST, block_name, constants, operators


def node(text: str, shape: str = "1,8,8,8", **held: np.ndarray) -> Node:
    return next(iter(make(f"float[{shape}] x", text, "y", **held)))


WEIGHTS = f32(16, 8, 3, 3)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (node("y = Relu (x)"), ""),
        (node("y = Conv (x, w, b)", w=WEIGHTS, b=f32(16)), "W 16×8×3×3, B 16"),
        (node("y = Add (x, k)", k=np.float32(0.25)), "B = 0.25"),
        (node("y = Gather (x, k)", k=np.int64(3)), "indices = 3"),
        (node("y = Concat <axis = 0> (x, k)", k=f32(1, 8, 8, 8)), "inputs 1×8×8×8"),
        (node("y = Slice (x, a, b)", a=np.arange(4), b=np.arange(4)), "starts 4, ends 4"),
    ],
)
def test_constants_have_their_formal_names(made: Node, expected: str) -> None:
    assert constants(made) == expected


def test_a_long_list_of_constants_is_cut_between_them() -> None:
    moments = {name: f32(1024) for name in ("scale", "bias", "mean", "var")}
    made = node("y = BatchNormalization (x, scale, bias, mean, var)", **moments)
    assert constants(made) == "scale 1024, B 1024, mean 1024, …"


def test_texts_of_models_are_cut_and_clean() -> None:
    made = node("y = Equal (x, k)", k=np.float32(0))
    made.inputs[1].const = Tensor.of(np.array("a\x1b" + "b" * 1000, object))
    assert "\x1b" not in constants(made)
    assert len(constants(made)) <= LONGEST


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("a = Relu (x) y = Tanh (a)", "Relu + Tanh"),
        ("a = Relu (x) b = Relu (a) y = Tanh (b)", "Relu ×2 + Tanh"),
        ("q = QuantizeLinear (x, s) d = DequantizeLinear (q, s) y = Relu (d)", "quantized Relu"),
        (
            "a = MatMul (x, x) b = LeakyRelu (a) c = Softplus (b) d = Softsign (c) y = Sigmoid (d)",
            "MatMul block of 5 nodes",
        ),
        ("a = Tanh (x) b = LeakyRelu (a) c = Softplus (b) d = Softsign (c) y = Sigmoid (d)", "block of 5 nodes"),
    ],
)
def test_blocks_are_named_by_their_operators(body: str, name: str) -> None:
    assert block_name(list(make("float[4,4] x", body, "y", s=np.float32(1)))) == name


def test_operators_that_only_quantize_are_named_last() -> None:
    body = "q = QuantizeLinear (x, s) d = DequantizeLinear (q, s) e = DequantizeLinear (q, s) y = Add (d, e)"
    assert operators(make("float[4] x", body, "y", s=np.float32(1)), 2) == "Add, DequantizeLinear ×2, …"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = com.microsoft.FusedMatMul (x, x)", "product"),
        ("y = com.microsoft.FusedGemm (x, x)", "product"),
        ("y = GlobalAveragePool (x)", "reduction"),
        ("y = Softmax (x)", "reduction"),
        ("y = Sigmoid (x)", "elementwise"),
        ("y = Add (x, x)", "elementwise"),
        ("y = Transpose (x)", "movement"),
        ("y = Shape (x)", ""),
    ],
)
def test_families(text: str, expected: str) -> None:
    assert family(node(text)) == expected


def test_details_have_version_formal_names_and_elements() -> None:
    conv = node("y = Conv (x, w)", w=WEIGHTS)
    details = GraphDetails(None)
    details.add([conv])
    version, inputs, outputs, kind = details.to_dict()["operators"]["Conv"]
    assert version == "ai.onnx 11"
    assert (inputs, outputs, kind) == (["X", "W", "B"], ["Y"], "product")
    name, kind, held, extent = details.values[details.value_ids[conv.inputs[1]]]
    assert (name, kind, extent) == ("w", "float[16,8,3,3]", "1152 elements from -1 to 1")
    assert held.startswith("{-1, ")
