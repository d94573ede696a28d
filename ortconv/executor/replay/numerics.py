"""numpy's settings while kernels run, and calls that avoid its overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array

_BUFFER = 1 << 10
"""Elements. What repeats in rows shorter than a buffer is copied to it again and again."""


class kernel_settings(np.errstate):  # noqa: N801, as numpy's
    """Silent about infinities and the like, and with short buffers. Only the calling thread is affected."""

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
"""Elements of x between two bounds, NaN as it is, written to `out`. The method of arrays takes a detour through Python."""
