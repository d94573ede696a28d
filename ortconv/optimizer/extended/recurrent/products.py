"""Recognizes products with a constant matrix."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import attribute
from ortconv.optimizer.conditions import is_plain_gemm


class WeightProduct(NamedTuple):
    """x @ weight + addend with a constant weight, which is transposed before if `transposed`."""

    x: Value
    weight: Value
    transposed: bool
    addend: Value | None


def weight_product(node: Node) -> WeightProduct | None:
    """The product that a MatMul or Gemm with a constant matrix computes; None if the Gemm does anything else, too."""
    x, weight = node.inputs[:2]
    if x is None or weight is None or weight.constant is None or weight.constant.rank != 2:
        return None
    if node.op == "MatMul":
        return WeightProduct(x, weight, transposed=False, addend=None)
    if not is_plain_gemm(node):
        return None
    return WeightProduct(x, weight, transposed=bool(attribute(node, "transB")), addend=node.input(2))
