"""Matrix products in pieces that OpenBLAS multiplies where they are.

Before a product OpenBLAS copies its operands into an order of its own. For processors with AVX-512 it has kernels that do without
for up to 100**3 multiplications: 10 to 20 % faster where they do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array

_MOST_ROWS, _FEWEST_ROWS = 64, 8

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
    """out = a @ b for matrices."""
    rows, depth = a.shape
    piece = largest_piece() // max(depth * b.shape[1], 1)
    if rows <= piece or piece < _FEWEST_ROWS:
        np.matmul(a, b, out)
        return
    size = -(-rows // -(-rows // piece))
    whole = rows - rows % size
    np.matmul(a[:whole].reshape(-1, size, depth), b, out[:whole].reshape(-1, size, b.shape[1]))
    if whole < rows:
        np.matmul(a[whole:], b, out[whole:])


def by_weights(w: Array) -> Callable[[Array], Array]:
    """x @ w for a constant matrix w of float32, as a function of x (..., K) of float32."""
    depth, columns = w.shape
    width = _width(depth, columns)
    if not width:
        plain = np.ascontiguousarray(w)
        return lambda x: np.asarray(np.matmul(x, plain))

    @cache
    def panels() -> Array:
        return np.ascontiguousarray(w.reshape(depth, columns // width, width).swapaxes(0, 1))

    most = min(_MOST_ROWS, largest_piece() // (depth * width))
    fewest = max(_FEWEST_ROWS, largest_piece() // (depth * columns) + 1)

    def multiply(x: Array) -> Array:
        size = x.size // depth
        if size < fewest or x.ndim < 2:
            return np.asarray(np.matmul(x, w))
        out = np.empty((*x.shape[:-1], columns), np.float32)
        rows, target = x.reshape(size, depth), out.reshape(size, columns // width, width)
        block = -(-size // -(-size // most))
        whole = size - size % block
        pieces = target[:whole].reshape(-1, block, columns // width, width).swapaxes(1, 2)
        np.matmul(rows[:whole].reshape(-1, 1, block, depth), panels(), pieces)
        if whole < size:
            np.matmul(rows[whole:], panels(), target[whole:].swapaxes(0, 1))
        return out

    return multiply


def _width(depth: int, columns: int) -> int:
    """The width of the panels into which weights are cut; 0 for none."""
    rows = largest_piece() // max(depth, 1)
    return next((n for n, fewest in _PANELS if columns % n == 0 and columns and rows // n >= fewest), 0)
