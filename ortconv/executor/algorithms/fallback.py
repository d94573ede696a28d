"""Fallbacks at run time: a fast form flags inputs that it cannot handle, and the exact form then computes the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array


class Fallback:
    """A flag in the memory of a Work. A fast form sets it for numbers that it cannot handle."""

    def __init__(self, work: Work) -> None:
        self._found = work.empty((1,), np.bool_)
        work.do(self._found.fill, False)

    def unless(self, test: Callable[..., bool], *args: Any) -> None:
        """Set the flag if a test of some arguments fails."""
        if not test(*args):
            self._found[0] = True

    def fall_back(self, instead: Callable[..., Any], *args: Any) -> None:
        """Call `instead`, which writes the result, if the flag is set."""
        if self._found[0]:
            instead(*args)


def has_finite_square(x: Array) -> bool:
    """True if the sum of squares of a vector is finite: then its elements are finite, too, and none is huge."""
    return math.isfinite(np.dot(x, x))
