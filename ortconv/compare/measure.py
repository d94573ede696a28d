"""Distances between two values, in all common measures."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ortconv.compare.gap import Piece, Sums, gap_of_arrays
from ortconv.compare.pairs import OTHER_FORM, arrays_of, element_type
from ortconv.compare.tolerance import QUANTIZED_LIMIT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


class Measure(NamedTuple):
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
    found = [Measure(mismatch=OTHER_FORM) if pair is None else _of_arrays(*pair) for pair in arrays_of(want, got)]
    return max(
        found, key=lambda m: (m.mismatch is not None, np.nan_to_num(m.scaled, nan=-1)), default=Measure(0.0, 0.0)
    )


def _of_arrays(a: Array, b: Array) -> Measure:
    sums = _Sums()
    found = gap_of_arrays(a, b, sums)
    about = Measure(mismatch=found.reason, dtype=element_type(a), shape=a.shape)
    if found.reason is not None or a.dtype == object:
        return about
    about = about._replace(max_abs=found.largest, scaled=found.scaled)
    return about._replace(ulp=sums.ulp, cosine=sums.cosine, snr=sums.snr) if a.size else about


class _Sums(Sums):
    """With the sums of further measures."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.other_squares = self.ulp = 0.0

    def add(self, piece: Piece) -> None:
        super().add(piece)
        self.products += float(np.vdot(piece.wide_a, piece.wide_b).real)
        self.other_squares += float(np.vdot(piece.wide_b, piece.wide_b).real)
        if piece.a.dtype.kind in "iubc":
            self.ulp = math.nan
        elif piece.errors.any():
            self.ulp = max(self.ulp, _ulps(piece.a, piece.b))

    @property
    def cosine(self) -> float:
        lengths = math.sqrt(self.magnitude_squares) * math.sqrt(self.other_squares)
        return 1.0 if self.largest == 0 else min(self.products / lengths, 1.0) if lengths else 0.0

    @property
    def snr(self) -> float:
        if self.squares == 0:
            return math.inf
        ratio = self.magnitude_squares / self.squares
        return 10 * math.log10(ratio) if ratio else -math.inf


def _ulps(a: Array, b: Array) -> float:
    """The largest number of floats between corresponding elements of two arrays of the same type."""
    if DType.of(a.dtype).bits != 8 * a.dtype.itemsize:
        return math.nan
    kind = np.dtype(f"i{a.dtype.itemsize}")
    lowest = np.iinfo(kind).min
    i, j = (np.ascontiguousarray(c).view(kind).astype(np.int64) for c in (a, b))
    i, j = (np.where(v < 0, lowest - v, v) for v in (i, j))
    return float(np.where(i > j, i - j, j - i).view(np.uint64).max(initial=0))
