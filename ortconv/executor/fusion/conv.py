"""Convolutions with constant weights, the padding before them that they can do, and the pooling that can come sooner."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortconv.executor.fusion.elementwise_ops import Clip
from ortconv.executor.fusion.elementwise_program import Instruction
from ortconv.executor.fusion.group import Constant
from ortconv.executor.kernels.activation import MICROSOFT
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array


def weights_and_bias(node: Node, constant: Constant) -> tuple[Array | None, Array | None]:
    """The constant weights and bias of a convolution."""
    weights, bias = node.input(1), node.input(2)
    return None if weights is None else constant(weights), None if bias is None else constant(bias)


def has_constant_weights(node: Node, constant: Constant) -> bool:
    """True for a convolution of float32 whose weights and bias are known and whose input is not."""
    if not node.is_op("Conv") and not node.is_op("FusedConv", MICROSOFT):
        return False
    weights, bias = weights_and_bias(node, constant)
    if node.inputs[0] is None or constant(node.inputs[0]) is not None:
        return False
    return weights is not None and weights.dtype == np.float32 and (bias is not None or node.input(2) is None)


def merged_pad(node: Node, constant: Constant) -> Node | None:
    """The Pad with zeros before a convolution with constant weights, where the convolution can pad instead."""
    value = node.inputs[0]
    pad = None if value is None else value.producer
    if (
        node.op != "Conv"
        or pad is None
        or not pad.is_op("Pad")
        or pad.attr("mode", "constant") not in ("constant", b"constant")
    ):
        return None
    weights, bias = weights_and_bias(node, constant)
    usable = weights is not None and weights.dtype == np.float32 and (bias is not None or node.input(2) is None)
    if not usable or node.attr("auto_pad", "NOTSET") != "NOTSET" or total_padding(node, pad, constant) is None:
        return None
    return pad


def total_padding(node: Node, pad: Node, constant: Constant) -> tuple[int, ...] | None:
    """What both add to the spatial axes; None if that is not known, or the Pad does more."""
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


def pooled_first(instructions: Sequence[Instruction], result: Value, live_out: set[Value]) -> Node | None:
    """The MaxPool that alone reads what instructions make of images, where the largest element is the largest before these, too."""
    reader = next(iter(result.uses))[0] if len(result.uses) == 1 and result not in live_out else None
    if reader is None or not reader.is_op("MaxPool") or len(reader.outputs) != 1 or result.rank != 4:
        return None
    rises = all(isinstance(instruction.function, Clip) or _shifts_channels(instruction) for instruction in instructions)
    return reader if instructions and rises and has_input_in_every_window(reader) else None


def _shifts_channels(instruction: Instruction) -> bool:
    added = [o for o in instruction.operands if isinstance(o, np.ndarray)]
    return instruction.function is np.add and len(added) == 1 and added[0].size == prod(added[0].shape[-3:-2])


def has_input_in_every_window(pool: Node) -> bool:
    """False where a window of a MaxPool might lie in the padding, whose value depends on the type."""
    return (
        max(pool.attr("pads", (0,))) < min(pool.attr("kernel_shape", (1,))) and max(pool.attr("dilations", (1,))) == 1
    )
