"""Permitted differences: limits for graphs and values, the tolerance of each output, and the decision if a result is within it, or
no farther from the truth than results of the source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.compare.gap import TIMES, Gap, element_errors, gap, has_same_form, is_numeric
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import INT8, Trait, named, traits
from ortconv.ir.schema import draws
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

QUANTIZED_LIMIT = 0.05
"""The limit for graphs with activations rounded to 8 bits: sums in another order change values by whole quantization steps."""

QUANTIZED_RMS = 0.01
"""Limit on the RMS error of quantized sums, relative to the average magnitude."""

UNEXPLAINED = 0.25
"""The fraction of differing elements that runs of the source need not explain: a few runs do not move every element at a rounding
tie. In right conversions of quantized models, at most 0.1 were not explained.
"""

_QUANTIZE = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QGemm")

EPSILON = {
    DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT8E4M3FN: 2.0**-3, DType.FLOAT8E4M3FNUZ: 2.0**-3,
    DType.FLOAT8E5M2: 2.0**-2, DType.FLOAT8E5M2FNUZ: 2.0**-2,
}  # fmt: skip
"""Distance from 1 to the next number, for floats narrower than the type in which sums are accumulated."""


FLOORS = {DType.FLOAT16: 2.0**-23, DType.BFLOAT16: 1e-38, DType.FLOAT: 1e-37, DType.DOUBLE: 1e-300}
"""Differences too small to matter: two subnormals of float16, less than the smallest normal number of other types."""

SIGMOID_ERROR = 2.0**-23
"""onnxruntime approximates sigmoids to this absolute error: few digits of a small result are right."""

MOVES = frozenset((*named(Trait.MOVES, Trait.JOINS, Trait.PICKS), "Pad"))
"""Operators whose first result consists of elements of their first input; Pad adds a constant."""


def limit(graph: Graph, dtypes: Sequence[DType | None]) -> float:
    """The permitted scaled difference for these outputs: rounding grows with the longest sum and the number of sums."""
    return allowance(graph, dtypes).limit


def allowance(graph: Graph, dtypes: Sequence[DType | None]) -> Allowance:
    """The permitted difference of these outputs of a graph."""
    found = Allowance(dtypes)
    for node in graph.walk():
        found.add(node)
    return found


class Allowance:
    """The permitted scaled difference for nodes that compute a value together; nodes can be added as they run."""

    def __init__(self, dtypes: Iterable[DType | None] = ()) -> None:
        self._half = False
        self._narrow = max((EPSILON.get(d, 0.0) for d in dtypes if d is not None), default=0.0)
        self._quantized = False
        self._sums = 0
        self._longest = 1

    def add(self, node: Node) -> None:
        self._quantized = self._quantized or quantizes(node)
        for value in node.present_outputs:
            self._half = self._half or value.dtype is DType.FLOAT16
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

    def floor(self, value: Value) -> float:
        """An absolute difference of a value that is too small to matter."""
        node = _computing_node(value)
        if node is not None and "Sigmoid" in (node.op, node.attr("activation", "")):
            return SIGMOID_ERROR
        dtype = DType.FLOAT16 if self._half else value.dtype
        return 0.0 if dtype is None else FLOORS.get(dtype, 0.0)


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


class OutputTolerance(NamedTuple):
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


def random_outputs(graph: Graph) -> set[int]:
    """Indices of outputs that depend on random numbers."""
    drawn: set[Value | None] = set()
    for node in graph:
        inner = (n for sub in node.subgraphs for n in sub.walk())
        if any(map(draws, (node, *inner))) or any(v in drawn for v in node.present_reads):
            drawn.update(node.outputs)
    return {k for k, v in enumerate(graph.outputs) if v in drawn}


def accepts(tolerance: OutputTolerance, found: Gap) -> bool:
    """True if a gap between the reference and a result is within the tolerance."""
    if found.mismatch is not None or found.strays:
        return False
    if not found.largest:
        return True
    if not tolerance.is_float:
        return tolerance.step is not None and found.largest <= 1 and found.count <= most_ties(found.size)
    if not tolerance.quantized:
        return found.largest <= tolerance.limit * max(found.magnitude, tolerance.range) + tolerance.floor
    if tolerance.step is not None:
        return found.largest <= tolerance.step * (1 + 1e-4) and found.count <= most_ties(found.size)
    return found.largest <= tolerance.limit * found.magnitude and found.rms <= QUANTIZED_RMS * found.average


def permitted(tolerance: OutputTolerance, found: Gap) -> str:
    """The permitted difference, for messages; for quantized values, also how much of it there is."""
    if tolerance.step is not None:
        few = f"in {most_ties(found.size)} of {found.size} elements, where {found.count} differ"
        return f"one step of {tolerance.step:.3g} {few}"
    if not tolerance.is_float:
        return "none"
    rms = (
        f", and an RMS of {QUANTIZED_RMS * found.average:.2g}, where it is {found.rms:.2g}"
        if tolerance.quantized
        else ""
    )
    return f"{tolerance.limit:.1e}{rms}"


def most_ties(size: int) -> int:
    """Number of quantized values out of `size` that may differ by one step: those at rounding ties."""
    return min(2 + size // 50, -(-size // 4))


def within_errors(tolerance: OutputTolerance, truth: Array, got: Array, errors: Array) -> bool:
    """True if each element is as near to the truth as its entry in `errors`, apart from rounding."""
    sure = np.abs(truth[np.isfinite(errors)].astype(np.float64))
    magnitude = float(sure[np.isfinite(sure)].max(initial=0))
    is_float = tolerance.dtype is not None and tolerance.dtype.is_float
    room = tolerance.limit * magnitude + tolerance.floor if is_float and not tolerance.quantized else 0.0
    return bool((element_errors(truth, got) <= errors + room).all())


def is_nearer(truth: Any, want: Any, got: Any, results: Sequence[Any]) -> bool:
    """True if a result is as near to the truth as one of the source's results, in every respect.

    The elements in which all of these are off by the largest element of `want`, as at the pole of a function, are judged one by
    one, and may be TIMES as far off. False if one of them is no array of the form of `want`.
    """
    if not all(is_numeric(one) and has_same_form(want, one) for one in (truth, got, *results)):
        return False
    errors = [element_errors(truth, one) for one in results]
    finite = np.isfinite(want)
    largest = np.abs(want[finite]).max(initial=np.finfo(want.dtype).tiny)
    lost = np.asarray(finite & (np.min(errors, axis=0) >= largest))
    near = ~np.isnan(got) & (element_errors(truth, got) <= TIMES * np.max(errors, axis=0))
    if not (near | ~lost).all():
        return False
    ours, *theirs = (gap(truth[~lost], one[~lost]) for one in (got, *results))
    return any(ours.explained_by(one, 1.0) for one in theirs)
