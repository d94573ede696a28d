"""A pointwise convolution of float32 and the depthwise one that alone reads it as one step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.heads import Convolution
from ortconv.executor.kernels import depthwise
from ortconv.executor.kernels.conv import by_shape, convolution, filters
from ortconv.executor.kernels.windows import window
from ortconv.executor.program import BlockProgram, Line
from ortconv.executor.registry import Function
from ortconv.executor.work import Work, recordable
from ortconv.ir.tensor import Array


class Convolved(NamedTuple):
    """A convolution and what is done in the memory of its result, which has a name."""

    convolution: Convolution
    made: Any
    lines: Sequence[Line]


def can_expand(first: Convolved, second: Convolution) -> bool:
    """True for a pointwise and a depthwise convolution, if parts of what lies between can be made."""
    one = first.convolution
    fits = depthwise.can_expand(one.weights.shape, one.group, one.geometry, second.weights.shape, second.group)
    return fits and all(_is_by_channel(line, len(one.weights)) for line in first.lines)


def _is_by_channel(line: Line, channels: int) -> bool:
    """True for a line whose constants are the same for all pixels."""
    constants = [o for o in line.operands if isinstance(o, np.ndarray)]
    return not (line.reduces or line.in_rows) and all(
        o.size == 1 or o.size == channels == (0, 0, *o.shape)[-3] for o in constants
    )


def expanded(first: Convolved, second: Convolution) -> Function:
    """The two of `can_expand` as a function of x; None where that does not suit them.

    Of large images what lies between is nowhere as a whole.
    """
    one, program = first.convolution, BlockProgram(first.lines, first.made, ()) if first.lines else None
    matrix = cache(lambda: np.ascontiguousarray(one.weights.reshape(one.weights.shape[:2]).T))
    taps = cache(lambda: filters(second.weights, second.group).matrix)
    placement = {k: second.geometry[k] for k in ("strides", "dilations", "pads", "auto_pad") if k in second.geometry}
    one_by_one = [convolution(c.weights, c.group, c.geometry) for c in (one, second)]

    def finish(work: Work, part: Array) -> None:
        if program is not None:
            pixels = part.transpose(0, 3, 1, 2)
            made = program.run(work, pixels, ())
            if made is not pixels:
                work.do(np.copyto, pixels, made)

    def in_turn(work: Work, x: Array) -> Array | None:
        y = work.call(one_by_one[0], x)
        y = y if program is None or y is None else program.run(work, y, ())
        return None if y is None else work.call(one_by_one[1], y)

    @lru_cache(maxsize=16)
    def bound(shape: tuple[int, ...]) -> Function:
        place = window(shape[2:], second.weights.shape[2:], **placement)
        if shape[1] == one.weights.shape[1] and depthwise.is_worth_expanding(len(one.weights), place):
            expansion = depthwise.Expansion(lambda _: matrix(), finish)
            return depthwise.depthwise(taps(), place, expansion=expansion)
        return recordable(in_turn)

    return by_shape(bound)
