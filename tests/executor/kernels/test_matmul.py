"""Matrix products against onnxruntime."""

from itertools import product

import numpy as np
import pytest

from tests.batches import batched
from tests.executor.single_node import accelerated, assert_same, compare, run_kernel

SHAPES = [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 1, 2, 3), (5, 3, 4)),
    ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((1, 700), (700, 65)), ((70, 90), (90, 33)),
]  # fmt: skip


def values(rng, shape, dtype=np.float32):
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


@batched
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul(rng, a, b, dtype):
    if dtype is np.uint32 and a[-1] == 0:
        pytest.skip("onnxruntime fails")
    compare("MatMul", [values(rng, a, dtype), values(rng, b, dtype)], atol=1e-4)


def test_integer_matmul_wraps():
    a = np.full((40, 40), 2**30 + 1, np.int32)
    compare("MatMul", [a, a])


@batched
@pytest.mark.parametrize("bias", [None, (), (1,), (4,), (3, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize(("trans_a", "trans_b"), list(product((0, 1), (0, 1))))
def test_gemm(rng, trans_a, trans_b, bias):
    a, b = values(rng, (5, 3) if trans_a else (3, 5)), values(rng, (4, 5) if trans_b else (5, 4))
    inputs = [a, b] if bias is None else [a, b, values(rng, bias)]
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (1.5, 0.0)):
        compare("Gemm", inputs, {"alpha": alpha, "beta": beta, "transA": trans_a, "transB": trans_b})


@pytest.mark.parametrize("bias", [(3, 1), (1, 4), (1, 1, 1)])
def test_a_bias_does_not_extend_the_product(rng, bias):
    with pytest.raises(ValueError, match=r"broadcast|more dimensions"):
        run_kernel("Gemm", [values(rng, (1, 5)), values(rng, (5, 1)), values(rng, bias)])


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_products_keep_their_type(rng, dtype):
    a, b, c = values(rng, (3, 5), dtype), values(rng, (5, 4), dtype), values(rng, (4,), dtype)
    wide = [v.astype(np.float64) for v in (a, b, c)]
    tolerance = 1e-3 if dtype is np.float16 else 1e-12
    assert_same(run_kernel("Gemm", [a, b, c])[0], (wide[0] @ wide[1] + wide[2]).astype(dtype), tolerance, tolerance)
    assert_same(run_kernel("MatMul", [a, b])[0], (wide[0] @ wide[1]).astype(dtype), tolerance, tolerance)


@pytest.mark.parametrize(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "Sigmoid"},
        {"activation": "Tanh"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
        {"activation": "Relu", "alpha": 0.5, "beta": 2.0, "transB": 1},
    ],
)
def test_fused_gemm(rng, attributes):
    b = values(rng, (4, 5) if attributes.get("transB") else (5, 4))
    compare("FusedGemm", [values(rng, (3, 5)), b, values(rng, (4,))], attributes, domain="com.microsoft")


@batched
@pytest.mark.parametrize(("batch_a", "trans_a", "batch_b", "trans_b"), list(product((0, 1), repeat=4)))
def test_fused_matmul(rng, batch_a, trans_a, batch_b, trans_b):
    def operand(rows, columns, trans, batch):
        matrix = (columns, rows) if trans else (rows, columns)
        return values(rng, (matrix[0], 3, 6, matrix[1]) if batch else (3, 6, *matrix))

    inputs = [operand(2, 5, trans_a, batch_a), operand(5, 4, trans_b, batch_b)]
    attributes = {"alpha": 0.25, "transA": trans_a, "transB": trans_b, "transBatchA": batch_a, "transBatchB": batch_b}
    compare("FusedMatMul", inputs, attributes, domain="com.microsoft")


# Without anything to sum, onnxruntime leaves its output uninitialized.
@batched
@pytest.mark.parametrize(("a", "b"), [s for s in SHAPES if len(s[0]) > 1 and len(s[1]) > 1 and s[0][-1] > 0])
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.int8, np.int8), (np.int8, np.uint8)])
def test_matmul_integer(rng, a, b, types):
    x, y = rng.integers(-128, 128, a).astype(types[0]), rng.integers(-128, 128, b).astype(types[1])
    compare("MatMulInteger", [x, y], opset=10)
    if len(b) > 2:
        return
    zero_points = [np.array(7).astype(types[0]), np.arange(b[-1]).astype(types[1])]
    compare("MatMulInteger", [x, y, *zero_points], opset=10)


def test_matmul_integer_is_exact_beyond_float32(rng):
    a, b = np.full((2, 5000), 255, np.uint8), np.full((5000, 3), 255, np.uint8)
    b[::7, 1] = 1
    compare("MatMulInteger", [a, b], opset=10)


@pytest.mark.parametrize("shape", [(5000,), (2, 5000), (3, 2, 5000), (0, 5000)])
@pytest.mark.parametrize("zero_point", [None, np.uint8(0), np.uint8(200)])
def test_prepared_integer_weights(shape, zero_point):
    """Weights that need several sums, for float32 to hold each; the zero point of the weights may not be known beforehand."""
    b = np.full((5000, 3), 255, np.uint8)
    b[::7, 1] = 1
    a, origin = np.full(shape, 255, np.uint8), np.uint8(3)
    a[..., ::5] = 0
    prepared = accelerated("MatMulInteger", [a, b, origin, zero_point], known=(1, 3), opset=10)
    for known in (zero_point, np.uint8(9)) if zero_point is None else (zero_point,):
        want = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - int(known or 0))
        got = prepared(a, b, origin, known)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij, bjk -> bik", [(2, 2, 3), (2, 3, 4)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("i,j", [(3,), (4,)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("bhqd,bkhd->bhqk", [(2, 2, 3, 4), (2, 5, 2, 4)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ],
)
def test_einsum(rng, equation, shapes):
    compare("Einsum", [values(rng, s) for s in shapes], {"equation": equation})


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (2, 3, 1, 1)])
def test_det(rng, shape):
    compare("Det", [values(rng, shape)], atol=1e-5)
