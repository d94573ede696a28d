"""numpy's settings while kernels run, and calls that avoid its overhead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import e, log2
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array

_BUFFER = 1 << 10
"""Number of elements. Operands that repeat in rows shorter than a buffer are copied to it repeatedly."""


class kernel_settings(np.errstate):  # noqa: N801, as numpy's
    """Suppress floating-point warnings, and use short buffers. Only the calling thread is affected."""

    def __init__(self) -> None:
        super().__init__(all="ignore")

    def __enter__(self) -> None:
        super().__enter__()
        np.setbufsize(_BUFFER)  # np.errstate restores it


def f32(number: Any) -> Array:
    """As float32; a number becomes an array without dimensions."""
    return np.asarray(number, np.float32)


def internal(module: str, name: str, default: Any) -> Any:
    """A part of numpy's core that is not public; the default if this numpy does not have it."""
    return getattr(getattr(getattr(np, "_core", None), module, None), name, default)


def _clip(x: Array, low: Array, high: Array, out: Array) -> None:
    x.clip(low, high, out=out)


clip_to: Callable[[Array, Array, Array, Array], Any] = internal("umath", "clip", _clip)
"""Clip elements of x to two bounds, with NaN unchanged, into `out`. The method of arrays has more overhead in Python."""

HAS_AVX512 = bool(internal("_multiarray_umath", "__cpu_features__", {}).get("AVX512_SKX"))


def fast_exponential() -> tuple[Callable[..., Any], float]:
    """The fastest exponential function: a ufunc and the number u for which ufunc(u * x) is exp(x).

    On Linux, numpy has vector code for exp2 on float32 with AVX-512: twice as fast as exp as long as results are normal
    numbers, several times slower if they are not.
    """
    return (np.exp2, log2(e)) if sys.platform == "linux" and HAS_AVX512 else (np.exp, 1.0)
