"""The products that compute query, key and value from one tensor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import only_reader, producer_of
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.optimizer.conditions import array_of, equal_shapes, is_plain_gemm
from ortconv.optimizer.extended.attention.heads import Heads
from ortconv.optimizer.pattern import C, Match, P, matches
from ortconv.optimizer.shapes import target


class Projection(NamedTuple):
    """x @ weight + bias with constant weight and bias, and no other reader of the result."""

    x: Value
    product: Node
    weight: Value
    bias: Value | None
    transposed: bool
    width: int
    start: int = 0
    """The first of this projection's columns in the weight, if several projections are one product."""

    def matrix(self) -> Array:
        """The weight, (hidden, width)."""
        weight = array_of(self.weight).T if self.transposed else array_of(self.weight)
        return weight[:, self.start : self.start + self.width]

    def vector(self) -> Array:
        """The bias, (width,); zeros if there is none."""
        if self.bias is None:
            return np.zeros(self.width, np.float32)
        return array_of(self.bias).reshape(-1)[self.start : self.start + self.width]


def projection_of(heads: Heads) -> Projection | None:
    """The projection whose result is split into the heads of one side of attention; None if there is none."""
    node = producer_of(heads.source, "Gemm", "MatMul", "Add")
    if node is None or not heads.nodes or node.ep != heads.nodes[-1].ep:
        return None
    if any(only_reader(value) is None for value in (heads.source, *(n.out for n in heads.nodes))):
        return None
    return _from_gemm(node, heads) if node.op == "Gemm" else _from_matmul(node, heads.count * heads.size)


_PRODUCT = P("MatMul", "x", C("weight"), name="product")
_WITH_BIAS = P("Add", _PRODUCT, C("bias"), commutative=True)


def match_product(node: Node) -> Match | None:
    """The match of MatMul(x, weight), or of its sum with a bias, that ends with a node; None if it is no such product."""
    return next(matches(_WITH_BIAS if node.op == "Add" else _PRODUCT, node), None)


def _from_matmul(node: Node, width: int) -> Projection | None:
    """The projection whose last node is a MatMul, or an Add that adds the bias."""
    m = match_product(node)
    if m is None or m.x.rank != 3 or not _is_weight(m.weight, m.x, 0, width):
        return None
    product, bias = m.node("product"), m.optional("bias")
    if product.ep != node.ep or (bias is not None and (bias.shape != (width,) or only_reader(product.out) is None)):
        return None
    return Projection(m.x, product, m.weight, bias, transposed=False, width=width)


def packed_projections(sides: tuple[Heads, ...]) -> list[Projection] | None:
    """The projections of the parts into which one Split divides one product, in this order and equally wide; else None."""
    first = sides[0]
    split, width = producer_of(first.source, "Split"), first.count * first.size
    if split is None or not _are_parts(sides, split, width) or any(s.rows != first.rows for s in sides):
        return None
    packed = split.present_inputs[0]
    nodes = tuple(node for s in sides for node in s.nodes)
    rows = first.rows if first.source.rank == 2 else None
    found = projection_of(Heads(packed, len(sides) * first.count, first.size, 1.0, nodes, rows))
    if found is None or found.product.ep != split.ep:
        return None
    return [found._replace(width=width, start=i * width) for i in range(len(sides))]


def _are_parts(sides: tuple[Heads, ...], split: Node, width: int) -> bool:
    """True if these are all parts of a Split along the last axis, in order, of this width, and without other readers."""
    sources = [s.source for s in sides]
    if sources != list(split.outputs) or attribute(split, "axis") not in (-1, (sources[0].rank or 0) - 1):
        return False
    return all(part.dim(-1) == width and only_reader(part) is not None for part in sources)


def _from_gemm(gemm: Node, heads: Heads) -> Projection | None:
    x, weight, bias = (gemm.input(i) for i in range(3))
    if x is None or weight is None or heads.rows is None or not is_plain_gemm(gemm):
        return None
    width, transposed = heads.count * heads.size, bool(attribute(gemm, "transB"))
    if not _is_weight(weight, x, int(transposed), width):
        return None
    if bias is not None and (bias.constant is None or bias.shape not in ((width,), (1, width))):
        return None
    return Projection(_rows(x, heads, gemm.ep), gemm, weight, bias, transposed=transposed, width=width)


def _is_weight(weight: Value, x: Value, axis: int, width: int) -> bool:
    const = weight.constant
    return const is not None and const.rank == 2 and const.shape[axis] == x.dim(-1) and const.shape[1 - axis] == width


def _rows(x: Value, heads: Heads, ep: str) -> Value:
    """The value that was flattened to x, if it has the shape of the rows; else x."""
    assert heads.rows is not None
    node = x.producer
    if node is not None and node.is_op("Reshape") and node.ep == ep and target(node) is not None:
        before = node.inputs[0]
        if before is not None and equal_shapes(before.shape, (*heads.rows[:2], x.dim(1))):
            return before
    return x
