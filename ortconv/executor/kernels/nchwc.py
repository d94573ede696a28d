"""ONNX Runtime's operators on blocked channels, computed by the operators on the usual layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.kernels.conv import fused_conv
from ortconv.executor.kernels.pool import average_pool, global_average_pool, global_max_pool, max_pool
from ortconv.executor.kernels.registry import Function, kernel, table
from ortconv.executor.kernels.resize import resize
from ortconv.ir.nchwc import DOMAIN, block_length, filters_from_blocks, from_blocks, to_blocks
from ortconv.ir.tensor import Array


@kernel("ReorderOutput", domain=DOMAIN)
def reorder_output(x: Array, *, channels: int = 0, channels_last: int = 0) -> Array:
    y = from_blocks(x, block_length())[:, :channels]
    return np.ascontiguousarray(y.transpose(0, 2, 3, 1) if channels_last else y)


@kernel("Conv", domain=DOMAIN)
def conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, *, group: int = 1, **attributes: Any
) -> Array:
    """Images with fewer channels than a block have the usual layout."""
    block = block_length()
    few = w.shape[1] < block
    images = x if few and group == 1 else from_blocks(x, block)
    filters = filters_from_blocks(w, block, inputs=not few)
    sums = None if z is None else from_blocks(z, block)
    return to_blocks(fused_conv(images, filters, b, sums, group=group, **attributes), block)


def _on_blocks(function: Function) -> Function:
    block = block_length
    return lambda x, *others, **given: to_blocks(function(from_blocks(x, block()), *others, **given), block())


table({
    "ReorderInput": lambda x, *, channels_last=0: to_blocks(x.transpose(0, 3, 1, 2) if channels_last else x, block_length()),
    "MaxPool": _on_blocks(max_pool), "GlobalMaxPool": _on_blocks(global_max_pool),
    "AveragePool": _on_blocks(average_pool), "GlobalAveragePool": _on_blocks(global_average_pool),
}, domain=DOMAIN)  # fmt: skip


@kernel("Upsample", domain=DOMAIN)
def upsample(x: Array, *, scales: Sequence[int], **attributes: Any) -> Any:
    """Every element repeated, or linear interpolation."""
    given = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", **attributes}
    return _on_blocks(resize)(x, None, np.asarray(scales, np.float32), **given)
