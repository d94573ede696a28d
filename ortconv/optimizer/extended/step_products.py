"""Products of the slices of a tensor with the same matrix become one product of the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, Shape, TensorType
from ortconv.optimizer.engine import Context, FunctionPass
from ortconv.optimizer.extended.slices import slice_of

FEWEST = 4
"""Slices from which one product is faster."""

ROWS = {"MatMul": 8, "Gemm": 1}
"""Rows of a slice up to which it is. A Gemm adds its bias on the way, which one product cannot."""

TYPES = (DType.FLOAT, DType.DOUBLE)

SLICE_BY_INPUTS = 10

Key: TypeAlias = "tuple[Value, int, Value, bool, Value | None]"
"""A tensor, an axis of it, what its slices are multiplied with and whether transposed, and what is added."""


def fuse(graph: Graph, context: Context) -> int:
    """MatMul(x[:, i], w) + b, or Gemm, for consecutive i  ->  (MatMul(x, w) + b)[:, i], as in an RNN unrolled over time

    Counterpart: none: beyond ONNX Runtime
    """
    groups: dict[Key, list[tuple[int, Node]]] = {}
    for node in graph:
        if node.op in ("MatMul", "Gemm") and node.domain == "":
            found = _product(node)
            if found is not None:
                groups.setdefault(found[0], []).append((found[1], node))
    return sum(_replace(graph, key, products, context) for key, products in groups.items() if len(products) > 1)


def _product(node: Node) -> tuple[Key, int] | None:
    """The group of a product, and the index of its slice."""
    a, w = node.inputs[:2]
    part = None if a is None else slice_of(a)
    if part is None or a is None or w is None or w.constant is None or w.constant.rank != 2 or a.dtype not in TYPES:
        return None
    rank, shape = part.x.rank or 0, a.static_shape
    if rank < 3 or part.axis == rank - 1 or shape is None or math.prod(shape[:-1]) > ROWS[node.op]:
        return None
    if node.op == "MatMul":
        return (part.x, part.axis, w, False, None), part.start
    bias = node.input(2)
    if (
        attribute(node, "alpha") != 1
        or attribute(node, "transA")
        or (bias is not None and attribute(node, "beta") != 1)
    ):
        return None
    if bias is not None and not _is_row(bias):
        return None
    return (part.x, part.axis, w, bool(attribute(node, "transB")), bias), part.start


def _is_row(value: Value) -> bool:
    const = value.constant
    return const is not None and const.rank <= 2 and (const.size == 1 or const.size == const.shape[-1])


def _replace(graph: Graph, key: Key, products: list[tuple[int, Node]], context: Context) -> bool:
    x, axis, w, transposed, bias = key
    nodes = [node for _, node in products]
    indices = sorted({index for index, _ in products})
    if len(indices) < FEWEST or any(after - before != 1 for before, after in pairwise(indices)):
        return False
    if not context.may_touch(*nodes) or (len(indices) != x.dim(axis) and graph.opset() < SLICE_BY_INPUTS):
        return False
    label, before = nodes[0].label, len(graph)
    make = _Maker(graph, nodes[0])
    product = make.product(make.part(x, axis, indices[0], len(indices)), w, transposed, bias)
    for index, node in products:
        place = make.constant(np.array(index - indices[0], np.int64))
        graph.replace(node.out, make.node("Gather", [product, place], {"axis": axis}, node.out.shape))
    removed = sum(graph.remove_dead(node) for node in nodes)
    context.record("StepProductFusion", label, removed, len(graph) + removed - before)
    return True


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes nodes of one element type before a node."""

    graph: Graph
    place: Node

    def constant(self, array: Array) -> Value:
        return self.graph.constant(Tensor.of(array), f"{self.place.out.name}_const")

    def node(self, op: str, inputs: Sequence[Value], attrs: dict[str, Attribute], shape: Shape | None) -> Value:
        dtype = self.place.out.dtype
        types = [None if dtype is None else TensorType(dtype, shape)]
        node = self.graph.add_node(op, inputs, 1, attrs, types=types, before=self.place)
        node.ep = self.place.ep
        return node.out

    def part(self, x: Value, axis: int, start: int, length: int) -> Value:
        shape = x.shape or ()
        if shape[axis] == length:
            return x
        bounds = [self.constant(np.array([n], np.int64)) for n in (start, start + length, axis)]
        return self.node("Slice", [x, *bounds], {}, (*shape[:axis], length, *shape[axis + 1 :]))

    def product(self, x: Value, w: Value, transposed: bool, bias: Value | None) -> Value:
        assert w.constant is not None
        if transposed:
            w = self.constant(np.ascontiguousarray(w.constant.numpy().T))
        shape = (*(x.shape or ())[:-1], w.dim(1))
        result = self.node("MatMul", [x, w], {}, shape)
        return result if bias is None else self.node("Add", [result, bias], {}, shape)


PASSES = (FunctionPass("StepProductFusion", fuse),)
