"""The values of a plan that are known before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.executor.replay.work import Function
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array, aligned, dense

_LARGEST_RESULT = 1 << 20
"""Limit in bytes. Larger results are kept only if their operands have at least an eighth of their size."""

_SMALL = 1 << 16

Binder = Callable[[Node], tuple[Function, list[Value | None]]]


class Constants:
    """Arrays of values; None if a value is not constant.

    Large arrays may be unaligned views of a model file. They can be converted to another layout, but are slow to
    compute with: `align` copies them.
    """

    def __init__(self) -> None:
        self._arrays: dict[Value, Any] = {}
        self._folded: dict[Value, tuple[Node, Binder]] = {}

    def __call__(self, value: Value) -> Array | None:
        known: Array | None = self._arrays.get(value)
        if known is not None:
            return known
        if value.const is not None and not value.is_input:
            known = dense(value.const)
            self._arrays[value] = known = aligned(known) if known.nbytes <= _SMALL else known
        elif value in self._folded:
            self.fold(*self._folded[value])
            known = self._arrays.get(value)
        return known

    def align(self, value: Value) -> Array | None:
        """The array of a value, copied to aligned memory if it is not aligned."""
        known = self(value)
        if known is not None and not known.flags.aligned:
            self._arrays[value] = known = aligned(known)
        return known

    def fold(self, node: Node, bind: Binder) -> bool:
        """Compute a node's outputs from constants. Returns False if that fails, or if they are too large to keep."""
        function, reads = bind(node)
        operands = [None if v is None else self(v) for v in reads]
        if sum(operand is not None for operand in operands) < sum(v is not None for v in reads):
            return False
        try:
            result = function(*operands)
        except Exception:
            return False
        results = (result if type(result) is tuple else (result,))[: len(node.outputs)]
        most = max(_LARGEST_RESULT, 8 * sum(operand.nbytes for operand in operands if operand is not None))
        if not all(isinstance(r, np.ndarray) and r.nbytes <= most for r in results):
            return False
        for value, array in zip(node.outputs, results, strict=False):
            if value is not None:
                self._arrays[value] = array
                self._folded[value] = node, bind
        return True

    def forget(self) -> None:
        """Release all arrays. A later request creates the array again."""
        self._arrays.clear()
