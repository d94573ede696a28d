"""Conversion between element types."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.kernels.registry import kernel, table
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType

_FLOAT8 = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
_PACKED = {DType.UINT4: 4, DType.INT4: 4, DType.UINT2: 2, DType.INT2: 2}


@kernel("Cast", since=6)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    return convert(x, DType(to), bool(saturate), round_mode)


table({"Cast": lambda x, *, to: convert(x, DType[to.upper()])}, until=5)


table({"CastLike": lambda x, target, *, saturate=1, round_mode="up": (
    cast(x, to=DType.of(target.dtype), saturate=saturate, round_mode=round_mode)
)})  # fmt: skip


@kernel("BitCast")
def bit_cast(x: Array, *, to: int) -> Array:
    """The same bits as another type of the same width."""
    target = DType(to)
    if target.bits < 8:
        return Tensor(target, x.shape, Tensor.of(x).data).numpy()
    return np.ascontiguousarray(x).view(target.numpy).reshape(x.shape)


def convert(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """The elements converted as by Cast. An array that already has the type is returned itself."""
    source = DType.of(x.dtype)
    if source is to:
        return x
    if source is DType.STRING:
        return _from_strings(x, to, saturate, round_mode)
    if to is DType.STRING:
        return _to_strings(x)
    if to in _FLOAT8:
        return _to_float8(x, to, saturate)
    if to is DType.FLOAT8E8M0:
        return _to_power_of_two(x, saturate, round_mode)
    if to in _PACKED:
        return _to_packed_integer(x, to)
    if x.dtype.kind == "V" and to is not DType.FLOAT:
        # The extension types convert to and from float32 exactly, and to other types not always.
        x = x.astype(np.float32)
    return x.astype(to.numpy)


def _from_strings(x: Array, to: DType, saturate: bool, round_mode: str) -> Array:
    integral = to.numpy.kind in "iub" or to in _PACKED
    parse = _integer if integral else float
    values = [parse(s) for s in x.reshape(-1)]
    dtype: Any = (np.uint64 if to is DType.UINT64 else np.int64) if integral else np.float64
    return convert(np.array(values, dtype=dtype).reshape(x.shape), to, saturate, round_mode)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _to_strings(x: Array) -> Array:
    if x.dtype.kind in "iub":
        texts = [str(int(v)) for v in x.reshape(-1).tolist()]
    else:
        texts = [_text(v) for v in x.astype(np.float64).reshape(-1).tolist()]
    return np.array(texts, object).reshape(x.shape)


def _text(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "INF" if value > 0 else "-INF"
    return f"{value:.8g}"


def _to_float8(x: Array, to: DType, saturate: bool) -> Array:
    from ml_dtypes import finfo

    wide = x.astype(np.float32)
    if saturate:
        limit = float(finfo(to.numpy).max)
        wide = np.clip(wide, -limit, limit)
    return np.asarray(wide).astype(to.numpy)


def _to_packed_integer(x: Array, to: DType) -> Array:
    """The low bits of the integer, or of the nearest integer (half away from zero, as in onnxruntime)."""
    bits = _PACKED[to]
    if x.dtype.kind in "fV":
        x = x.astype(np.float64)
        x = np.trunc(x + np.copysign(0.5, x))
    codes = np.asarray(x.astype(np.int64) & ((1 << bits) - 1))
    if to in (DType.INT4, DType.INT2):
        sign = 1 << (bits - 1)
        codes = np.asarray((codes ^ sign) - sign)
    return codes.astype(np.int8).astype(to.numpy)


_E8M0_NAN = 255


def _to_power_of_two(x: Array, saturate: bool, round_mode: str) -> Array:
    """float8e8m0: the exponent byte of the nearest power of two in the direction of `round_mode`."""
    fraction, exponent = np.frexp(np.abs(x.astype(np.float32).astype(np.float64)))
    # |x| = (2 fraction) 2^(exponent - 1) with 2 fraction in [1, 2).
    up = {"up": fraction > 0.5, "down": False, "nearest": fraction >= 0.75}[round_mode]
    codes = exponent - 1 + up + 127
    low, high = (codes < 0) | (x.astype(np.float32) == 0), (codes > 254) | np.isinf(fraction)
    least, most = (0, 254) if saturate else (_E8M0_NAN, _E8M0_NAN)
    codes = np.where(low, least, np.where(high, most, codes))
    codes = np.where(np.isnan(fraction), _E8M0_NAN, codes)
    return codes.astype(np.uint8).view(DType.FLOAT8E8M0.numpy)
