"""Convolutions in bands of rows, one for each thread that the run may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np

from ortconv.executor.kernels.windows import Window, channels_first, to_last
from ortconv.executor.registry import Function
from ortconv.executor.threads import each, shares
from ortconv.executor.work import Work, recordable, write
from ortconv.ir.tensor import Array

_FEWEST_PIXELS = 512
"""Of an image. With fewer the weights, which every band reads, cost more than what is shared."""


def in_bands(over: Callable[[Window], Function], w: Window, outputs: int, cost: int) -> Function:
    """What `over` makes for a window: a function of x (N, C, spatial...) to (N, outputs, output...).

    What it makes also takes contiguous memory (N, output..., outputs) for the result. `cost` is the number of multiplications per
    element of that.
    """
    part_over = lru_cache(maxsize=16)(over)
    pixels = prod(w.output)
    whole, cost = over(w), cost * outputs * pixels

    def run(work: Work, x: Array) -> Array:
        out = work.empty((len(x), *w.output, outputs), x.dtype)
        # Winograd's tiles have two rows.
        rows = shares(w.output[0], len(x) * cost, 2) if pixels >= _FEWEST_PIXELS else []
        bands = [band(w, part) for part in rows] if len(rows) > 1 else []
        if not bands or any(inputs.start == inputs.stop for inputs, _ in bands):
            write(work, whole, x, out)
            return channels_first(out)

        def compute(i: int) -> None:
            inputs, own = bands[i]
            target = out[:, rows[i]]
            y = part_over(own)(x[:, :, inputs], target if len(x) == 1 else None)
            if not np.may_share_memory(y, target):
                target[...] = to_last(y)

        work.do(each, compute, range(len(rows)))
        return channels_first(out)

    return recordable(run)


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
