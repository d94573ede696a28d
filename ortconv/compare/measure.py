"""Distances between two values, in all common measures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ortconv.compare.difference import (
    OTHER_FORM,
    are_single,
    changed_form,
    distances,
    element_type,
    paired,
    unequal,
    widened,
)
from ortconv.compare.tolerance import QUANTIZED_LIMIT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

CHUNK = 1 << 20
"""Number of elements that are converted to a wider type at once."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Distances between an expected and an actual value, over the finite elements.

    `scaled` is max_abs divided by the largest expected magnitude; `ulp` is the largest number of floats of the type between two
    elements; `snr` is in decibels. A measure that does not apply is NaN. `mismatch` is the reason if the values cannot be compared.
    """

    max_abs: float = math.nan
    scaled: float = math.nan
    ulp: float = math.nan
    cosine: float = math.nan
    snr: float = math.nan
    mismatch: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def within(self, limit: float, floor: float = 0.0) -> bool:
        """True if the distance is within the limit, or at most `floor`. Integers must be equal, except for 8-bit integers in
        quantized graphs.
        """
        if self.mismatch is not None:
            return False
        if math.isnan(self.max_abs) or self.max_abs == 0:
            return True
        if self.dtype in ("int8", "uint8"):
            return limit >= QUANTIZED_LIMIT and self.scaled <= limit
        is_near = self.scaled <= limit or self.max_abs <= floor
        return is_near and not self.dtype.startswith(("int", "uint", "bool"))


def measure(want: Any, got: Any) -> Measure:
    """The distances between two values: arrays, None, lists or maps, of which the worst pair counts."""
    if not are_single(want, got):
        each = paired(want, got)
        found = [Measure(mismatch=OTHER_FORM)] if each is None else [measure(a, b) for a, b in each]
        return max(
            found, key=lambda m: (m.mismatch is not None, np.nan_to_num(m.scaled, nan=-1)), default=Measure(0.0, 0.0)
        )
    a, b = np.asarray(want), np.asarray(got)
    about = Measure(dtype=element_type(a), shape=a.shape)
    mismatch = changed_form(a, b)
    if mismatch is not None or a.dtype.kind in "OUS":
        return replace(about, mismatch=mismatch or unequal(a, b))
    sums = _Sums()
    flat = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, CHUNK):
        with np.errstate(all="ignore"):
            if not sums.add(flat[0][start : start + CHUNK], flat[1][start : start + CHUNK]):
                return replace(about, mismatch="NaN or infinity in other places")
    if not a.size:
        return replace(about, max_abs=0.0, scaled=0.0)
    return sums.added_to(about)


class _Sums:
    """The sums from which the measures are computed, accumulated over parts of two arrays."""

    def __init__(self) -> None:
        self.max_abs = self.largest = self.ulp = 0.0
        self.products = self.square_a = self.square_b = self.square_error = 0.0

    def add(self, a: Array, b: Array) -> bool:
        """Add a part. Return False if a NaN or infinity in one array has no counterpart in the other."""
        x, y = widened(a), widened(b)
        finite = np.isfinite(x)
        if not finite.all():
            if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
                return False
            a, b, x, y = a[finite], b[finite], x[finite], y[finite]
        if not np.isfinite(y).all():
            return False
        error = distances(a, b)
        self.max_abs = max(self.max_abs, float(error.max(initial=0)))
        self.largest = max(self.largest, float(np.abs(x).max(initial=0)))
        self.products += float(np.vdot(x, y).real)
        self.square_a += float(np.vdot(x, x).real)
        self.square_b += float(np.vdot(y, y).real)
        self.square_error += float(np.vdot(error, error))
        if a.dtype.kind in "iubc":
            self.ulp = math.nan
        elif error.any():
            self.ulp = max(self.ulp, _ulps(a, b))
        return True

    def added_to(self, about: Measure) -> Measure:
        """`about` with the measures over all elements added so far."""
        scaled = self.max_abs / self.largest if self.largest else 0.0 if self.max_abs == 0 else math.inf
        lengths = math.sqrt(self.square_a) * math.sqrt(self.square_b)
        cosine = 1.0 if self.max_abs == 0 else self.products / lengths if lengths else 0.0
        if self.square_error == 0:
            snr = math.inf
        else:
            ratio = self.square_a / self.square_error
            snr = 10 * math.log10(ratio) if ratio else -math.inf
        return replace(about, max_abs=self.max_abs, scaled=scaled, ulp=self.ulp, cosine=min(cosine, 1.0), snr=snr)


def _ulps(a: Array, b: Array) -> float:
    """The largest number of floats between corresponding elements of two arrays of the same type."""
    if DType.of(a.dtype).bits != 8 * a.dtype.itemsize:
        return math.nan
    kind = np.dtype(f"i{a.dtype.itemsize}")
    lowest = np.iinfo(kind).min
    i, j = (np.ascontiguousarray(c).view(kind).astype(np.int64) for c in (a, b))
    i, j = (np.where(v < 0, lowest - v, v) for v in (i, j))
    return float(np.where(i > j, i - j, j - i).view(np.uint64).max(initial=0))
