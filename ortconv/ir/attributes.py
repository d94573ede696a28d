"""The types of a node's attributes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeAlias, Union

from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import ValueType

if TYPE_CHECKING:
    from ortconv.ir.graph import Graph


class Ints(tuple[int, ...]):
    """An attribute of type INTS."""

    __slots__ = ()


class Floats(tuple[float, ...]):
    """An attribute of type FLOATS."""

    __slots__ = ()


class Strings(tuple[str, ...]):
    """An attribute of type STRINGS. Bytes that are not UTF-8 are kept as surrogates."""

    __slots__ = ()


class Tensors(tuple[Tensor, ...]):
    """An attribute of type TENSORS."""

    __slots__ = ()


class Graphs(tuple["Graph", ...]):
    """An attribute of type GRAPHS."""

    __slots__ = ()


class Types(tuple[ValueType, ...]):
    """An attribute of type TYPE_PROTOS."""

    __slots__ = ()


Attribute: TypeAlias = Union[
    int, float, str, Tensor, SparseTensor, ValueType, Ints, Floats, Strings, Tensors, Graphs, Types, tuple[int, ...], "Graph",
]  # fmt: skip
"""An attribute's value; its Python type determines its ONNX type. A plain tuple of int counts as Ints."""


def content(value: Attribute) -> Hashable:
    """A hash key that is equal for equal attributes: tensors compare by elements, floats by bits, graphs by identity."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.digest()
    if isinstance(value, SparseTensor):
        return value.shape, content(value.values), content(value.indices)
    if isinstance(value, Tensors):
        return tuple(map(content, value))
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Floats):
        return tuple(v.hex() for v in value)
    return value
