"""How kernels want numpy to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

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
