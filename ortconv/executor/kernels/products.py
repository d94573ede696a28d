"""Matrix products in pieces that OpenBLAS multiplies where they are.

Before a product OpenBLAS copies its operands into an order of its own. For processors with AVX-512 it has kernels that do without
for up to 100**3 multiplications: 10 to 20 % faster where they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ortconv.ir.tensor import Array

_MOST_ROWS, _FEWEST_ROWS = 48, 8

_ROWS_AT_ONCE = 6
"""Rows that those kernels multiply together. Others take nearly as long as that many."""

_PANELS = ((64, 24), (32, _FEWEST_ROWS), (16, 24))
"""Widths of panels of weights, the best first, and the fewest rows that must fit beside them into a piece."""


@cache
def largest_piece() -> int:
    """Up to how many multiplications a product needs no copies; 0 where there is no such kernel."""
    core = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    features: dict[str, bool] = getattr(core, "__cpu_features__", {})
    config: Any = np.show_config(mode="dicts")
    name = str(config.get("Build Dependencies", {}).get("blas", {}).get("name", "")) if config else ""
    return 100**3 if features.get("AVX512_SKX") and "openblas" in name else 0


def product(a: Array, b: Array, out: Array) -> None:
    """out = a @ b for matrices, or for stacks of as many."""
    *stack, rows, depth = a.shape
    columns = b.shape[-1]
    piece = largest_piece() // max(depth * columns, 1)
    if rows <= piece or piece < _FEWEST_ROWS:
        np.matmul(a, b, out)
        return
    size = _block(rows, piece)
    whole = rows - rows % size
    pieces = out[..., :whole, :].reshape(*stack, -1, size, columns)
    np.matmul(a[..., :whole, :].reshape(*stack, -1, size, depth), b[..., None, :, :], pieces)
    if whole < rows:
        np.matmul(a[..., whole:, :], b, out[..., whole:, :])


def _block(rows: int, most: int) -> int:
    """Of how many rows to make pieces, so that they are nearly alike."""
    most -= most % _ROWS_AT_ONCE
    size = -(-rows // -(-rows // most))
    return min(rows, size + -size % _ROWS_AT_ONCE)


def by_weights(*parts: Array) -> Callable[[Array], Array]:
    """x @ w as a function of x (..., K), for a constant matrix w that has these parts side by side. All are float32.

    Functions of the same weights share what they prepare.
    """
    key = tuple([(w.ctypes.data, w.shape, w.strides) for w in parts])
    weights = _shared.get(key)
    if weights is None:
        weights = _shared[key] = _Weights(parts)
    return weights.multiply


class _Weights:
    """A matrix as panels, laid out at the first use."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        self._depth, self._columns = len(parts[0]), sum(w.shape[1] for w in parts)
        self._width = _width(self._depth, [w.shape[1] for w in parts])
        self._most = min(_MOST_ROWS, largest_piece() // max(self._depth * self._width, 1))
        self._one_piece = largest_piece() // max(self._depth * self._columns, 1) if self._width else math.inf

    @cached_property
    def _panels(self) -> Array:
        return np.concatenate([w.reshape(self._depth, -1, self._width).swapaxes(0, 1) for w in self._parts])

    @cached_property
    def _whole(self) -> Array:
        return np.ascontiguousarray(self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts, axis=1))

    def multiply(self, x: Array) -> Array:
        size = math.prod(x.shape[:-1])
        if size <= self._one_piece:
            return np.asarray(np.matmul(x, self._whole))
        out = np.empty((*x.shape[:-1], self._columns), np.float32)
        rows, target = x.reshape(size, self._depth), out.reshape(size, -1, self._width)
        block = _block(size, self._most)
        whole = size - size % block
        # All rows by one panel after the other, so that the weights are read once.
        pieces = target[:whole].reshape(-1, block, *target.shape[1:]).transpose(2, 0, 1, 3)
        np.matmul(rows[:whole].reshape(-1, block, self._depth), self._panels[:, None], pieces)
        if whole < size:
            np.matmul(rows[whole:], self._panels, target[whole:].swapaxes(0, 1))
        return out


_shared: WeakValueDictionary[Any, _Weights] = WeakValueDictionary()


def _width(depth: int, columns: Sequence[int]) -> int:
    """The width of the panels into which weights are cut; 0 for none."""
    if not depth or not all(columns):
        return 0
    rows = largest_piece() // depth
    return next((n for n, fewest in _PANELS if not any(m % n for m in columns) and rows // n >= fewest), 0)
