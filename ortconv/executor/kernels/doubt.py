"""Fast forms that do not hold for all numbers: they notice, and what holds for all is done instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array


class Doubt:
    """Whether a computation has met numbers for which it does not hold."""

    def __init__(self) -> None:
        self.found = False

    def unless_finite(self, y: Array) -> None:
        """Also where squares are not."""
        self.found |= not has_finite_square(y.reshape(-1))

    def unless(self, test: Callable[..., bool], *args: Any) -> None:
        self.found |= not test(*args)

    def settle(self, instead: Callable[..., Any], *args: Any) -> None:
        """Have something else write the result where there is doubt, which is gone then."""
        if self.found:
            instead(*args)
            self.found = False


def has_finite_square(x: Array) -> bool:
    """True if the sum of squares of a vector is finite: so are its elements then, and none is huge."""
    return math.isfinite(np.dot(x, x))
