"""Convolutions with constant weights, and Pad nodes that they can absorb."""

from __future__ import annotations

import numpy as np

from ortconv.executor.fusion.group import Constant
from ortconv.ir.graph import Node
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


def weights_and_bias(node: Node, constant: Constant) -> tuple[Array | None, Array | None]:
    """The constant weights and bias of a convolution."""
    weights, bias = node.input(1), node.input(2)
    return None if weights is None else constant(weights), None if bias is None else constant(bias)


def has_constant_weights(node: Node, constant: Constant) -> bool:
    """True for a convolution of float32 whose weights and bias are known, and fit each other, and whose input is not known."""
    if not node.is_op("Conv") and not node.is_op("FusedConv", MICROSOFT):
        return False
    weights, bias = weights_and_bias(node, constant)
    if node.inputs[0] is None or constant(node.inputs[0]) is not None:
        return False
    if weights is None or weights.dtype != np.float32:
        return False
    return node.input(2) is None if bias is None else bias.shape == weights.shape[:1]


def merged_pad(node: Node, constant: Constant) -> Node | None:
    """The Pad with zeros before a convolution with constant weights, if the convolution can pad instead."""
    value = node.inputs[0]
    pad = None if value is None else value.producer
    if node.op != "Conv" or pad is None or not pad.is_op("Pad") or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    is_constant = pad.attr("mode", "constant") in ("constant", b"constant")
    usable = is_constant and has_constant_weights(node, constant)
    return pad if usable and total_padding(node, pad, constant) is not None else None


def total_padding(node: Node, pad: Node, constant: Constant) -> tuple[int, ...] | None:
    """The padding that both nodes add to the spatial axes; None if it is unknown, or if the Pad does more than that."""
    if len(pad.inputs) < 2:
        return None if pad.attr("value", 0.0) else _sum(node, tuple(pad.attr("pads", ())))
    amounts, value = (None if v is None else constant(v) for v in (*pad.inputs, None)[1:3])
    if amounts is None or pad.input(3) is not None or (pad.input(2) is not None and (value is None or value.any())):
        return None
    return _sum(node, tuple(amounts.reshape(-1).tolist()))


def _sum(node: Node, amounts: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = len(amounts) // 2
    if rank < 3 or min(amounts) < 0 or any(amounts[i] for i in (0, 1, rank, rank + 1)):
        return None
    own = tuple(node.attr("pads", ())) or (0,) * (2 * rank - 4)
    return tuple(a + b for a, b in zip((*amounts[2:rank], *amounts[rank + 2 :]), own, strict=True))
