"""Small models that random search found rewritten to something else, refused, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from differential import examine
from rewriting import parse

from tests import text_models
from tests.batches import sampled

X = np.array([[0.5, -1.25, np.inf], [-np.inf, np.nan, 2.0]], np.float32)
CODES = np.arange(6, dtype=np.uint8).reshape(2, 3)

NESTED = """
g (float[N] x, bool c, bool d) => (float y) {
  y = Abs(x)
  nobody_reads = If(c) <
    then_branch = a () => (float p) {
      p = If(d) <
        then_branch = b () => (float q) { nor_this = Neg(x) q = Relu(x) },
        else_branch = e () => (float r) { r = Abs(x) }>
    },
    else_branch = f () => (float s) { s = Neg(x) }>
}
"""

FOUND = {
    "an explicit infinite bound lets infinities pass": (
        "g (float[2,3] x) => (float y) <float low = {0.5}>"
        " { one = Constant<value_float = 1.0>() zero = Constant<value_float = 0.0>()"
        " high = Div(one, zero) c = Clip(x, low, high) y = Relu(c) }",
        {"x": X},
    ),
    "weights that would round to nothing stay": (
        "g (float[2,3] x) => (float y) <float[3,2] w = {1e-10, 1, 1, 1, 1, 1}, float[2] s = {1e-40, 1}, float[2] k = {1, 1}>"
        " { p = MatMul(x, w) y = BatchNormalization(p, s, k, k, k) }",
        {"x": np.array([[-np.inf, 1, 2], [1, 2, 3]], np.float32)},
    ),
    "a product of a vector has one axis only": (
        "g (float[2] x) => (float y) <float[2,6] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64[3] s = {1, 3, 2},"
        " float[3] k = {1, 2, 3}> { p = MatMul(x, w) r = Reshape(p, s) y = BatchNormalization(r, k, k, k, k) }",
        {"x": np.array([0.5, -1.0], np.float32)},
    ),
    "rows of no elements have no normalization": (
        "g (float[4,0] x) => (float y) <float e = {0.01}, float[0] s = {}> { p = Mul(x, x) m = ReduceMean<axes = [-1]>(p)"
        " a = Add(m, e) r = Sqrt(a) q = Div(x, r) y = Mul(q, s) }",
        {"x": np.zeros((4, 0), np.float32)},
    ),
    "sums of no products in a stack of matrices": (
        "g (float[2,0,3] x, float[2,0,5] z) => (float y) { t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(t, z) }",
        {"x": np.zeros((2, 0, 3), np.float32), "z": np.zeros((2, 0, 5), np.float32)},
    ),
    "no matrices against one": (
        "g (float[N,2,3] x, float[2,5] z) => (float y) { t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(t, z) }",
        {"x": np.zeros((0, 2, 3), np.float32), "z": np.ones((2, 5), np.float32)},
    ),
    "scales of shape (1,) for an operator that wants scalars": (
        "g (uint8[2,3] x) => (uint8 y) <float[1] s = {0.03}, float t = {0.05}, uint8 z = {128}> { a = DequantizeLinear(x, s, z)"
        " b = Add(a, a) y = QuantizeLinear(b, t, z) }",
        {"x": CODES},
    ),
    "scales for each column without zero points": (
        "g (uint8[2,3] x) => (float y) <uint8[3,2] c = {1, 2, 3, 4, 5, 6}, float[2] t = {0.01, 0.02}, float s = {0.03},"
        " uint8 z = {128}> { a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 1>(c, t) y = Gemm(a, b) }",
        {"x": CODES},
    ),
    "a zero point that QLinearWhere wants constant": (
        "g (bool[2,3] c, uint8[2,3] x, uint8 z) => (uint8 y) <float s = {0.125}, uint8 z = {128}> { a = DequantizeLinear(x, s, z)"
        " b = Where(c, a, a) y = QuantizeLinear(b, s, z) }",
        {"c": CODES > 2, "x": CODES},
    ),
    "no rows for an integer Softmax": (
        "g (uint8[0,64] x) => (float y) <float s = {0.125}, uint8 z = {128}> { a = DequantizeLinear(x, s, z) b = Softmax(a)"
        " q = QuantizeLinear(b, s, z) y = DequantizeLinear(q, s, z) }",
        {"x": np.zeros((0, 64), np.uint8)},
    ),
    "a branch inside a branch of an unused node": (NESTED, {"x": X[0], "c": np.array(False), "d": np.array(True)}),
    "pads that take away more than the axis has": (
        "g (float[1,3] x, int64[4] p) => (float y) { y = Pad(x, p) }",
        {"x": X[:1], "p": np.array([3, 0, -2, 0])},
    ),
    "a range whose end is known, as one element of an axis": (
        "g (float[3] x) => (float y) <int64 zero = {0}, int64 one = {1}, int64[1] two = {2}, int64[1] same = {1}>"
        " { end = Mul(two, same) r = Range(zero, end, one) y = Gather(x, r) }",
        {"x": X[0]},
    ),
    "a shape that a caller overrides": (
        "g (float[2,3] x, int64[2] k) => (float y) <int64[2] k = {1, 3}> { e = Expand(x, k) y = Relu(e) }",
        {"x": np.ones((2, 3), np.float32), "k": np.array([2, 3])},
    ),
    "a shape of higher rank that a caller overrides": (
        "g (float[1,3] x, int64[2] k) => (float y) <int64[2] k = {1, 3}> { e = Expand(x, k) y = Relu(e) }",
        {"x": np.ones((1, 3), np.float32), "k": np.array([2, 1])},
    ),
    "half numbers that an attribute makes between operators without kernels for them": (
        "g (int64[2] s) => (float16 y, float16 z) { a = ConstantOfShape<value = float16[1] {15360}>(s)"
        " b = ConstantOfShape<value = float16[1] {15360}>(s) y = Add(a, b)"
        " c = ConstantOfShape<value = float16[1] {16384}>(s) z = Neg(c) }",
        {"s": np.array([2, 3])},
    ),
    "a choice of one tensor whose zero point a caller may override": (
        "g (uint8[2,3] q, bool[2,3] c, uint8 k) => (float y) <uint8 k = {128}, float r = {0.03}, float t = {0.125}> {"
        " x = DequantizeLinear(q, r, k) w = Where(c, x, x) v = QuantizeLinear(w, t, k) y = DequantizeLinear(v, t, k) }",
        {"q": CODES, "c": np.array([[True, False, True]] * 2)},
    ),
    "a convolution that meets a constant without elements": (
        "g (float[0,2,N,4] x) => (float y) <float[2,1,1,1] w = {-0.25, 0.25}, float[0,2,4,4] k = {}> {"
        " v = Conv<group = 2>(x, w) y = Mul(k, v) }",
        {"x": np.ones((0, 2, 4, 4), np.float32)},
    ),
    "a size that no elements leave, behind an If": (
        "g (float[1,0,2] x, bool c) => (float y) <int64 two = {2}, int64[1] zero = {0}> {"
        " a = If(c) <then_branch = t () => (float p) { p = Neg(x) }, else_branch = e () => (float q) { s = Shape(x) r = Shape(s)"
        " o = ConstantOfShape<value = int64[1] {1}>(r) q = Tile(x, o) }>"
        " d = Shape(a) i = Gather(d, two) u = Unsqueeze(i, zero) k = Concat<axis = 0>(u, zero) y = Reshape(a, k) }",
        {"x": np.ones((1, 0, 2), np.float32), "c": np.array(False)},
    ),
}


@sampled(4)
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    text, feeds = FOUND[name]
    examine(parse(text), [feeds])


def test_an_output_that_is_declared_with_too_few_dimensions() -> None:
    """onnx does not know com.microsoft's operators, so it finds no shape that contradicts the declared one."""
    text = (
        "g (float[1,3] x) => (float[1,M] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] rest = {-1}>"
        " { u = com.microsoft.QuickGelu(x) s = Shape(u) i = Gather(s, zero) t = Concat<axis = 0>(i, one, rest) y = Reshape(u, t) }"
    )
    proto = text_models.parse(text, 13, text_models.MICROSOFT)
    examine(proto, [{"x": np.array([[0.5, -1.25, 2]], np.float32)}])
