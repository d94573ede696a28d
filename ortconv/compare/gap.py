"""The gap between two results: how far they are apart, in which elements, and if one has another form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ortconv.compare.pairs import OTHER_FORM, arrays_of, changed_form, unequal, widened
from ortconv.ir.tensor import Array

LAST_BITS = 2.0**-14
"""Floats closer than this, relative to the largest, are not counted as different."""

TIMES = 2.0
"""A difference is explained by one between results of the source that is at least 1/TIMES as large."""

NEARLY_LARGEST = 2.0**-8
"""A number at least this large, relative to the largest one of its type, may have overflowed in another order of operations."""

PIECE_ELEMENTS = 1 << 20
"""Number of elements that are compared at once: wider copies of large outputs may not fit into memory."""


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

    @property
    def reason(self) -> str | None:
        """Why the results cannot be the same up to rounding: `mismatch`, or elements that are NaN or infinite in one of them."""
        return "NaN or infinity in other places" if self.mismatch is None and self.strays else self.mismatch

    @property
    def scaled(self) -> float:
        """The largest difference relative to the magnitude."""
        return self.largest / self.magnitude if self.magnitude else 0.0 if not self.largest else math.inf

    @property
    def severity(self) -> tuple[bool, float, float]:
        """It is greater for gaps that are worse relative to the magnitude."""
        return self.reason is not None, self.scaled, self.largest

    def within(self, limit: float) -> bool:
        return self.reason is None and self.scaled <= limit


def gap(want: Any, got: Any) -> Gap:
    """The gap between two outputs: arrays, None, lists or maps; the widest gap of their arrays counts."""
    gaps = [Gap(mismatch=OTHER_FORM) if pair is None else gap_of_arrays(*pair, Sums()) for pair in arrays_of(want, got)]
    return max(gaps, key=lambda g: (g.mismatch is not None, g.strays, g.largest), default=Gap())


def strict_gap(want: Any, got: Any) -> Gap:
    """The gap between two outputs whose integers must be equal; of their arrays, the one with the greatest `severity` counts."""
    gaps = [Gap(mismatch=OTHER_FORM) if pair is None else _strict_gap_of_arrays(*pair) for pair in arrays_of(want, got)]
    return max(gaps, key=lambda g: g.severity, default=Gap())


def _strict_gap_of_arrays(a: Array, b: Array) -> Gap:
    found = gap_of_arrays(a, b, Sums())
    wrong = unequal(a, b) if found.largest and a.dtype.kind in "iub" else found.reason
    return found if wrong is None else Gap(mismatch=wrong)


class Piece(NamedTuple):
    """The elements of two arrays that are finite in both, the same in float64 or complex128, and their distances."""

    a: Array
    b: Array
    wide_a: Array
    wide_b: Array
    errors: Array


class Sums:
    """What the gap between two arrays of numbers is computed from, accumulated over pieces of them."""

    def __init__(self) -> None:
        self.largest = self.magnitude = self.squares = self.magnitude_squares = 0.0
        self.count = 0

    def add(self, piece: Piece) -> None:
        self.largest = max(self.largest, float(piece.errors.max(initial=0)))
        self.magnitude = max(self.magnitude, float(np.abs(piece.wide_a).max(initial=0)))
        self.squares += float(np.vdot(piece.errors, piece.errors))
        self.magnitude_squares += float(np.vdot(piece.wide_a, piece.wide_a).real)
        self.count += piece.errors.size


def gap_of_arrays(a: Array, b: Array, sums: Sums) -> Gap:
    """The gap between two arrays. Their numbers are added to `sums`."""
    mismatch = changed_form(a, b)
    if mismatch is not None:
        return Gap(mismatch=mismatch)
    if a.dtype == object:
        return Gap(mismatch=unequal(a, b), is_in_elements=True)
    x, y = a.reshape(-1), b.reshape(-1)
    pieces = [slice(at, at + PIECE_ELEMENTS) for at in range(0, a.size, PIECE_ELEMENTS)]
    strays = count = 0
    with np.errstate(all="ignore"):
        for piece in pieces:
            found = _piece(x[piece], y[piece])
            sums.add(found)
            if found.a.size < x[piece].size:
                strays += int(np.count_nonzero(is_stray(widened(x[piece]), widened(y[piece]))))
        least = LAST_BITS * sums.magnitude if a.dtype.kind in "fc" else 0.0
        if sums.largest > least:
            count = sum(int(np.count_nonzero(_piece(x[piece], y[piece]).errors > least)) for piece in pieces)
    rms, average = (math.sqrt(total / max(sums.count, 1)) for total in (sums.squares, sums.magnitude_squares))
    return Gap(sums.largest, rms, count, strays, sums.magnitude, average, a.size)


def _piece(a: Array, b: Array) -> Piece:
    x, y = widened(a), widened(b)
    if a.dtype.kind in "iu" and a.dtype.itemsize == 8:  # exact before they are rounded to float64
        return Piece(a, b, x, y, np.where(a > b, a - b, b - a).view(np.uint64).astype(np.float64))
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        a, b, x, y = a[finite], b[finite], x[finite], y[finite]
    return Piece(a, b, x, y, np.abs(x - y))


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


def gap_of_all(want: Any, results: Sequence[Any], others: Sequence[Any]) -> Gap:
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
