"""The exponential function that this numpy computes fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from math import e, log2
from typing import Any

import numpy as np

Exponential = Callable[..., Any]


@cache
def fast_exponential() -> tuple[Exponential, float]:
    """A ufunc and the number u for which ufunc(u * x) is exp(x).

    On Linux, numpy has vector code for exp2 on float32 with AVX-512: twice as fast as exp as long as results are normal
    numbers, several times slower if they are not.
    """
    core = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    features: dict[str, bool] = getattr(core, "__cpu_features__", {})
    return (np.exp2, log2(e)) if sys.platform == "linux" and features.get("AVX512_SKX") else (np.exp, 1.0)
