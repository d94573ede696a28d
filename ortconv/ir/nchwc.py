"""The NCHWc layout of ONNX Runtime on x86-64: channels in blocks, the index within a block varying fastest.

A tensor keeps the shape (N, C, H, W); C is padded to whole blocks. The block length depends on the CPU.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ortconv.ir.tensor import Array

DOMAIN = "com.microsoft.nchwc"


@cache
def block_length() -> int:
    """The block length that ONNX Runtime chooses on this machine: 16 on CPUs with AVX-512, else 8."""
    from numpy._core._multiarray_umath import __cpu_features__ as features  # type: ignore[import-not-found,unused-ignore]

    return 16 if features.get("AVX512F") else 8


def padded(channels: int, block: int) -> int:
    """The number of channels, rounded up to whole blocks."""
    return -(-channels // block) * block


def to_blocks(x: Array, block: int) -> Array:
    """Convert (N, C, H, W) to blocks; added channels are zero."""
    n, c, h, w = x.shape
    full = np.zeros((n, padded(c, block), h, w), x.dtype)
    full[:, :c] = x
    blocks = full.reshape(n, full.shape[1] // block, block, h, w).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(blocks).reshape(full.shape)


def from_blocks(x: Array, block: int) -> Array:
    """Convert blocks to (N, C, H, W). Padding channels are kept."""
    n, c, h, w = x.shape
    return x.reshape(n, c // block, h, w, block).transpose(0, 1, 4, 2, 3).reshape(x.shape)


def filters_to_blocks(w: Array, block: int, *, inputs: bool) -> Array:
    """Convert filters (O, I, H, W) to blocks of output channels; with `inputs`, of input channels too, in the order O I H W i o."""
    o, i, height, width = w.shape
    full = np.zeros((padded(o, block), padded(i, block) if inputs else i, height, width), w.dtype)
    full[:o, :i] = w
    inner = block if inputs else 1
    parts = full.reshape(full.shape[0] // block, block, full.shape[1] // inner, inner, height, width)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 3, 1)).reshape(full.shape)


def filters_from_blocks(w: Array, block: int, *, inputs: bool) -> Array:
    """The inverse of `filters_to_blocks`. Padding channels are kept."""
    o, i, height, width = w.shape
    inner = block if inputs else 1
    parts = w.reshape(o // block, i // inner, height, width, inner, block)
    return np.ascontiguousarray(parts.transpose(0, 5, 1, 4, 2, 3)).reshape(w.shape)
