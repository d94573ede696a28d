"""Families of operators: the colors of pictures that are not divided between CPU and accelerator."""

from __future__ import annotations

import re

from ortconv.ir.graph import Node
from ortconv.ir.operators import Trait, traits

FAMILIES = {
    "product": "convolution, product",
    "reduction": "pooling, normalization, reduction",
    "elementwise": "element by element",
    "movement": "moves elements",
}
"""The legend of each family."""

_PRODUCT = re.compile("Conv|MatMul|Gemm|Attention|LSTM|GRU|RNN")
_REDUCTION = re.compile("Pool|Norm|LRN|Softmax")


def family(node: Node) -> str:
    """The family of an operator; empty for one that belongs to none."""
    facts = traits(node)
    if facts.has(Trait.SUMS) or _PRODUCT.search(node.op):
        return "product"
    if facts.has(Trait.REDUCES) or _REDUCTION.search(node.op):
        return "reduction"
    if facts.has(Trait.MOVES, Trait.JOINS):
        return "movement"
    return "elementwise" if facts.has(Trait.ELEMENTWISE, Trait.BROADCASTS) else ""
