"""Changes int8 weights beside uint8 activations to uint8, for processors whose kernels overflow in their products."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, NewInput, Replacement, in_place_of, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import raised_to_uint8
from ortconv.optimizer.tracking import Operator

SLOTS: dict[Operator, tuple[tuple[int, int], ...]] = {
    ("", "MatMulInteger"): ((1, 3),),
    ("", "QLinearConv"): ((3, 5),),
    ("", "QLinearMatMul"): ((3, 5),),
    (MICROSOFT, "DynamicQuantizeLSTM"): ((1, 9), (2, 11)),
    (MICROSOFT, "DynamicQuantizeMatMul"): ((1, 3),),
    (MICROSOFT, "MatMulIntegerToFloat"): ((1, 5),),
    (MICROSOFT, "QAttention"): ((1, 7),),
    (MICROSOFT, "QGemm"): ((3, 5),),
    (MICROSOFT, "QLinearConv"): ((3, 5),),
}
"""The inputs of each operator with the weights and zero points of its products. Input 0 has the activations."""


@rule("Avx2WeightS8ToU8Transformer", *(P(op, ..., domain=domain) for domain, op in SLOTS))
def make_unsigned(m: Match) -> Replacement:
    """Products of uint8 and int8 weights  ->  products of uint8 and uint8, with a zero point 128 higher

    Counterpart: Avx2WeightS8ToU8Transformer (session.x64quantprecision)
    Differs: also QLinearConv of NHWC; the file has the weights, since onnxruntime optimizes no file in ORT format.
    Opt-in: useful only for x86-64 processors without VNNI: their kernels add two products of uint8 and int8 in 16 bits,
        which overflows for weights beyond 64.
    """
    node = m.root
    inputs = _inputs(node)
    if inputs is None:
        return None
    types = [None if v is None else v.type for v in node.outputs]
    return in_place_of(node, New(node.op, inputs, domain=node.domain, like=node, outputs=len(types), types=types))


def _inputs(node: Node) -> list[NewInput] | None:
    """The inputs of a node with uint8 weights; None if no weights are int8 constants beside uint8 activations."""
    signed = [pair for pair in SLOTS[node.domain, node.op] if _are_int8_constants(node, *pair)]
    if node.input(0) is None or node.dtype(0) is DType.INT8 or not signed:
        return None
    inputs: list[NewInput] = [*node.inputs]
    for weight, zero in signed:
        inputs += [None] * (zero + 1 - len(inputs))
        inputs[weight], inputs[zero] = _unsigned(node.constant(weight)), _unsigned(node.constant(zero))
    return inputs


def _are_int8_constants(node: Node, weight: int, zero: int) -> bool:
    """True if the weights are an int8 constant, and so is their zero point, or it is absent."""
    present = [v for v in (node.input(weight), node.input(zero)) if v is not None]
    return node.input(weight) is not None and all(v.constant is not None and v.dtype is DType.INT8 for v in present)


def _unsigned(const: Tensor | None) -> NewInput:
    """An int8 constant as uint8; an absent one is zero."""
    return raised_to_uint8(np.array(0, np.int8) if const is None else const.numpy())
