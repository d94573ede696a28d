"""Constant tensors: element type, shape and a view of the payload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from ortconv.errors import GraphError
from ortconv.ir.types import DType

Array = np.ndarray[Any, np.dtype[Any]]

LARGEST_RANK = 64
"""Numpy's limit on the number of axes."""

RuntimeValue = Union[Array, "list[RuntimeValue]", dict[Any, Any], None]
"""A value in a run: an array for a tensor, a list for a sequence, a dict for a map, None for an empty optional."""


class Tensor:
    """An immutable dense constant.

    `data` holds the elements in ONNX's raw layout (little endian, row major, sub-byte types packed low bits first). It is a
    memoryview, often of a mapped file, with any alignment; for strings, it is a tuple of bytes.
    """

    __slots__ = ("_array", "data", "dtype", "shape")

    def __init__(self, dtype: DType, shape: Sequence[int], data: memoryview | tuple[bytes, ...]) -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.data = data
        self._array: Array | None = None

    @classmethod
    def of(cls, array: Any, dtype: DType | None = None) -> Tensor:
        """A tensor from anything that numpy converts to an array. Contiguous arrays are not copied."""
        array = np.asarray(array)
        dtype = dtype or DType.of(array.dtype)
        if dtype is DType.STRING:
            items = tuple(
                s if isinstance(s, bytes) else str(s).encode("utf-8", "surrogateescape") for s in array.ravel()
            )
            return cls(dtype, array.shape, items)
        array = np.asarray(array, dtype=dtype.numpy, order="C")
        if dtype.bits < 8:
            return cls(dtype, array.shape, _pack(array, dtype.bits).data)
        tensor = cls(dtype, array.shape, array.reshape(-1).view(np.uint8).data)
        array = array.view()
        array.flags.writeable = False
        tensor._array = array
        return tensor

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored payload."""
        if isinstance(self.data, tuple):
            return sum(map(len, self.data))
        return self.data.nbytes

    def numpy(self) -> Array:
        """The elements as a read-only array: a view of the payload, or unpacked for sub-byte types.

        Strings become an object array of str, with undecodable bytes as surrogates.
        """
        if self._array is None:
            self._array = self._view()
            self._array.flags.writeable = False
        return self._array

    def _view(self) -> Array:
        if isinstance(self.data, tuple):
            out = np.empty(len(self.data), dtype=object)
            out[:] = [s.decode("utf-8", "surrogateescape") for s in self.data]
            return out.reshape(self.shape)
        if self.dtype.bits < 8:
            return _unpack(self.data, self.dtype, self.size).reshape(self.shape)
        return np.frombuffer(self.data, dtype=self.dtype.numpy, count=self.size).reshape(self.shape)

    def item(self) -> Any:
        """The only element, as a Python object. Raises ValueError unless there is exactly one."""
        return self.numpy().item()

    def digest(self) -> bytes:
        """A hash of the payload, the same in every process."""
        from hashlib import blake2b

        state = blake2b(digest_size=32)
        for part in self.data if isinstance(self.data, tuple) else (self.data,):
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
        return state.digest()

    def same(self, other: Tensor) -> bool:
        """True if type, shape and every bit of the payload are equal."""
        return self is other or (self.dtype is other.dtype and self.shape == other.shape and self.data == other.data)

    def __repr__(self) -> str:
        return f"Tensor({self.dtype.name}, {self.shape})"


def aligned(array: Array) -> Array:
    """The array, or an aligned copy if numpy and BLAS would otherwise copy it on every use. Model files do not align their data."""
    return array if array.flags.aligned else array.copy(order="K")


LARGEST_DENSE = 1 << 31
"""Bytes of a sparse constant as a dense tensor up to which onnxruntime loads it."""


class SparseTensor:
    """A constant in coordinate form: `values` (nnz,), `indices` (nnz,) linear or (nnz, rank), dense `shape`.

    Raises GraphError, with the constant's name, if these are inconsistent.
    """

    __slots__ = ("indices", "shape", "values")

    def __init__(self, values: Tensor, indices: Tensor, shape: Sequence[int], name: str = "") -> None:
        self.values = values
        self.indices = indices
        self.shape = tuple(shape)
        if fault := self._fault():
            raise GraphError(f"sparse constant '{name}': {fault}", hint="mend the model where it is exported")

    def _fault(self) -> str:
        """A description of the inconsistency; empty if there is none."""
        count, rank, places = self.values.shape, len(self.shape), self.indices.shape
        if len(count) != 1 or places not in ((count, (*count, rank)) if rank else (count,)):
            return f"values {list(count)} and indices {list(places)} do not fit, of a constant of rank {rank}"
        if self.indices.dtype.numpy.kind not in "iu":
            return f"its indices are {self.indices.dtype.name.lower()}, not integers"
        if min(self.shape, default=0) < 0:
            return f"it has a negative dimension: {list(self.shape)}"
        size = math.prod(self.shape) * self.values.dtype.numpy.itemsize
        if size > LARGEST_DENSE:
            return f"it takes {size} bytes as a dense tensor, and onnxruntime allows {LARGEST_DENSE}"
        index, sizes = self.indices.numpy(), self.shape if len(places) == 2 else (math.prod(self.shape),)
        if index.size and ((index < 0).any() or (index.reshape(-1, len(sizes)).max(axis=0) >= np.array(sizes)).any()):
            return f"an index lies outside {list(sizes)}"
        return ""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that are stored, and of their indices."""
        return self.values.nbytes + self.indices.nbytes

    def positions(self) -> Array:
        """The positions of the values in row-major order."""
        index: Array = self.indices.numpy().astype(np.int64)
        if index.ndim == 1:
            return index
        strides = np.cumprod((1, *self.shape[:0:-1]), dtype=np.int64)[::-1]
        return index @ strides if index.size else index.reshape(-1)

    def dense(self) -> Tensor:
        """The same constant as a dense tensor."""
        out = np.zeros(math.prod(self.shape), dtype=self.values.dtype.numpy)
        if self.values.dtype is DType.STRING:
            out[:] = ""
        out[self.positions()] = self.values.numpy()
        return Tensor.of(out.reshape(self.shape), self.values.dtype)

    def __repr__(self) -> str:
        return f"SparseTensor({self.values.dtype.name}, {self.shape}, nnz={self.values.size})"


