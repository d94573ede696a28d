"""Products with integers that are widened piece by piece are products."""

import numpy as np
import pytest

from ortconv.executor.algorithms import gemm_exact
from ortconv.executor.algorithms.gemm_exact import IntegerWeights, less_zero_point
from tests.batches import batched

RNG = np.random.default_rng(5)
SHAPES = [(1, 3, 16), (5, 4, 64), (131, 7, 48), (48, 256, 1024), (9, 5, 7), (300, 64, 80)]
NOTHING = [(0, 4, 16), (3, 0, 16), (2, 5, 0)]


@batched
@pytest.mark.parametrize("shape", SHAPES + NOTHING, ids=str)
@pytest.mark.parametrize("widened", [0, 1 << 12, 1 << 30])
@pytest.mark.parametrize("largest_wide", [0, 1 << 30], ids=["as they are", "wide"])
def test_product(shape, widened, largest_wide, monkeypatch):
    monkeypatch.setattr(gemm_exact, "_LARGEST_WIDE", largest_wide)
    monkeypatch.setattr(gemm_exact, "_WIDENED_BYTES", widened)
    rows, depth, columns = shape
    w = RNG.integers(-128, 127, (columns, depth), np.int8, endpoint=True).T
    x = RNG.integers(-255, 255, (rows, 2 * depth), endpoint=True).astype(np.float32)[:, depth:]
    out = np.empty((rows, columns), np.float32)
    IntegerWeights(w).write(x, out)
    np.testing.assert_array_equal(out, x.astype(np.int64) @ w.astype(np.int64))


def test_codes_less_their_origin():
    q = np.array([[0, 255], [128, 7]], np.uint8)
    assert less_zero_point(q, None) is q
    assert less_zero_point(q, np.zeros(1, np.uint8)) is q
    np.testing.assert_array_equal(less_zero_point(q, np.array([[255], [7]], np.uint8)), [[-255, 0], [121, 0]])
