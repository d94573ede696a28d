"""Loops of one node: a limit on the number of steps, and ranges and arrays divided into parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

from ortconv.errors import UnsupportedError

MOST_STEPS = 1 << 20
"""Maximum number of steps of a Python loop for one node."""


class EndlessLoopError(UnsupportedError):
    """A node repeats its work without end, or too many times: no engine is asked to run it."""


def counted(steps: int) -> int:
    """The number of steps. UnsupportedError for more than MOST_STEPS."""
    if steps > MOST_STEPS:
        raise UnsupportedError(
            f"the node would take {steps} steps, the limit is {MOST_STEPS}",
            hint="look at its kernel_shape, pads, strides and dilations, or run it on the backend onnxruntime",
        )
    return steps


def spans(size: int, most: int) -> list[slice]:
    """range(size) in slices of at most `most` elements and nearly the same length, the longest first; none for size 0."""
    if size <= 0:
        return []
    count = counted(-(-size // max(most, 1)))
    return [slice(*pair) for pair in pairwise(size - size * left // count for left in range(count, -1, -1))]


Index = tuple[Any, ...]
"""One number for each of the first axes, then a slice; or nothing for the whole."""


def blocks_of(shape: Sequence[int], most: int, in_rows: bool = False) -> Iterator[Index]:
    """Indices of blocks of at most `most` elements, the longest first. With `in_rows`, blocks have whole rows."""
    axes = len(shape) - in_rows
    cut = next((a for a in range(axes) if prod(shape[a + 1 :]) <= most), axes - 1)
    if cut < 0:
        yield ()
        return
    for index in product(*map(range, shape[:cut])):
        for part in spans(shape[cut], most // max(1, prod(shape[cut + 1 :]))):
            yield (*index, part)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """True if an array of a shape broadcasts to another shape."""
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape[::-1], to[::-1]))
