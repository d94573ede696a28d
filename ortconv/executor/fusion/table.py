"""The fusions of a plan, in order. A node belongs to the first group that claims it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ortconv.executor.fusion.attention import attention_groups
from ortconv.executor.fusion.elementwise import elementwise_groups
from ortconv.executor.fusion.group import Group, Scope
from ortconv.executor.fusion.int8 import dynamic_groups, int8_groups


class Fusion(NamedTuple):
    """A name, and the function that finds groups one after another. The scope shows it which nodes are already claimed."""

    name: str
    find: Callable[[Scope], Iterable[Group]]


QUANTIZED = (
    Fusion("int8", int8_groups),  # operators on 8-bit tensors, which hand on integers in float32
    Fusion("dynamic quantization", dynamic_groups),  # DynamicQuantizeLinear before products with constant weights
)

FLOAT = (
    Fusion("attention", attention_groups),  # MatMul, a factor, masks, Softmax, MatMul block by block
    Fusion("elementwise", elementwise_groups),  # chains of elementwise operators behind their product, in its memory
)


def fuse(scope: Scope, fusions: Sequence[Fusion]) -> None:
    """Find the groups of some fusions in a scope."""
    for fusion in fusions:
        for group in fusion.find(scope):
            scope.claim(group)
