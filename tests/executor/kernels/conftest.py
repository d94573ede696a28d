"""What the tests of kernels share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in each run."""
    return np.random.default_rng(11)
