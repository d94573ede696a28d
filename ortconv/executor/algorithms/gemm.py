"""Matrix products in pieces that OpenBLAS multiplies where they are.

Before a product OpenBLAS copies its operands into an order of its own. For processors with AVX-512 it has kernels that do without
for up to 100**3 multiplications: 10 to 20 % faster where they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache, partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ortconv.executor.replay.threads import threads_of_products
from ortconv.executor.replay.work import AT_ONCE, Work, recordable
from ortconv.ir.tensor import Array, aligned

_PANEL = 64
"""The width of panels of weights, for which these kernels are the fastest."""

_ROWS, _FEWEST_ROWS, _MOST_ROWS = 12, 4, 240
"""The rows of a piece are a multiple of the first number where that many fit, else of the second; never more than the third."""


@cache
def largest_piece() -> int:
    """Up to how many multiplications a product needs no copies; 0 where there is no such kernel."""
    core = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    features: dict[str, bool] = getattr(core, "__cpu_features__", {})
    config: Any = np.show_config(mode="dicts")
    name = str(config.get("Build Dependencies", {}).get("blas", {}).get("name", "")) if config else ""
    return 100**3 if features.get("AVX512_SKX") and "openblas" in name else 0


def product(a: Array, b: Array, out: Array, work: Work = AT_ONCE) -> None:
    """out = a @ b, for a (..., R, K), b (..., K, M) and out (..., R, M), broadcast as by matmul. Whole where threads share it."""
    rows, depth = a.shape[-2:]
    size, whole = _pieces(rows, depth * b.shape[-1], largest_piece() if threads_of_products() == 1 else 0)
    if size == rows:
        work.do(np.matmul, a, b, out)
    elif whole == rows:
        work.do(np.matmul, _split(a, size), b[..., None, :, :], _split(out, size))
    else:
        work.do(np.matmul, _split(a[..., :whole, :], size), b[..., None, :, :], _split(out[..., :whole, :], size))
        work.do(np.matmul, a[..., whole:, :], b, out[..., whole:, :])


@lru_cache(maxsize=1 << 10)
def _pieces(rows: int, work: int, largest: int) -> tuple[int, int]:
    """Rows per piece, and rows that whole pieces cover. `work` is the multiplications of one row."""
    most = largest // max(work, 1)
    if rows <= most or most < _FEWEST_ROWS or not work:
        return rows, rows
    step = _ROWS if most >= _ROWS else _FEWEST_ROWS
    most = min(most - most % step, _MOST_ROWS)
    even = -(-rows // -(-rows // most))
    size = -(-even // step) * step
    if size > _ROWS and 0 < rows % size < size // 3:  # A few rows cost as much as a large piece.
        size = even
    return size, rows - rows % size


def _split(x: Array, size: int) -> Array:
    """View (..., R / size, size, columns) of (..., R, columns)."""
    return x.reshape(*x.shape[:-2], -1, size, x.shape[-1])


def by_weights(*parts: Array) -> Callable[[Array], Array]:
    """x @ w as a function of x (..., K), for a constant matrix w that has these parts side by side. All are float32.

    Functions of the same weights share what they prepare.
    """
    return recordable(_weights(parts).multiply)


def writer(w: Array) -> Callable[..., None]:
    """The function of x (..., R, K) and out (..., R, M) that writes x @ w to out, for a constant matrix w of their type.

    A third argument may be the Work that does it.
    """
    return _weights((w,)).write if w.dtype == np.float32 else partial(_write, w)


def _write(w: Array, x: Array, out: Array, work: Work = AT_ONCE) -> None:
    work.do(np.matmul, x, w, out)


def _weights(parts: tuple[Array, ...]) -> _Weights:
    key = tuple([(w.ctypes.data, w.shape, w.strides) for w in parts])
    weights = _shared.get(key)
    if weights is None:
        weights = _shared[key] = _Weights(parts)
    return weights


class _Weights:
    """A matrix, cut into panels beside which enough rows fit into a piece. It is laid out at the first use."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        self._depth, self._columns = len(parts[0]), sum(w.shape[1] for w in parts)
        self._fitting = largest_piece() // max(self._depth * self._columns, 1)
        panels = self._columns // _PANEL if self._fitting < _ROWS else 0
        self._cut = panels * _PANEL if self._depth * _PANEL * _FEWEST_ROWS <= largest_piece() else 0

    @cached_property
    def _whole(self) -> Array:
        return contiguous(self._given if len(self._parts) == 1 else np.concatenate(self._parts, axis=1))

    @cached_property
    def _given(self) -> Array:
        """For one row, for which BLAS takes either order."""
        return aligned(self._parts[0]) if len(self._parts) == 1 else self._whole

    @cached_property
    def _panels(self) -> tuple[Array, Array]:
        """Panels (P, K, width), and the columns that are left."""
        matrix = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts, axis=1)
        panels = matrix[:, : self._cut].reshape(self._depth, -1, _PANEL).swapaxes(0, 1)
        return np.ascontiguousarray(panels), np.ascontiguousarray(matrix[:, self._cut :])

    def multiply(self, work: Work, x: Array) -> Array:
        size = math.prod(x.shape[:-1])
        out = work.empty((*x.shape[:-1], self._columns), x.dtype)
        if size == 1:
            work.do(np.matmul, x, self._given, out)
        elif size <= self._fitting or not (self._cut or self._fitting >= _FEWEST_ROWS):
            work.do(np.matmul, x, self._whole, out)
        else:
            rows = work.contiguous(x).reshape(size, self._depth)
            target = out.reshape(size, self._columns)
            self.write(rows, target, work)
        return out

    def write(self, x: Array, out: Array, work: Work = AT_ONCE) -> None:
        if not self._cut:
            product(x, self._whole, out, work)
            return
        panels, rest = self._panels
        main, lead = out[..., : self._cut], x.ndim - 2
        target = main.reshape(*main.shape[:-1], -1, _PANEL).transpose(-2, *range(lead + 1), -1)
        # All rows by one panel after the other, so that the weights are read once.
        product(x, panels.reshape(-1, *(1,) * lead, *panels.shape[1:]), target, work)
        if rest.size:
            product(x, rest, out[..., self._cut :], work)


def contiguous(matrix: Array) -> Array:
    """The matrix in row order. A transpose is copied in blocks: whole columns may share few lines of the cache."""
    if not matrix.flags.f_contiguous or matrix.flags.c_contiguous:
        return np.ascontiguousarray(matrix)
    out = np.empty(matrix.shape, matrix.dtype)
    for start in range(0, matrix.shape[1], _TRANSPOSED_TOGETHER):
        part = slice(start, start + _TRANSPOSED_TOGETHER)
        out[:, part] = matrix[:, part]
    return out


_TRANSPOSED_TOGETHER = 16

_shared: WeakValueDictionary[Any, _Weights] = WeakValueDictionary()
