"""Element types, shapes and value types, with the numbers and names of ONNX."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np

INT32_MAX = 2**31 - 1

Dim = int | str | None
"""A dimension: a number, a symbol, or unknown."""

Shape = tuple[Dim, ...]


class DType(IntEnum):
    """Element types, numbered as TensorProto.DataType."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    @property
    def bits(self) -> int:
        """Bits of one stored element; 0 for strings."""
        return _BITS[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of an unpacked array; object for strings."""
        return _numpy_dtype(self)

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, dtype: np.dtype[Any] | type | str) -> DType:
        """The element type of a numpy dtype, STRING for str and object. Raises KeyError if ONNX has none."""
        dtype = np.dtype(dtype)
        if dtype.kind in "OUST":
            return cls.STRING
        return _dtype_names()[dtype.name]


_NUMPY_NAMES = {
    DType.FLOAT: "float32", DType.UINT8: "uint8", DType.INT8: "int8", DType.UINT16: "uint16", DType.INT16: "int16",
    DType.INT32: "int32", DType.INT64: "int64", DType.STRING: "object", DType.BOOL: "bool", DType.FLOAT16: "float16",
    DType.DOUBLE: "float64", DType.UINT32: "uint32", DType.UINT64: "uint64", DType.COMPLEX64: "complex64",
    DType.COMPLEX128: "complex128", DType.BFLOAT16: "bfloat16", DType.FLOAT8E4M3FN: "float8_e4m3fn",
    DType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz", DType.FLOAT8E5M2: "float8_e5m2", DType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    DType.UINT4: "uint4", DType.INT4: "int4", DType.FLOAT4E2M1: "float4_e2m1fn", DType.FLOAT8E8M0: "float8_e8m0fnu",
    DType.UINT2: "uint2", DType.INT2: "int2", DType.FLOAT6E2M3: "float6_e2m3fn", DType.FLOAT6E3M2: "float6_e3m2fn",
}  # fmt: skip

_BITS = {DType.UNDEFINED: 0, DType.STRING: 0, DType.BOOL: 8}
for _dtype in _NUMPY_NAMES.keys() - _BITS.keys():
    _BITS[_dtype] = int("".join(filter(str.isdigit, _NUMPY_NAMES[_dtype].partition("_")[0])))  # float8_e5m2 has 8

_FLOATS = frozenset(dtype for dtype, name in _NUMPY_NAMES.items() if "float" in name)


@cache
def _numpy_dtype(dtype: DType) -> np.dtype[Any]:
    name = _NUMPY_NAMES[dtype]
    if name not in np.sctypeDict:
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    found: np.dtype[Any] = np.dtype(name)
    return found


def restored(array: np.ndarray[Any, Any], wanted: DType | None) -> np.ndarray[Any, Any]:
    """The array, of the type `wanted` if its own is only bytes that may be one."""
    type = restored_type(array.dtype, wanted)
    return array if type is array.dtype else array.view(type)


def restored_type(given: np.dtype[Any], wanted: DType | None) -> np.dtype[Any]:
    """The numpy type of `wanted` for bytes of its size, if numpy lacks it, else `given`. Numpy's files do not name such types."""
    if given.type is not np.void or given.names is not None or wanted is None:
        return given
    type = wanted.numpy
    return type if type.isbuiltin != 1 and type.itemsize == given.itemsize else given


@cache
def _dtype_names() -> dict[str, DType]:
    return {name: dtype for dtype, name in _NUMPY_NAMES.items()}


@dataclass(frozen=True, slots=True)
class _WithShape:
    """`shape` is None if the rank is unknown."""

    kind: ClassVar[str]
    dtype: DType
    shape: Shape | None = None

    @property
    def notation(self) -> str:
        """The type without its shape in ONNX's notation, such as "tensor(float)"."""
        return f"{self.kind}({self.dtype.name.lower()})"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape, or None unless every dimension is a number."""
        shape = self.shape
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return shape  # type: ignore[return-value]

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype.name.lower()}[...]"
        return f"{self.dtype.name.lower()}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


class TensorType(_WithShape):
    """A dense tensor."""

    __slots__ = ()
    kind = "tensor"


class SparseTensorType(_WithShape):
    __slots__ = ()
    kind = "sparse_tensor"

    def __str__(self) -> str:
        return f"sparse({_WithShape.__str__(self)})"


@dataclass(frozen=True, slots=True)
class _WithElement:
    kind: ClassVar[str]
    element: ValueType

    @property
    def notation(self) -> str:
        return f"{self.kind}({self.element.notation})"

    def __str__(self) -> str:
        return f"{self.kind}({self.element})"


class SequenceType(_WithElement):
    __slots__ = ()
    kind = "seq"


class OptionalType(_WithElement):
    __slots__ = ()
    kind = "optional"


@dataclass(frozen=True, slots=True)
class MapType:
    key: DType
    value: ValueType

    @property
    def notation(self) -> str:
        return f"map({self.key.name.lower()},{self.value.notation})"

    def __str__(self) -> str:
        return f"map({self.key.name.lower()},{self.value})"


ValueType = TensorType | SparseTensorType | SequenceType | OptionalType | MapType
