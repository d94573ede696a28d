"""Random classes: the generator, seeds, frequencies."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_calls import compute
from nnapi_models import tensor

from ortconv.nnapi import NnapiError, Operand, Operation
from ortconv.nnapi.operations.random import philox

INTS = tensor(type=Operand.TENSOR_INT32)


def draw(logits: np.ndarray, samples: int, *seeds: int) -> np.ndarray:
    (found,) = compute(Operation.RANDOM_MULTINOMIAL, logits, samples, np.array(seeds, np.int32), out=INTS)
    return found


def test_philox_gives_the_published_numbers() -> None:
    """The test vector of Random123 for counter and key 0."""
    assert [f"{x:08x}" for x in philox([0, 0], 1)[0]] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_seeds_decide() -> None:
    logits = np.zeros((2, 100), np.float32)
    assert (draw(logits, 50, 1, 2) == draw(logits, 50, 1, 2)).all()
    assert (draw(logits, 50, 1, 2) != draw(logits, 50, 1, 3)).any()
    assert (draw(logits, 50, -1, 2) != draw(logits, 50, 1, 2)).any()
    assert (draw(logits, 50, 0, 0) != draw(logits, 50, 0, 0)).any()


def test_frequencies_are_a_softmax() -> None:
    logits = np.log(np.array([[1, 2, 5], [8, 1, 1]], np.float32)) + 700
    found = draw(logits.astype(np.float32), 20000, 5, 6)
    shares = np.stack([np.bincount(row, minlength=3) / 20000 for row in found])
    np.testing.assert_allclose(shares, [[1 / 8, 2 / 8, 5 / 8], [0.8, 0.1, 0.1]], atol=0.02)


def test_impossible_classes_never_come() -> None:
    found = draw(np.array([[-np.inf, 0, -np.inf]], np.float32), 1000, 7, 8)
    assert (found == 1).all()


def test_samples_must_be_positive() -> None:
    with pytest.raises(NnapiError, match="positive"):
        draw(np.zeros((1, 2), np.float32), 0, 1, 1)
