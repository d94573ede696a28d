"""numpy's settings while kernels run, and calls that avoid its overhead."""

from __future__ import annotations

from collections.abc import Callable
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
        self._before = np.setbufsize(_BUFFER)

    def __exit__(self, *exception: Any) -> None:
        if not _WITH_BUFFERS:
            np.setbufsize(self._before)
        super().__exit__(*exception)


_WITH_BUFFERS = int(np.__version__.partition(".")[0]) > 1
"""np.errstate restores buffers, too, since numpy 2."""


def f32(number: Any) -> Array:
    """As float32; a number becomes an array without dimensions."""
    return np.asarray(number, np.float32)


def _clip(x: Array, low: Array, high: Array, out: Array) -> None:
    x.clip(low, high, out=out)


clip_to: Callable[[Array, Array, Array, Array], Any] = getattr(
    getattr(getattr(np, "_core", None), "umath", None), "clip", _clip
)
"""Clip elements of x to two bounds, with NaN unchanged, into `out`. The method of arrays has more overhead in Python."""
