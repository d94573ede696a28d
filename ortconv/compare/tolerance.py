"""Permitted differences: limits for graphs and values, and the tolerance of each output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import INT8, Trait, named, traits
from ortconv.ir.types import DType

QUANTIZED_LIMIT = 0.05
"""The limit for graphs with activations rounded to 8 bits: sums in another order change values by whole quantization steps."""

_QUANTIZE = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QGemm")

EPSILON = {
    DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT8E4M3FN: 2.0**-3, DType.FLOAT8E4M3FNUZ: 2.0**-3,
    DType.FLOAT8E5M2: 2.0**-2, DType.FLOAT8E5M2FNUZ: 2.0**-2,
}  # fmt: skip
"""Distance from 1 to the next number, for floats narrower than the type in which sums are accumulated."""


FLOORS = {DType.FLOAT16: 2.0**-23, DType.BFLOAT16: 1e-38, DType.FLOAT: 1e-37, DType.DOUBLE: 1e-300}
"""Differences too small to matter: two subnormals of float16, less than the smallest normal number of other types."""

MOVES = frozenset((*named(Trait.MOVES, Trait.JOINS, Trait.PICKS), "Pad"))
"""Operators whose first result consists of elements of their first input; Pad adds a constant."""


def limit(graph: Graph, dtypes: Sequence[DType | None]) -> float:
    """The permitted scaled difference for these outputs: rounding grows with the longest sum and the number of sums."""
    found = Allowance(dtypes)
    for node in graph.walk():
        found.add(node)
    return found.limit


class Allowance:
    """The permitted scaled difference for nodes that compute a value together; nodes can be added as they run."""

    def __init__(self, dtypes: Iterable[DType | None] = ()) -> None:
        self._narrow = max((EPSILON.get(d, 0.0) for d in dtypes if d is not None), default=0.0)
        self._quantized = False
        self._sums = 0
        self._longest = 1

    def add(self, node: Node) -> None:
        self._quantized = self._quantized or quantizes(node)
        for value in node.present_outputs:
            if value.dtype in EPSILON:
                self._narrow = max(self._narrow, EPSILON[value.dtype])
        length = _sum_length(node)
        if length:
            self._sums += 1
            self._longest = max(self._longest, length)

    @property
    def limit(self) -> float:
        if self._quantized:
            return QUANTIZED_LIMIT
        if self._narrow:
            return min(self._narrow * (4 + math.sqrt(self._sums)), max(self._narrow, QUANTIZED_LIMIT))
        return float(np.finfo(np.float32).eps) * math.sqrt(self._longest) * (8 + 2 * math.sqrt(self._sums))


def quantizes(node: Node) -> bool:
    """True for operators that round their results, or the activations that they read, to quantized values."""
    if node.op == "MatMulNBits":
        return node.attr("accuracy_level", 0) == INT8
    return node.op in _QUANTIZE or node.op.startswith("QLinear")


def _sum_length(node: Node) -> int:
    """Number of products in the sum of one output element; 0 for operators that do not sum."""
    if node.op == "MatMulNBits":
        return int(node.attr("K", 64))
    if traits(node).has(Trait.SUMS):
        weight = node.input(1)
        shape = None if weight is None else weight.static_shape
        if not shape:
            return 64
        return math.prod(shape[1:]) if "Conv" in node.op else max(shape[-2:])
    if node.op.startswith(("Reduce", "Global")) or "Normalization" in node.op or "Softmax" in node.op:
        return 64
    return 0


@dataclass(frozen=True, slots=True)
class OutputTolerance:
    """The permitted difference of one output. `step` is the scale of its quantized values, if it has them.

    The limit is relative to the largest element of the output, or to `range` if that is greater.
    """

    limit: float
    dtype: DType | None = None
    quantized: bool = False
    step: float | None = None
    range: float = 0.0

    @property
    def is_float(self) -> bool:
        """True if elements are floats or complex numbers, or if their type is not known."""
        return self.dtype is None or self.dtype.is_float or self.dtype.name.startswith("COMPLEX")

    @property
    def floor(self) -> float:
        return 0.0 if self.dtype is None else FLOORS.get(self.dtype, 0.0)


def tolerances(graph: Graph, error_budget: float | None = None) -> list[OutputTolerance]:
    """The tolerance of each output of a source model. No limit is less than the error budget."""
    allowed = max(limit(graph, [v.dtype for v in graph.outputs]), error_budget or 0.0)
    quantized = error_budget is None and any(map(quantizes, graph.walk()))
    return [OutputTolerance(allowed, v.dtype, quantized, _step(v) if quantized else None) for v in graph.outputs]


def _step(value: Value | None) -> float | None:
    """The distance between neighboring quantized values in an output; None if it has no quantized values."""
    node = _computing_node(value)
    if node is None:
        return None
    if quantizes(node) and node.op != "DynamicQuantizeLinear":
        return 1.0
    return largest_scale(node) if node.op == "DequantizeLinear" and _step(node.input(0)) is not None else None


def largest_scale(node: Node) -> float | None:
    """The largest scale of a DequantizeLinear; None if it is not constant."""
    const = node.constant(1)
    return None if const is None else float(np.abs(const.numpy().astype(np.float64)).max(initial=0))


def _computing_node(value: Value | None) -> Node | None:
    """The node that computes the elements of a value, behind at most 64 nodes that only move them; None if there is none."""
    for _ in range(64):
        node = None if value is None else value.producer
        if node is None or node.op not in MOVES or (value is not node.outputs[0] and traits(node).has(Trait.PICKS)):
            return node
        value = node.input(0)
    return None
