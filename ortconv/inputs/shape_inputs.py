"""Inputs that hold shapes, such as the shape operand of a Reshape. Their elements are sizes like free dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from random import Random

import numpy as np

from ortconv.inputs.operand_roles import operand_role, parameter, uses
from ortconv.inputs.ranks import rank_of
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import LARGEST_RANK, Array, Tensor
from ortconv.ir.types import DType

LARGEST_SOURCE = 1 << 32
"""Number of elements that are factored. A source with more of them fits no memory, and the search for its factors takes minutes."""


def is_target(value: Value) -> bool:
    """True if an input holds the shape of another value, perhaps cast to int64."""
    is_list = value.rank in (None, 1) and value.dtype in (DType.INT64, DType.INT32)
    return is_list and any(operand_role(node, slot).is_shape for node, slot in uses(value))


def filled(target: Value, elements: Sequence[int]) -> Array:
    """The array of a target with these elements."""
    assert target.dtype is not None
    return np.array(elements, target.dtype.numpy)


def default(value: Value) -> list[int] | None:
    """The elements of the default value of an input that holds a shape; None for other inputs."""
    const = value.const if is_target(value) else None
    if not isinstance(const, Tensor) or const.size > LARGEST_RANK:
        return None
    return [int(n) for n in const.numpy().reshape(-1)]


def length(value: Value) -> int | None:
    """Number of elements of a target that declares none: the rank that readers of the value with this shape need.

    If a reader only keeps dimensions, it is the rank of the reshaped value, or more if a kept dimension is beyond it.
    """
    nodes = _shaped_by(value)
    ranks = chain((rank_of(node.out) for node in nodes), map(_rank_kept, nodes))
    return next((rank for rank in ranks if rank is not None), None)


def _shaped_by(target: Value) -> list[Node]:
    """The nodes whose output has exactly the shape that a target holds."""
    return [node for node, slot in uses(target) if operand_role(node, slot).is_shape and node.op != "Expand"]


def _rank_kept(node: Node) -> int | None:
    """The rank that the output of a Reshape needs for readers that keep some of its dimensions by a 0 in their targets."""
    source = node.inputs[0]
    if node.op != "Reshape" or source is None:
        return None
    readers = (reader for reader, slot in node.out.uses if reader.is_op("Reshape") and slot == 0)
    kept = [axis for reader in readers for axis in _kept_axes(reader)]
    return max(source.rank or 0, max(kept) + 1) if kept else None


def _kept_axes(node: Node) -> list[int]:
    """The axes of a Reshape's source that its constant target keeps."""
    target = None if node.attr("allowzero", 0) else node.input(1)
    if target is None or target.constant is None:
        return []
    return [axis for axis, size in enumerate(target.constant.numpy().reshape(-1)) if size == 0]


def elements(value: Value, count: int) -> dict[str, int]:
    """A name for each element of a target, and its initial value."""
    made = parameter(value, (count,))
    return {f"{value.name}({i})": 1 if made is None else int(made[i]) for i in range(count)}


def other_elements(value: Value, count: int, variant: int) -> list[int]:
    """Another list of elements for each variant.

    The first variants are -1 on one axis and 1 on the others. Later ones distribute the factors of the source's size
    over random axes.
    """
    made = [1] * count
    size = _elements_of_source(value)
    if variant <= count or not count or size is None or size > LARGEST_SOURCE:
        return [-1 if i == (variant - 1) % count else 1 for i in range(count)]
    rng, left = Random(variant), size
    while left > 1:
        factor = next((f for f in range(2, math.isqrt(left) + 1) if left % f == 0), left)
        made[rng.randrange(count)] *= factor
        left //= factor
    return made


def _elements_of_source(value: Value) -> int | None:
    """Number of elements of the value that a Reshape changes to this target; None if it has free dimensions."""
    sources = [node.inputs[0] for node, slot in uses(value) if node.op == "Reshape" and slot == 1]
    shapes = (source.static_shape for source in sources if source is not None)
    return next((math.prod(shape) for shape in shapes if shape is not None), None)


def outputs(values: Iterable[Value]) -> dict[Value, Value]:
    """The values whose shape is held by a target, with the target."""
    return {node.out: value for value in values for node in _shaped_by(value)}
