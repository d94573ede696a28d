"""The gap between two results: how far they are apart, in which elements, and if one has another form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ortconv.compare.difference import (
    OTHER_FORM,
    Difference,
    are_single,
    changed_form,
    comparable,
    distances,
    paired,
    unequal,
    widened,
)
from ortconv.ir.tensor import Array

LAST_BITS = 2.0**-14
"""Floats closer than this, relative to the largest, are not counted as different."""

TIMES = 2.0
"""A difference is explained by one between results of the source that is at least 1/TIMES as large."""

NEARLY_LARGEST = 2.0**-8
"""A number at least this large, relative to the largest one of its type, may have overflowed in another order of operations."""

PIECE = 1 << 20
"""Number of elements that are compared at once."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The distance between two results: the largest and the RMS difference, the number of elements that differ by more than the
    last bits, and the number of elements that are infinite or NaN in only one of them.

    `magnitude` and `average` are the largest and the RMS magnitude of the expected elements, `size` is their number. `mismatch` is
    the reason if there is no distance: the forms of the results differ or, with `is_in_elements`, elements that are no numbers.
    """

    largest: float = 0.0
    rms: float = 0.0
    count: int = 0
    strays: int = 0
    magnitude: float = 0.0
    average: float = 0.0
    size: int = 0
    mismatch: str | None = None
    is_in_elements: bool = False

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
        """The largest difference, also relative to the magnitude."""
        if self.mismatch is not None:
            return Difference(mismatch=self.mismatch)
        if self.strays:
            return Difference(mismatch="NaN or infinity in other places")
        scaled = self.largest / self.magnitude if self.magnitude else 0.0 if not self.largest else math.inf
        return Difference(self.largest, scaled)


def gap(want: Any, got: Any) -> Gap:
    """The gap between two outputs: arrays, None, lists or maps; the widest gap of their elements counts."""
    if not are_single(want, got):
        each = paired(want, got)
        gaps = [Gap(mismatch=OTHER_FORM)] if each is None else [gap(a, b) for a, b in each]
        return max(gaps, key=lambda g: (g.mismatch is not None, g.strays, g.largest), default=Gap())
    a, b = comparable(want, got)
    mismatch = changed_form(a, b)
    if mismatch is not None:
        return Gap(mismatch=mismatch)
    if a.dtype == object:
        return Gap(mismatch=unequal(a, b), is_in_elements=True)
    with np.errstate(all="ignore"):
        return _numeric(a, b)


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
            strays += int(np.count_nonzero(is_stray(widened(want), widened(got))))
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


def is_stray(want: Array, got: Array) -> Array:
    """Mask of elements that are infinite or NaN in only one of two arrays."""
    finite = np.isfinite(want) & np.isfinite(got)
    return np.asarray(~finite & ~((want == got) | (np.isnan(want) & np.isnan(got))))


def near_overflow(want: Array, got: Array) -> Array:
    """Mask of elements of float32 or double that are nearly the largest number in one of two arrays."""
    if want.dtype.kind != "f" or want.dtype.itemsize < 4 or want.dtype != got.dtype:
        return np.zeros(want.shape, bool)
    large = NEARLY_LARGEST * np.finfo(want.dtype).max
    return np.asarray((np.isfinite(want) & (np.abs(want) > large)) | (np.isfinite(got) & (np.abs(got) > large)))


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
    error = element_errors(want, got)
    error[error <= limit] = 0
    return error


def element_errors(truth: Array, result: Array) -> Array:
    """Absolute difference of each element from the truth; infinite if only one of the two is NaN or infinite."""
    a, b = truth.astype(np.float64), result.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.where(np.isnan(distance), np.inf, distance)


def is_numeric(result: Any) -> bool:
    return isinstance(result, np.ndarray) and result.dtype.kind in "biuf"


def is_finite(result: Any) -> bool:
    return not is_numeric(result) or bool(np.isfinite(result).all())


def has_same_form(want: Any, got: Any) -> bool:
    return type(want) is type(got) and all(getattr(want, a, None) == getattr(got, a, None) for a in ("shape", "dtype"))


def longer(want: Any, got: Any) -> tuple[int | None, int]:
    """The only axis in which two arrays of one type differ in length, and by how much; None and 0 if there is no such axis."""
    if not (
        isinstance(want, np.ndarray)
        and isinstance(got, np.ndarray)
        and (want.dtype, want.ndim) == (got.dtype, got.ndim)
    ):
        return None, 0
    axes = [axis for axis in range(want.ndim) if want.shape[axis] != got.shape[axis]]
    return (axes[0], got.shape[axes[0]] - want.shape[axes[0]]) if len(axes) == 1 else (None, 0)


def has_no_rows(result: Any) -> bool:
    return isinstance(result, np.ndarray) and result.ndim > 0 and result.shape[0] == 0
