"""Types of operands, and tensors: types with values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar, cast

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arguments import checked
from ortconv.nnapi.codes import Operand

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChannelQuant:
    """Quantization with one scale for each index of one dimension."""

    dim: int
    scales: tuple[float, ...]


def single(x: float) -> float:
    """The nearest float32; infinite beyond its range."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(x))


def agree(a: Sequence[int], b: Sequence[int]) -> bool:
    """True if dimensions may be the same. A 0 is unknown, and so are dimensions without elements."""
    return not a or not b or (len(a) == len(b) and all(p == q or 0 in (p, q) for p, q in zip(a, b)))


class OperandType:
    """Element type, dimensions and quantization of an operand.

    For a tensor, `dims` of () is an unknown rank and a 0 is an unknown dimension. If the tensor has a value, all
    dimensions are known, and 0 means empty.
    """

    __slots__ = ("channel_quant", "dims", "scale", "type", "zero_point")

    @checked
    def __init__(
        self,
        type: Operand,
        dimensions: Sequence[int] = (),
        scale: float = 0.0,
        zero_point: int = 0,
        channel_quant: ChannelQuant | None = None,
    ) -> None:
        self.type = type
        self.dims = tuple(dimensions)
        self.scale = single(scale)
        self.zero_point = zero_point
        self.channel_quant = channel_quant

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> int:
        """Number of elements; 0 if a dimension is unknown, 1 for a scalar."""
        return math.prod(self.dims)

    @property
    def is_known(self) -> bool:
        """True if the rank and all dimensions are known."""
        return self.type.is_scalar or (self.type.is_tensor and self.rank > 0 and 0 not in self.dims)

    @property
    def nbytes(self) -> int:
        return self.size * self.type.dtype.itemsize

    @property
    def is_quantized(self) -> bool:
        return self.type.is_quantized

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest integer of the type."""
        info = np.iinfo(self.type.dtype)
        return int(info.min), int(info.max)

    def same_quantization(self, other: OperandType) -> bool:
        return self.scale == other.scale and self.zero_point == other.zero_point

    def with_dims(self, dims: Sequence[int]) -> OperandType:
        if self.dims == dims:
            return self
        twin = OperandType.__new__(OperandType)
        twin.type, twin.dims, twin.scale, twin.zero_point = self.type, tuple(dims), self.scale, self.zero_point
        twin.channel_quant = self.channel_quant
        return twin

    def __str__(self) -> str:
        dims = "" if self.type.is_scalar else "[" + ", ".join(str(dim or "?") for dim in self.dims) + "]"
        quant = f" scale {self.scale:g} zero point {self.zero_point}" if self.is_quantized and self.scale else ""
        return f"{self.type.name}{dims}{quant}"

    def __repr__(self) -> str:
        return f"OperandType({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperandType) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple[object, ...]:
        return (self.type, self.dims, self.scale, self.zero_point, self.channel_quant)


class Tensor(OperandType):
    """An operand type with its values. `array` has the shape `dims`. Computations may hold float16 as float32."""

    __slots__ = ("_derived", "array")

    def __init__(self, kind: OperandType, array: Array) -> None:
        self._derived: dict[object, Any] = {}
        self.type = kind.type
        self.dims = array.shape
        self.scale = kind.scale
        self.zero_point = kind.zero_point
        self.channel_quant = kind.channel_quant
        self.array = array

    def derived(self, make: Callable[..., T], *arguments: object) -> T:
        """make(self, *arguments), computed once per tensor and cached: for a constant, once for all executions."""
        key = (make, arguments)
        if key not in self._derived:
            self._derived[key] = make(self, *arguments)
        return cast(T, self._derived[key])

    @property
    def real(self) -> Array:
        """The real numbers that quantized elements represent, as float32; for other types, the elements."""
        if not self.is_quantized:
            return self.array
        return ((self.array.astype(np.int32) - self.zero_point) * np.float32(self.scale)).astype(np.float32)

    @property
    def centered(self) -> Array:
        """Quantized elements minus the zero point, as int32."""
        return self.array.astype(np.int32) - np.int32(self.zero_point)


class ChangingTensor(Tensor):
    """A tensor whose elements change between runs. Nothing that is derived from it is kept."""

    __slots__ = ()

    def derived(self, make: Callable[..., T], *arguments: object) -> T:
        return make(self, *arguments)


class Lifetime(Enum):
    """The role of an operand in its model."""

    TEMPORARY = auto()
    INPUT = auto()
    OUTPUT = auto()
    COPY = auto()
    REFERENCE = auto()
    NO_VALUE = auto()
    SUBGRAPH = auto()


CONSTANT = (Lifetime.COPY, Lifetime.REFERENCE, Lifetime.NO_VALUE, Lifetime.SUBGRAPH)
