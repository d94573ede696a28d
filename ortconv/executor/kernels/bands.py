"""Convolutions in bands of rows, one for each thread that the run may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np

from ortconv.executor.kernels.windows import Window, channels_first, to_last
from ortconv.executor.registry import Function
from ortconv.executor.threads import each, shares
from ortconv.ir.tensor import Array

_FEWEST_PIXELS = 512
"""Of an image. With fewer the weights, which every band reads, cost more than what is shared."""


def in_bands(over: Callable[[Window], Function], w: Window, outputs: int, work: int, writes: bool = True) -> Function:
    """What `over` makes for a window: a function of x (N, C, spatial...) to (N, outputs, output...).

    `work` is the number of multiplications per element of the result. `writes`: what `over` makes also takes contiguous memory
    (N, output..., outputs) for the result.
    """
    part_over = lru_cache(maxsize=16)(over)
    pixels = prod(w.output)
    whole, work = over(w), work * outputs * pixels

    def run(x: Array) -> Array:
        # Winograd's tiles have two rows.
        rows = shares(w.output[0], len(x) * work, 2) if pixels >= _FEWEST_PIXELS else []
        bands = [band(w, part) for part in rows] if len(rows) > 1 else []
        if not bands or any(inputs.start == inputs.stop for inputs, _ in bands):
            result: Array = whole(x)
            return result
        out = np.empty((len(x), *w.output, outputs), x.dtype)

        def compute(i: int) -> None:
            inputs, own = bands[i]
            target = out[:, rows[i]]
            memory = (target,) if writes and len(x) == 1 else ()
            y = part_over(own)(x[:, :, inputs], *memory)
            if not np.may_share_memory(y, target):
                target[...] = to_last(y)

        each(compute, range(len(rows)))
        return channels_first(out)

    return run


def band(w: Window, rows: slice) -> tuple[slice, Window]:
    """The rows of the input that some rows of the output need, and the window over these."""
    first = rows.start * w.strides[0] - w.begin[0]
    last = (rows.stop - 1) * w.strides[0] - w.begin[0] + w.extent[0]
    start = min(max(first, 0), w.size[0])
    stop = max(min(last, w.size[0]), start)
    own = w._replace(
        size=(stop - start, *w.size[1:]),
        begin=(start - first, *w.begin[1:]),
        end=(last - stop, *w.end[1:]),
        output=(rows.stop - rows.start, *w.output[1:]),
    )
    return slice(start, stop), own
