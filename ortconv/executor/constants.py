"""The values of a plan that are known before it runs: constants, and what follows from them or from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ortconv.executor.replay.work import Function, as_tuple
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import draws
from ortconv.ir.tensor import Array, aligned, dense

_LARGEST_RESULT = 1 << 20
"""Limit in bytes. Larger results are kept only if their operands have at least an eighth of their size."""

_SMALL = 1 << 16

Binder = Callable[[Node], tuple[Function, list[Value | None]]]


class Constants:
    """Arrays of values; None for an absent value, and for one that is not constant.

    Large arrays may be unaligned views of a model file. They can be converted to another layout, but are slow to
    compute with: `align` copies them.
    """

    def __init__(self) -> None:
        self._arrays: dict[Value | None, Any] = {}
        self._folded: dict[Value, tuple[Node, Binder]] = {}

    def __call__(self, value: Value | None) -> Array | None:
        known: Array | None = self._arrays.get(value)
        if known is not None or value is None:
            return known
        if value.const is not None and not value.is_input:
            known = dense(value.const)
            self._arrays[value] = known = aligned(known) if known.nbytes <= _SMALL else known
        elif value in self._folded:
            self.fold(*self._folded[value])
            known = self._arrays.get(value)
        return known

    def align(self, value: Value | None) -> Array | None:
        """The array of a value, copied to aligned memory if it is not aligned."""
        known = self(value)
        if known is not None and not known.flags.aligned:
            self._arrays[value] = known = aligned(known)
        return known

    def fold(self, node: Node, bind: Binder) -> bool:
        """Compute a node's outputs from constants. Returns False if that fails, or if they are too large to keep."""
        function, reads = bind(node)
        operands = [self(v) for v in reads]
        if any(operand is None and v is not None for operand, v in zip(operands, reads, strict=True)):
            return False
        try:
            result = function(*operands)
        except Exception:
            return False
        results = as_tuple(result)[: len(node.outputs)]
        most = max(_LARGEST_RESULT, 8 * sum(operand.nbytes for operand in operands if operand is not None))
        if not all(isinstance(r, np.ndarray) and r.nbytes <= most for r in results):
            return False
        for value, array in zip(node.outputs, results, strict=False):
            if value is not None:
                array.setflags(write=False)
                self._arrays[value] = array
                self._folded[value] = node, bind
        return True

    def forget(self) -> None:
        """Release all arrays. A later request creates the array again."""
        self._arrays.clear()


def shape_dataflow(nodes: Iterable[Node], inputs: Iterable[Value]) -> tuple[set[Node], set[Node]]:
    """Of nodes in topological order: those that compute constants, and those whose results depend only on the inputs' shapes."""
    constant: set[Value] = set()
    known: set[Value] = set()  # the elements follow from constants and the inputs' shapes
    shaped: set[Value] = set(inputs)  # the shape does
    folding, following = set(), set()
    for node in filter(_follows_from_inputs, nodes):
        facts = traits(node)
        reads, made = _variables(node.inputs), _variables(node.outputs)
        if constant.issuperset(reads):
            folding.add(node)
            constant.update(made)
            known.update(made)
        elif not shaped.issuperset(reads):
            continue
        elif node.op in ("Shape", "Size") or known.issuperset(reads):
            following.add(node)
            known.update(made)
        elif facts.shaped_by and not known.issuperset(_variables(map(node.input, facts.shaped_by))):
            continue
        shaped.update(made)
    return folding, following


def _follows_from_inputs(node: Node) -> bool:
    """False for a node whose results depend on more than its inputs, or whose output shapes depend on data."""
    return not (traits(node).has(Trait.SHAPED_BY_DATA) or node.subgraphs or draws(node))


def _variables(values: Iterable[Value | None]) -> list[Value]:
    """The values that are present and are not constants of the model."""
    return [v for v in values if v is not None and not v.is_constant]
