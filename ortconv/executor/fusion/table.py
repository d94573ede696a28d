"""The fusions of a plan, in order. A node belongs to the first group that claims it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ortconv.executor.fusion.attention import attention_groups
from ortconv.executor.fusion.elementwise import elementwise_groups
from ortconv.executor.fusion.group import Group, Scope
from ortconv.executor.fusion.int8 import dynamic_groups, int8_groups

Fusions = Mapping[str, Callable[[Scope], Iterable[Group]]]
"""Functions that find groups one after another. The scope shows them which nodes are already claimed."""

QUANTIZED: Fusions = {
    "int8": int8_groups,  # operators on 8-bit tensors, whose results stay centered values in float32
    "dynamic quantization": dynamic_groups,  # DynamicQuantizeLinear before products with constant weights
}
FLOAT: Fusions = {
    "attention": attention_groups,  # MatMul, a factor, masks, Softmax, MatMul block by block
    "elementwise": elementwise_groups,  # chains of elementwise operators after a product, in its memory
}


def fuse(scope: Scope, fusions: Fusions) -> None:
    """Find the groups of some fusions in a scope."""
    for find in fusions.values():
        for group in find(scope):
            scope.claim(group)
