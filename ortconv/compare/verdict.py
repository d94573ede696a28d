"""Decides if an output is as good as the reference: the difference is rounding, or no larger than the effect of rounding on the
source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.compare.gap import TIMES, Gap, element_errors, gap, has_same_form, is_numeric
from ortconv.compare.tolerance import OutputTolerance
from ortconv.ir.graph import Graph, Value
from ortconv.ir.schema import draws
from ortconv.ir.tensor import Array

QUANTIZED_RMS = 0.01
"""Limit on the RMS error of quantized sums, relative to the average magnitude."""

UNEXPLAINED = 0.25
"""The fraction of differing elements that runs of the source need not explain: a few runs do not move every element at a rounding
tie. In right conversions of quantized models, at most 0.1 were not explained.
"""


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


def random_outputs(graph: Graph) -> set[int]:
    """Indices of outputs that depend on random numbers."""
    drawn: set[Value | None] = set()
    for node in graph:
        inner = (n for sub in node.subgraphs for n in sub.walk())
        if any(map(draws, (node, *inner))) or any(v in drawn for v in node.present_reads):
            drawn.update(node.outputs)
    return {k for k, v in enumerate(graph.outputs) if v in drawn}
