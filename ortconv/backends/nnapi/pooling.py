"""Pooling over windows and over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.backends.nnapi.convolution import Pair, padding, pair
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import Operation, PaddingCode


def pool(b: Builder, unit: NodeUnit, code: Operation) -> None:
    window, strides = pair(unit, "kernel_shape"), pair(unit, "strides")
    pads = padding(b, unit, shape_of(value_of(unit))[2:], window, strides)
    _add(b, unit, code, pads, strides, window)


def whole(b: Builder, unit: NodeUnit, code: Operation) -> None:
    """Pooling with one window as large as the image."""
    rows, columns = shape_of(value_of(unit))[2:]
    _add(b, unit, code, [b.int32(PaddingCode.VALID)], (1, 1), (rows, columns))


def _add(b: Builder, unit: NodeUnit, code: Operation, pads: Sequence[int], strides: Pair, window: Pair) -> None:
    x = b.operand(value_of(unit), image=True)
    sizes = [b.int32(n) for n in (strides[1], strides[0], window[1], window[0])]
    out = b.make(b.result(unit), image=True, like=x)
    b.add(code, [x, *pads, *sizes, b.activation(unit), *b.layout_flag()], [out])


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("AveragePool", "QLinearAveragePool"), partial(pool, code=Operation.AVERAGE_POOL_2D)),
    "MaxPool": partial(pool, code=Operation.MAX_POOL_2D),
    "GlobalAveragePool": partial(whole, code=Operation.AVERAGE_POOL_2D),
    "GlobalMaxPool": partial(whole, code=Operation.MAX_POOL_2D),
}
