"""How kernels want numpy to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array

_BUFFER = 1 << 10
"""Elements. What repeats in rows shorter than a buffer is copied to it again and again."""


@contextmanager
def kernel_settings() -> Iterator[None]:
    """Silent about infinities and the like, and with short buffers. Only the calling thread is affected."""
    with np.errstate(all="ignore"):
        before = np.setbufsize(_BUFFER)
        try:
            yield
        finally:
            np.setbufsize(before)


def _clip(x: Array, low: Array, high: Array, out: Array) -> None:
    x.clip(low, high, out=out)


clip_to: Callable[[Array, Array, Array, Array], Any] = getattr(
    getattr(getattr(np, "_core", None), "umath", None), "clip", _clip
)
"""Elements of x between two bounds, NaN as it is, written to `out`. The method of arrays takes a detour through Python."""
