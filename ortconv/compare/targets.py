"""Inputs that hold shapes: the target of a Reshape that is fed. Their elements are sizes like free dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.compare.parameters import parameter
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.types import DType

SHAPED = {("Reshape", 1): True, ("ConstantOfShape", 0): True, ("Expand", 1): False}
"""Slots that take a shape, and whether the output has just this shape."""

RANKED = {"Gemm": 2}
"""The rank of input 0 where attributes and other inputs do not tell it."""

LIKE_WEIGHTS = ("Conv", "ConvTranspose", "MatMul")


def is_target(value: Value) -> bool:
    """Whether an input holds the shape of something."""
    is_list = value.rank in (None, 1) and value.dtype is DType.INT64
    return is_list and any((node.op, slot) in SHAPED and not node.domain for node, slot in value.uses)


def length(value: Value) -> int | None:
    """How many elements a target has: as declared, the rank that readers of what has this shape take, or that of what gets it."""
    declared = value.dim(0)
    if isinstance(declared, int):
        return declared
    nodes = [node for node, slot in value.uses if SHAPED.get((node.op, slot)) and not node.domain]
    data = (node.inputs[0] for node in nodes if node.op == "Reshape")
    ranks = [*(_rank(node.out) for node in nodes), *(v.rank for v in data if v is not None)]
    return next((rank for rank in ranks if rank is not None), None)


def _rank(value: Value) -> int | None:
    """The rank of a value: its own, or the one that a node behind it takes."""
    same = [value]
    for current in same:
        if current.rank is not None:
            return current.rank
        for node, slot in current.uses:
            taken = _rank_taken(node, slot)
            if taken is not None:
                return taken
            if slot == 0 and traits(node).has(Trait.ELEMENTWISE, Trait.KEEPS_SHAPE):
                same.append(node.out)
    return None


def _rank_taken(node: Node, slot: int) -> int | None:
    """The rank of an input that a node tells by its attributes or its other inputs."""
    others = (v.rank for i, v in enumerate(node.inputs) if i != slot and v is not None)
    if node.op == "Transpose" and "perm" in node.attrs:
        return len(node.attr("perm", ()))
    if traits(node).has(Trait.JOINS) or (slot == 0 and node.op in LIKE_WEIGHTS):
        return next((rank for rank in others if rank is not None), None)
    return RANKED.get(node.op) if slot == 0 else None


def elements(value: Value, count: int) -> dict[str, int]:
    """A name for each element of a target, and what it holds at first."""
    made = parameter(value, (count,))
    return {f"{value.name}({i})": 1 if made is None else int(made[i]) for i in range(count)}


def outputs(values: Iterable[Value]) -> dict[Value, Value]:
    """What has the shape that a target holds, with the target."""
    return {
        node.out: value
        for value in values
        for node, slot in value.uses
        if SHAPED.get((node.op, slot)) and not node.domain
    }
