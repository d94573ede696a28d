"""Products of the slices of a tensor with the same matrix become one product of the whole tensor."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import constant_of
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import SLICE_BY_INPUTS, array_of
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.recurrent.cell import weight_product
from ortconv.optimizer.extended.recurrent.making import Maker
from ortconv.optimizer.parts import slice_of

FEWEST = 4
"""Minimum number of slices for which one product is faster."""

ROWS = {"MatMul": 8, "Gemm": 1}
"""Maximum number of rows of a slice for which it is. A Gemm also adds its bias, which one product cannot do."""

TYPES = (DType.FLOAT, DType.DOUBLE)

Key: TypeAlias = "tuple[Value, int, Value, bool, Value | None]"
"""A tensor, an axis of it, the matrix by which its slices are multiplied, True if that is transposed, and the addend."""


def fuse(graph: Graph, context: Context) -> int:
    """MatMul(x[:, i], w) + b, or Gemm, for consecutive i  ->  (MatMul(x, w) + b)[:, i], as in an RNN unrolled over time"""
    groups: dict[Key, list[tuple[int, Node]]] = {}
    for node in graph:
        if node.op in ("MatMul", "Gemm") and node.domain == "":
            found = _product(node)
            if found is not None:
                groups.setdefault(found[0], []).append((found[1], node))
    return sum(_replace(graph, key, products, context) for key, products in groups.items() if len(products) > 1)


def _product(node: Node) -> tuple[Key, int] | None:
    """The group of a product, and the index of its slice; None for any other node."""
    found = weight_product(node)
    part = None if found is None else slice_of(found.x)
    if found is None or part is None or found.x.dtype not in TYPES or not _may_be_row(found.addend):
        return None
    rank, shape = part.x.rank or 0, found.x.static_shape
    if rank < 3 or part.axis == rank - 1 or shape is None or math.prod(shape[:-1]) > ROWS[node.op]:
        return None
    return (part.x, part.axis, *found[1:]), part.start


def _may_be_row(value: Value | None) -> bool:
    """True for a constant that adds the same row to every row, or without one."""
    const = constant_of(value)
    if value is None or const is None or const.rank > 2:
        return value is None
    return const.size == 1 or const.size == const.shape[-1]


def _replace(graph: Graph, key: Key, products: list[tuple[int, Node]], context: Context) -> bool:
    x, axis, w, transposed, bias = key
    nodes = [node for _, node in products]
    indices = sorted({index for index, _ in products})
    if len(indices) < FEWEST or indices != list(range(indices[0], indices[-1] + 1)):
        return False
    if not context.may_touch(*nodes) or (len(indices) != x.dim(axis) and graph.opset() < SLICE_BY_INPUTS):
        return False
    label, before = nodes[0].label, len(graph)
    make = Maker(nodes[0])
    rows = make.part(x, axis, indices[0], len(indices))
    product = _product_of(make, rows, w, transposed, bias)
    for index, node in products:
        graph.replace(node.out, make.element(product, axis, index - indices[0], node.out.shape))
    removed = sum(graph.remove_dead(node) for node in nodes)
    context.record("StepProductFusion", label, removed, len(graph) + removed - before)
    return True


def _product_of(make: Maker, rows: Value, w: Value, transposed: bool, bias: Value | None) -> Value:
    matrix = make.constant(np.ascontiguousarray(array_of(w).T)) if transposed else w
    shape = (*(rows.shape or ())[:-1], matrix.dim(1))
    product = make.node("MatMul", [rows, matrix], {}, shape)
    return product if bias is None else make.node("Add", [product, bias], {}, shape)
