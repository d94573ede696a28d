"""Decides if an output is as good as the reference: the difference is rounding, or no larger than the effect of rounding on the
source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ortconv.compare.tolerance import (
    QUANTIZED_LIMIT,
    Difference,
    changed_form,
    comparable,
    distances,
    limit,
    quantizes,
    unequal,
    widened,
)
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, named, traits
from ortconv.ir.schema import draws
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

QUANTIZED_RMS = 0.01
"""Limit on the RMS error of quantized sums, relative to the average magnitude."""

FLOORS = {DType.FLOAT16: 2.0**-23, DType.BFLOAT16: 1e-38, DType.FLOAT: 1e-37, DType.DOUBLE: 1e-300}
"""Differences too small to matter: two subnormals of float16, less than the smallest normal number of other types."""

LAST_BITS = 2.0**-14
"""Floats closer than this, relative to the largest, are not counted as different."""

TIMES = 2.0
"""A difference is explained by one between results of the source that is at least 1/TIMES as large."""

UNEXPLAINED = 0.25
"""The fraction of differing elements that need no such explanation, since a few runs do not move every element at a rounding tie.
In right conversions of quantized models it was at most 0.1.
"""

PIECE = 1 << 20
"""Number of elements that are compared at once."""

MOVES = frozenset((*named(Trait.MOVES, Trait.JOINS, Trait.PICKS), "Pad"))
"""Operators whose first result consists of elements of their first input; Pad adds a constant."""


@dataclass(frozen=True, slots=True)
class Tolerance:
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


def tolerances(graph: Graph, error_budget: float | None = None) -> list[Tolerance]:
    """The tolerance of each output of a source model. No limit is less than the error budget."""
    allowed = max(limit(graph, [v.dtype for v in graph.outputs]), error_budget or 0.0)
    quantized = error_budget is None and allowed == QUANTIZED_LIMIT and any(map(quantizes, graph.walk()))
    return [Tolerance(allowed, v.dtype, quantized, _step(v) if quantized else None) for v in graph.outputs]


def _step(value: Value | None) -> float | None:
    """The distance between neighboring quantized values in an output; None if it has no quantized values."""
    node = _maker(value)
    if node is None:
        return None
    if quantizes(node) and node.op != "DynamicQuantizeLinear":
        return 1.0
    scale = node.input(1)
    const = None if scale is None or node.op != "DequantizeLinear" else scale.constant
    if const is None or _step(node.input(0)) is None:
        return None
    return float(np.abs(const.numpy().astype(np.float64)).max(initial=0))


def _maker(value: Value | None) -> Node | None:
    """The node that computes the elements of a value, behind at most 64 nodes that only move them; None if there is none."""
    for _ in range(64):
        node = None if value is None else value.producer
        if node is None or node.op not in MOVES or (value is not node.outputs[0] and traits(node).has(Trait.PICKS)):
            return node
        value = node.input(0)
    return None


@dataclass(frozen=True, slots=True)
class Gap:
    """The distance between two results: the largest and the RMS difference, the number of elements that differ by more than the
    last bits, and the number of elements that are infinite or NaN in only one of them. `mismatch` is the reason if they cannot be
    compared.
    """

    largest: float = 0.0
    rms: float = 0.0
    count: int = 0
    strays: int = 0
    magnitude: float = 0.0
    average: float = 0.0
    size: int = 0
    mismatch: str | None = None

    def explained_by(self, other: Gap, times: float = TIMES) -> bool:
        """True if `times` the gap `other`, which is between results of the source, is at least as large in every respect."""
        if self.mismatch is not None or other.mismatch is not None:
            return False
        return (
            self.largest <= times * other.largest
            and self.rms <= times * other.rms
            and self.count <= times * other.count
            and self.strays <= times * other.strays
        )

    def difference(self) -> Difference:
        if self.mismatch is not None:
            return Difference(mismatch=self.mismatch)
        if self.strays:
            return Difference(mismatch="NaN or infinity in other places")
        scaled = self.largest / self.magnitude if self.magnitude else 0.0 if not self.largest else math.inf
        return Difference(self.largest, scaled)


def gap(want: Any, got: Any) -> Gap:
    """The gap between two outputs: arrays, None, or lists of arrays, of which the widest gap counts."""
    if any(value is None or isinstance(value, list) for value in (want, got)):
        return _gap_of_sequences(want, got)
    if isinstance(want, dict) or isinstance(got, dict):
        return Gap() if want == got else Gap(mismatch="maps differ")
    a, b = comparable(want, got)
    mismatch = changed_form(a, b)
    if mismatch is None and a.dtype != object:
        with np.errstate(all="ignore"):
            return _numeric(a, b)
    return Gap(mismatch=mismatch or unequal(a, b))


def _gap_of_sequences(want: Any, got: Any) -> Gap:
    if want is None and got is None:
        return Gap()
    if not isinstance(want, list) or not isinstance(got, list) or len(want) != len(got):
        return Gap(mismatch="one is a sequence or empty, the other is not of that form")
    each = [gap(a, b) for a, b in zip(want, got, strict=True)]
    return max(each, key=lambda g: (g.mismatch is not None, g.strays, g.largest), default=Gap())


def _numeric(a: Array, b: Array) -> Gap:
    """The gap between two arrays of numbers. It is found in pieces, since wider copies of large outputs may not fit into memory."""
    x, y = a.reshape(-1), b.reshape(-1)
    pieces = [(x[at : at + PIECE], y[at : at + PIECE]) for at in range(0, a.size, PIECE)]
    largest = magnitude = squares = magnitude_squares = 0.0
    finite = strays = 0
    for want, got in pieces:
        magnitudes, errors = _of_finite(want, got)
        largest = max(largest, float(errors.max(initial=0)))
        magnitude = max(magnitude, float(magnitudes.max(initial=0)))
        squares += float(np.square(errors).sum())
        magnitude_squares += float(np.square(magnitudes).sum())
        finite += errors.size
        if errors.size < want.size:
            strays += int(np.count_nonzero(stray(widened(want), widened(got))))
    least = LAST_BITS * magnitude if a.dtype.kind in "fc" else 0.0
    count = 0
    if largest > least:
        count = sum(int(np.count_nonzero(_of_finite(want, got)[1] > least)) for want, got in pieces)
    root = math.sqrt(squares / max(finite, 1)), math.sqrt(magnitude_squares / max(finite, 1))
    return Gap(largest, root[0], count, strays, magnitude, root[1], a.size)


def _of_finite(a: Array, b: Array) -> tuple[Array, Array]:
    """The magnitudes of the elements of `a` that are finite in both arrays, and their distances to those of `b`."""
    if a.dtype.kind in "iu" and a.dtype.itemsize == 8:
        return np.abs(a.astype(np.float64)), distances(a, b)
    x, y = widened(a), widened(b)
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        x, y = x[finite], y[finite]
    return np.abs(x), np.abs(x - y)


def stray(want: Array, got: Array) -> Array:
    """Mask of elements that are infinite or NaN in only one of two arrays."""
    finite = np.isfinite(want) & np.isfinite(got)
    return np.asarray(~finite & ~((want == got) | (np.isnan(want) & np.isnan(got))))


def accepts(tolerance: Tolerance, found: Gap) -> bool:
    """True if a gap between the reference and a result is within the tolerance."""
    if found.mismatch is not None or found.strays:
        return False
    if not found.largest:
        return True
    if not tolerance.is_float:
        return tolerance.step is not None and found.largest <= 1 and found.count <= few(found.size)
    if not tolerance.quantized:
        return found.largest <= tolerance.limit * max(found.magnitude, tolerance.range) + tolerance.floor
    if tolerance.step is not None:
        return found.largest <= tolerance.step * (1 + 1e-4) and found.count <= few(found.size)
    return found.largest <= tolerance.limit * found.magnitude and found.rms <= QUANTIZED_RMS * found.average


def few(size: int) -> int:
    """Number of quantized values out of `size` that may differ by one step: those at rounding ties."""
    return min(2 + size // 50, -(-size // 4))


def widest(gaps: Sequence[Gap]) -> Gap:
    """A gap that is as wide as every given gap in every respect."""
    return Gap(
        max((g.largest for g in gaps), default=0.0),
        max((g.rms for g in gaps), default=0.0),
        max((g.count for g in gaps), default=0),
        max((g.strays for g in gaps), default=0),
        mismatch=next((g.mismatch for g in gaps if g.mismatch is not None), None),
    )


def gap_of_all(want: Any, results: Sequence[Any], others: Sequence[Any] = ()) -> Gap:
    """The widest gap, in every respect, from `want` to one of the results. It counts the elements that differ in any result, or in
    `others`.
    """
    found = widest([gap(want, one) for one in results])
    each = [one for one in (*results, *others) if isinstance(one, np.ndarray) and one.shape == np.shape(want)]
    if found.mismatch is not None or not each or np.asarray(want).dtype.kind != "f":
        return found
    with np.errstate(all="ignore"):
        limit = LAST_BITS * np.abs(want[np.isfinite(want)]).max(initial=0)
        return replace(found, count=int(np.count_nonzero(np.any([np.abs(want - one) > limit for one in each], axis=0))))


def beyond_last_bits(want: Array, got: Array) -> Array:
    """The absolute differences of elements, 0 for those that differ by no more than the last bits."""
    a = want.astype(np.float64)
    limit = LAST_BITS * np.abs(a[np.isfinite(a)]).max(initial=0) if want.dtype.kind == "f" else 0.0
    error = apart(want, got)
    error[error <= limit] = 0
    return error


def apart(truth: Array, result: Array) -> Array:
    """Absolute difference of each element from the truth; infinite if only one of the two is NaN or infinite."""
    a, b = truth.astype(np.float64), result.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.where(np.isnan(distance), np.inf, distance)


def fits(tolerance: Tolerance, truth: Array, got: Array, errors: Array) -> bool:
    """True if each element is as near to the truth as its entry in `errors`, apart from rounding."""
    sure = np.abs(truth[np.isfinite(errors)].astype(np.float64))
    magnitude = float(sure[np.isfinite(sure)].max(initial=0))
    is_float = tolerance.dtype is not None and tolerance.dtype.is_float
    room = tolerance.limit * magnitude + tolerance.floor if is_float and not tolerance.quantized else 0.0
    return bool((apart(truth, got) <= errors + room).all())


def is_nearer(truth: Any, want: Any, got: Any, results: Sequence[Any]) -> bool:
    """True if a result is as near to the truth as one of the source's results, in every respect.

    The elements in which all of these are off by the largest element of `want`, as at the pole of a function, are judged one by
    one, with TIMES. False if one of them is no array of the form of `want`.
    """
    if not all(is_numeric(one) and has_same_form(want, one) for one in (truth, got, *results)):
        return False
    errors = [apart(truth, one) for one in results]
    finite = np.isfinite(want)
    largest = np.abs(want[finite]).max(initial=np.finfo(want.dtype).tiny)
    lost = np.asarray(finite & (np.min(errors, axis=0) >= largest))
    near = ~np.isnan(got) & (apart(truth, got) <= TIMES * np.max(errors, axis=0))
    if not (near | ~lost).all():
        return False
    ours, *theirs = (gap(truth[~lost], one[~lost]) for one in (got, *results))
    return any(ours.explained_by(one, 1.0) for one in theirs)


def random_outputs(graph: Graph) -> set[int]:
    """Indices of outputs that depend on random numbers."""
    drawn: set[Value | None] = set()
    for node in graph:
        inner = (n for sub in node.subgraphs for n in sub.walk())
        if any(map(draws, (node, *inner))) or any(v in drawn for v in node.present_reads):
            drawn.update(node.outputs)
    return {k for k, v in enumerate(graph.outputs) if v in drawn}


def is_numeric(result: Any) -> bool:
    return isinstance(result, np.ndarray) and result.dtype.kind in "biuf"


def is_finite(result: Any) -> bool:
    return not is_numeric(result) or bool(np.isfinite(result).all())


def has_same_form(want: Any, got: Any) -> bool:
    return type(want) is type(got) and all(getattr(want, a, None) == getattr(got, a, None) for a in ("shape", "dtype"))


def has_no_rows(result: Any) -> bool:
    return isinstance(result, np.ndarray) and result.ndim > 0 and result.shape[0] == 0
