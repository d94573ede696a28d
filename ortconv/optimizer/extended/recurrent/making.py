"""Creates the nodes that replace unrolled steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType, Shape, TensorType
from ortconv.optimizer.engine import constant
from ortconv.optimizer.insertion import insert


class Maker:
    """Creates nodes before a given node, the place, assigned to the provider of that place."""

    def __init__(self, place: Node) -> None:
        self.place = place

    def constant(self, array: Array) -> Value:
        return constant(self.place, array)

    def ints(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64))

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Attribute],
        shape: Shape | None,
        dtype: DType | None = None,
    ) -> Value:
        """The only output of a new node. By default, it has the element type of the place."""
        dtype = dtype or self.place.out.dtype
        return insert(op, inputs, None if dtype is None else TensorType(dtype, shape), self.place, attrs)

    def element(self, value: Value, axis: int, index: int, shape: Shape | None) -> Value:
        """The slice at an index of an axis, without that axis."""
        return self.node("Gather", [value, self.constant(np.array(index, np.int64))], {"axis": axis}, shape)

    def part(self, x: Value, axis: int, start: int, length: int) -> Value:
        """`length` elements along an axis, with a Slice of opset 10 or later; x itself if these are all elements."""
        shape = x.shape or ()
        if shape[axis] == length:
            return x
        cut = (*shape[:axis], length, *shape[axis + 1 :])
        return self.node("Slice", [x, *map(self.ints, (start, start + length, axis))], {}, cut)
