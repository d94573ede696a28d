"""Winograd's form of convolution against the direct one."""

import numpy as np
import pytest

from ortconv.executor.algorithms import winograd
from ortconv.executor.algorithms.conv import convolver, filters
from ortconv.executor.algorithms.sliding_window import window
from tests.batches import batched


def both_forms(x, weights, pads):
    place = window(x.shape[2:], (3, 3), pads=pads)

    def direct(*given):
        return convolver(filters(weights, 1), place, x.shape[1])(*given)

    return winograd.convolver(lambda: winograd.transform_weights(weights), place, lambda: direct)(x), direct(x)


@batched
@pytest.mark.parametrize("seed", range(120))
def test_images_of_any_size_and_padding(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(winograd, "_BLOCK_BYTES", int(rng.choice([1, 1 << 12, 1 << 20])))
    n, c, m = (int(rng.choice(sizes)) for sizes in ([0, 1, 1, 2], [1, 3, 16, 40], [1, 5, 16]))
    pads = rng.integers(0, 5, 4)
    size = np.maximum(rng.integers(1, 14, 2), 3 - pads[:2] - pads[2:])
    x = rng.standard_normal((n, c, *size), np.float32)
    if rng.random() < 0.5:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    y, expected = both_forms(x, rng.standard_normal((m, c, 3, 3), np.float32), pads.tolist())
    np.testing.assert_allclose(y, expected, rtol=0, atol=3e-6 * np.sqrt(9 * c) * 3)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3e38])
def test_what_is_not_finite_stays_where_it_is(special):
    x = np.ones((1, 16, 9, 8), np.float32)
    x[0, 3, 4, 5] = special
    y, expected = both_forms(x, np.ones((16, 16, 3, 3), np.float32), [1, 1, 1, 1])
    np.testing.assert_array_equal(y, expected)
    assert np.isfinite(y[:, :, :3]).all()
