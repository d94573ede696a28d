"""Products with weights that are laid out."""

import numpy as np
import pytest

from ortconv.executor.algorithms import gemm
from ortconv.executor.replay.work import recordable
from tests.batches import batched

RNG = np.random.default_rng(3)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


SHAPES = [
    (1, 3, 16),
    (5, 4, 64),
    (64, 4, 32),
    (131, 7, 48),
    (48, 256, 1024),
    (9, 5, 7),
    (300, 64, 80),
    (0, 4, 16),
    (3, 0, 16),
]


@batched
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_weights(shape, order):
    rows, depth, columns = shape
    x, w = f32(2, rows, depth), np.asarray(f32(depth, columns), order=order)
    want = np.matmul(x.astype(np.float64), w)
    multiply = recordable(gemm.matrix(w).multiply)
    np.testing.assert_allclose(multiply(x), want, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(multiply(x.swapaxes(0, 1)), want.swapaxes(0, 1), rtol=1e-5, atol=1e-4)
    if rows:
        np.testing.assert_allclose(multiply(x[0, 0]), want[0, 0], rtol=1e-5, atol=1e-4)


def test_equal_weights_are_laid_out_once():
    w = f32(64, 64)
    held = gemm.matrix(w)
    assert gemm.matrix(w) is held
    assert gemm.matrix(w.T) is not held


@pytest.mark.parametrize(("rows", "is_copied"), [(1, False), (2, True)])
def test_one_row_needs_no_copy_of_transposed_weights(rows, is_copied):
    weights = gemm.Matrix(f32(6, 5).T)
    x, out = f32(rows, 5), f32(rows, 6)
    weights.write(x, out)
    np.testing.assert_allclose(out, x @ weights._w, rtol=1e-5, atol=1e-5)
    assert ("whole" in vars(weights)) is is_copied


def test_weights_that_are_not_aligned():
    unaligned = np.frombuffer(b"." + f32(6, 5).tobytes(), np.uint8)[1:].view(np.float32).reshape(6, 5).T
    weights = gemm.Matrix(unaligned)
    x, out = f32(1, 5), f32(1, 6)
    weights.write(x, out)
    np.testing.assert_allclose(out, x @ unaligned, rtol=1e-5, atol=1e-5)
    assert weights.whole.flags.aligned


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_in_given_memory(shape):
    rows, depth, columns = shape
    x, w, out = f32(2, rows, depth), f32(depth, columns), f32(2, rows, 2 * columns)[..., :columns]
    want = np.matmul(x.astype(np.float64), w)
    write = gemm.matrix(w).write
    write(x, out)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-4)
    write(np.asarray(x[1], order="F"), out[0])
    np.testing.assert_allclose(out[0], want[1], rtol=1e-5, atol=1e-4)
