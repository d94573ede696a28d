"""Matrix products in pieces that OpenBLAS multiplies where they are.

Before a product OpenBLAS copies its operands into an order of its own. For processors with AVX-512 it has kernels that do without
for up to 100**3 multiplications: 10 to 20 % faster where they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ortconv.ir.tensor import Array

_MOST_ROWS, _FEWEST_ROWS = 64, 8

_VECTOR = 16
"""Rows of a transposed matrix lie beside each other in memory: pieces begin at whole vectors."""

_ROWS_FOR_ALL_COLUMNS, _MOST_ROWS_BY_ALL = 16, 256
"""Weights are not cut into panels where so many rows fit beside all of them into a piece, and pieces get no more than these."""

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
    """out = a @ b, for a (..., R, K), b (..., K, M) or (K, M), and out (..., R, M)."""
    *lead, rows, depth = a.shape
    columns = b.shape[-1]
    most = largest_piece() // max(depth * columns, 1)
    if rows <= most or most < _FEWEST_ROWS:
        np.matmul(a, b, out)
        return
    most = min(most, _MOST_ROWS_BY_ALL)
    size = -(-rows // -(-rows // most))
    size = min(-(-size // _VECTOR) * _VECTOR, most)
    whole = rows - rows % size
    pieces, target = a[..., :whole, :], out[..., :whole, :]
    np.matmul(
        pieces.reshape(*lead, -1, size, depth), b[..., None, :, :], target.reshape(*lead, -1, size, columns)
    )
    if whole < rows:
        np.matmul(a[..., whole:, :], b, out[..., whole:, :])


def by_weights(*parts: Array) -> Callable[[Array], Array]:
    """x @ w as a function of x (..., K), for a constant matrix w that has these parts side by side. All are float32.

    Functions of the same weights share what they prepare.
    """
    return _weights(parts).multiply


def writer(w: Array) -> Callable[[Array, Array], None]:
    """The function of x (..., R, K) and out (..., R, M) that writes x @ w to out, for a constant matrix w of their type."""
    return _weights((w,)).write if w.dtype == np.float32 else lambda x, out: np.matmul(x, w, out)


def _weights(parts: tuple[Array, ...]) -> _Weights:
    key = tuple([(w.ctypes.data, w.shape, w.strides) for w in parts])
    weights = _shared.get(key)
    if weights is None:
        weights = _shared[key] = _Weights(parts)
    return weights


class _Weights:
    """A matrix as panels, laid out at the first use."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        self._depth, self._columns = len(parts[0]), sum(w.shape[1] for w in parts)
        self._width = _width(self._depth, [w.shape[1] for w in parts])
        self._most = min(_MOST_ROWS, largest_piece() // max(self._depth * self._width, 1))
        self._fitting = largest_piece() // max(self._depth * self._columns, 1)
        self._one_piece = self._fitting if self._width else math.inf

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
        block = -(-size // -(-size // self._most))
        whole = size - size % block
        # All rows by one panel after the other, so that the weights are read once.
        pieces = target[:whole].reshape(-1, block, *target.shape[1:]).transpose(2, 0, 1, 3)
        np.matmul(rows[:whole].reshape(-1, block, self._depth), self._panels[:, None], pieces)
        if whole < size:
            np.matmul(rows[whole:], self._panels, target[whole:].swapaxes(0, 1))
        return out

    @cached_property
    def write(self) -> Callable[[Array, Array], None]:
        """Writes x (..., R, K) times these weights to out (..., R, M)."""
        if self._width and self._fitting < _ROWS_FOR_ALL_COLUMNS:
            return partial(_by_panels, self._panels, self._most)
        return lambda x, out: product(x, self._whole, out)


def _by_panels(panels: Array, most: int, x: Array, out: Array) -> None:
    """All rows by one panel after the other, so that the weights are read once."""
    count, depth, width = panels.shape
    *lead, rows, _ = x.shape
    panels = panels.reshape(count, *(1,) * len(lead), depth, width)
    target = out.reshape(*out.shape[:-1], count, width)
    target = target.transpose(-2, *range(len(lead) + 1), -1)
    if rows <= most:
        np.matmul(x, panels, target)
        return
    size = -(-rows // -(-rows // most))
    whole = rows - rows % size
    places = target[..., :whole, :].reshape(count, *lead, -1, size, width)
    np.matmul(x[..., :whole, :].reshape(*lead, -1, size, depth), panels[..., None, :, :], places)
    if whole < rows:
        np.matmul(x[..., whole:, :], panels, target[..., whole:, :])


_shared: WeakValueDictionary[Any, _Weights] = WeakValueDictionary()


def _width(depth: int, columns: Sequence[int]) -> int:
    """The width of the panels into which weights are cut; 0 for none."""
    if not depth or not all(columns):
        return 0
    rows = largest_piece() // depth
    return next((n for n, fewest in _PANELS if not any(m % n for m in columns) and rows // n >= fewest), 0)