def _pack(array: Array, bits: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    codes: Array = array.reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    if 8 % bits:
        stream = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
        return np.packbits(stream, bitorder="little")
    per_byte = 8 // bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % per_byte, np.uint8)]).reshape(-1, per_byte)
    shifted = codes << (np.arange(per_byte, dtype=np.uint8) * bits)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=1), dtype=np.uint8)


def _unpack(data: memoryview, dtype: DType, size: int) -> Array:
    bits = dtype.bits
    if 8 % bits:
        stream: Array = np.unpackbits(np.frombuffer(data, np.uint8), count=size * bits, bitorder="little")
        return np.packbits(stream.reshape(size, bits), axis=1, bitorder="little").reshape(-1).view(dtype.numpy)
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    codes = ((np.frombuffer(data, np.uint8)[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:size].astype(np.uint8)
    if dtype in (DType.INT4, DType.INT2):
        sign = 1 << (bits - 1)
        return ((codes.astype(np.int8) ^ sign) - sign).astype(dtype.numpy)
    if dtype in (DType.UINT4, DType.UINT2):
        return codes.astype(dtype.numpy)
    return codes.view(dtype.numpy)


def two_per_byte(codes: Array) -> Array:
    """Numbers of 4 bits along the last axis, two per byte, the first one in the low bits. An odd one at the end stands alone."""
    even = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)])
    return np.ascontiguousarray(even[..., 0::2] | (even[..., 1::2] << 4))


def dense(const: Tensor | SparseTensor) -> Array:
    """The elements of a constant as a dense array."""
    return const.numpy() if isinstance(const, Tensor) else const.dense().numpy()
