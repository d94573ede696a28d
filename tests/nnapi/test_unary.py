"""Functions of one element."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_calls import compute
from nnapi_models import tensor

from ortconv.nnapi import Operation


@pytest.mark.parametrize("alpha", [2.0, 0.0, -2.0])
def test_elu_adds_what_is_above_and_below_0(alpha: float) -> None:
    x = np.array([-np.inf, -2, -0.0, 0.5, 3], np.float32)
    (found,) = compute(Operation.ELU, x, alpha, out=tensor())
    expected = [max(n, 0) + min(alpha * np.expm1(n), 0) for n in x]
    np.testing.assert_allclose(found, expected, 1e-6)
