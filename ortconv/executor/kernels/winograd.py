"""Winograd's F(2x2, 3x3): 16 multiplications where the direct form takes 36, with the error of the direct form.

Each transform is one product with a Kronecker matrix. Weights grow by 16/9, so this pays where they are transformed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ortconv.executor.kernels.products import product
from ortconv.executor.kernels.windows import Window, copy_runs, strided, to_last
from ortconv.ir.tensor import Array

_BT = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
_AT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)
_INPUT, _WEIGHTS, _OUTPUT = np.kron(_BT, _BT), np.kron(_G, _G), np.kron(_AT, _AT)
FROM_TILES = _OUTPUT
"""(4, 16): transforms products of tiles back."""

_BLOCK_BYTES = 640 << 10
"""About the size of blocks of rows of tiles, where a quarter of the weights, which every block reads, is not more."""

_FEWEST_CHANNELS = 32
_FEWEST_PAIRS = 2048
"""With fewer channels, or pairs of output channels and as many or less input channels, the transforms cost more than they save."""


def suits(w: Array, group: int) -> bool:
    """True for weights (M, C, 3, 3) whose convolution is faster this way."""
    return w.dtype == np.float32 and suits_shape(w.shape, group)


def suits_shape(shape: tuple[int, ...], group: int) -> bool:
    """The same of their shape."""
    m, c = shape[:2]
    enough = min(m, c) >= _FEWEST_CHANNELS and m * min(m, c) >= _FEWEST_PAIRS
    return group == 1 and shape[2:] == (3, 3) and enough


def suits_window(w: Window) -> bool:
    """True for the windows that can be computed this way."""
    return {*w.strides, *w.dilations} == {1} and min(*w.begin, *w.end) >= 0 and all(w.output)


def transform_weights(w: Array) -> Array:
    """(M, C, 3, 3) to (16, C, M)."""
    m, c = w.shape[:2]
    return np.asarray(_WEIGHTS @ w.transpose(2, 3, 1, 0).reshape(9, c * m)).reshape(16, c, m)


def outputs(tiles: Array, weights: Array) -> Array:
    """Transformed tiles (16, T, C) times transformed weights, transformed back to (4, T * M)."""
    y = np.empty((*tiles.shape[:2], weights.shape[2]), np.float32)
    product(tiles, weights, y)
    return _transformed(_OUTPUT, y.reshape(16, -1))


def _transformed(matrix: Array, x: Array) -> Array:
    """matrix @ x for few long rows."""
    out = np.empty((len(matrix), x.shape[1]), np.float32)
    product(x.T, matrix.T, out.T)
    return out


class NotFiniteError(ArithmeticError):
    """A sum was infinite or no number."""


def finite_outputs(tiles: Array, weights: Array) -> Array:
    """What `outputs` computes. NotFiniteError where that is infinite, no number, or too large to tell."""
    y = outputs(tiles, weights)
    flat = y.reshape(-1)
    if not math.isfinite(np.dot(flat, flat)):
        raise NotFiniteError
    return y


def convolve_3x3(
    x: Array,
    weights: Array,
    w: Window,
    combined: Callable[[Array, Array], Array] = outputs,
    memory: Array | None = None,
) -> Array:
    """(N, C, H, W) with transformed weights, for a window of strides and dilations 1, to (N, OH, OW, M) channels last.

    Contiguous `memory` takes the result, where there is some.
    """
    n, c = x.shape[:2]
    (oh, ow), m = w.output, weights.shape[2]
    rows, columns = -(-oh // 2), -(-ow // 2)
    padded = np.zeros((n, 2 * rows + 2, 2 * columns + 2, c), np.float32)
    top, left = w.begin
    padded[:, top : top + w.size[0], left : left + w.size[1]] = to_last(x)
    is_whole = (oh, ow) == (2 * rows, 2 * columns)
    out = memory if is_whole and memory is not None else np.empty((n, 2 * rows, 2 * columns, m), np.float32)
    blocks = round(16 * 4 * rows * columns * max(c, m) / max(_BLOCK_BYTES, weights.nbytes // 4))
    block = max(1, -(-rows // max(1, blocks)))
    for image, target in zip(padded, out):
        by_row, by_column, item = image.strides
        tiles = strided(image, (4, 4, rows, columns, c), (by_row, by_column, 2 * by_row, 2 * by_column, item))
        by_tile = target.reshape(rows, 2, columns, 2, m)
        for start in range(0, rows, block):
            part = tiles[:, :, start : start + block]
            count = part.shape[2]
            held = np.empty((16, count * columns * c), np.float32)
            copy_runs(part, held.reshape(part.shape))
            y = combined(_transformed(_INPUT, held).reshape(16, -1, c), weights).reshape(2, 2, count, columns, m)
            copy_runs(y.transpose(2, 0, 3, 1, 4), by_tile[start : start + count])
    if is_whole:
        return out
    memory = np.empty((n, oh, ow, m), np.float32) if memory is None else memory
    memory[...] = out[:, :oh, :ow]
    return memory
