"""Recognizes one step of an LSTM that is written with elementary operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import array_of, is_plain_gemm, numbers, wide
from ortconv.optimizer.parts import part_of
from ortconv.optimizer.pattern import Match, P, matches

LARGEST = 16
"""Maximum number of nodes in a sum. The input of a gate has fewer."""


GATES = ("i", "o", "f", "g")
"""Names of the inputs of the gates, in the order in which LSTM stores its weights."""


def _times(a: P | str, b: P | str) -> P:
    return P("Mul", a, b, commutative=True)


_ADDED = _times(P("Sigmoid", "i"), P("Tanh", "g"))
_STATE = P("Add", _times(P("Sigmoid", "f"), "c"), _ADDED, commutative=True, name="state", shared=True)
STEP = _times(P("Sigmoid", "o"), P("Tanh", _STATE))


class Columns(NamedTuple):
    """The columns of a constant from `start` on; of its transpose if `transposed`."""

    value: Value
    start: int
    transposed: bool = False

    def matrix(self, width: int) -> Array:
        """`width` of these columns, as rows."""
        whole = array_of(self.value)
        return (whole if self.transposed else whole.T)[self.start : self.start + width]

    def vector(self, width: int) -> Array:
        """`width` of these columns, from any row, as all rows are equal; in float64."""
        whole = wide(self.value)
        row = (whole[0] if whole.ndim == 2 else whole).reshape(-1)
        return np.broadcast_to(row, (width,)) if len(row) == 1 else row[self.start : self.start + width]


@dataclass(eq=False, slots=True)
class LstmCell:
    """One step. `operands` are the input and the previous state, each with its weights for every gate.

    If that state is a constant zero, its product may be missing: then there is one operand.
    """

    width: int
    nodes: set[Node]
    root: Node
    """The node that computes the state `h`."""
    c: Value
    c_before: Value
    operands: dict[Value, tuple[Columns, ...]]
    biases: tuple[tuple[Columns, ...], ...]

    @property
    def h(self) -> Value:
        return self.root.out

    def other(self, operand: Value | None) -> Value:
        return next(value for value in self.operands if value is not operand)

    def bias(self) -> Array:
        """The sums of the biases for all gates, concatenated, in float64."""
        zeros = np.zeros(self.width)
        return np.concatenate([sum((b.vector(self.width) for b in biases), zeros) for biases in self.biases])


def cell_of(root: Node) -> LstmCell | None:
    """The step whose last node is `root`; None if there is none."""
    h = root.out
    width = h.dim(1)
    if h.dtype is not DType.FLOAT or h.rank != 2 or not isinstance(width, int) or width < 1:
        return None
    found = (_cell(m, width) for m in matches(STEP, root))
    return next((cell for cell in found if cell is not None), None)


def _cell(m: Match, width: int) -> LstmCell | None:
    sums = [found for value in m.values(*GATES) if (found := _sum(value, width)) is not None]
    operands = _operands(sums)
    nodes = {m.root, *(node for node, _ in m.nodes)}.union(*(gate.nodes for gate in sums))
    if len(operands) not in (1, 2) or any(node.graph is not m.root.graph for node in nodes):
        return None
    biases = tuple(tuple(gate.biases) for gate in sums)
    return LstmCell(width, nodes, m.root, m.node("state").out, m.c, operands, biases)


def _operands(sums: list[_GateSum]) -> dict[Value, tuple[Columns, ...]]:
    """The operands of the products, each with its weights for every gate; {} if a gate does not multiply each one once."""
    weights = [dict(gate.products) for gate in sums]
    once = all(len(gate.products) == len(its) for gate, its in zip(sums, weights))
    if len(sums) < len(GATES) or not once or any(its.keys() != weights[0].keys() for its in weights):
        return {}
    return {x: tuple(its[x] for its in weights) for x in weights[0]}


class _GateSum(NamedTuple):
    products: list[tuple[Value, Columns]]
    biases: list[Columns]
    nodes: set[Node]


def _sum(value: Value, width: int) -> _GateSum | None:
    """The input of a gate as a sum of products with constant matrices, and of constant rows; None if it has another form."""
    found = _GateSum([], [], set())
    stack = [(value, 0)]
    while stack and len(found.nodes) < LARGEST:
        value, start = stack.pop()
        if value.constant is None:
            terms = _terms(value, start, width, found)
            if terms is None:
                return None
            stack += terms
        elif _is_row(value, start, width):
            found.biases.append(Columns(value, start))
        else:
            return None
    return None if stack else found


def _terms(value: Value, start: int, width: int, found: _GateSum) -> list[tuple[Value, int]] | None:
    """The terms of a value with their first columns; a product and nodes are added to `found`. None for other forms."""
    node = value.producer
    if node is None or node.domain != "" or (value.rank, value.dtype) != (2, DType.FLOAT):
        return None
    found.nodes.add(node)
    if node.op == "Add":
        return [(v, start) for v in reversed(node.inputs) if v is not None]
    if node.op in ("Gemm", "MatMul"):
        product = _product(node, start, width)
        if product is None:
            return None
        found.products.append(product)
        addend = node.input(2)
        return [] if addend is None else [(addend, start)]
    part = part_of(value)
    return [(part.x, part.start + start)] if part is not None and part.axis == 1 else None


def _is_row(value: Value, start: int, width: int) -> bool:
    """True for a constant that adds the same values to every row."""
    const = value.constant
    if const is None or const.dtype is not DType.FLOAT or const.rank > 2 or not const.size:
        return False
    if const.size == 1:
        return True
    rows = const.numpy().reshape(-1, const.shape[-1])
    return const.shape[-1] >= start + width and bool(np.all(rows == rows[0]))


class WeightProduct(NamedTuple):
    """x @ weight + addend with a constant weight, which is transposed before if `transposed`."""

    x: Value
    weight: Value
    transposed: bool
    addend: Value | None


def weight_product(node: Node) -> WeightProduct | None:
    """The product that a MatMul or Gemm with a constant matrix computes; None if the Gemm does anything else, too."""
    x, weight = node.inputs[:2]
    if x is None or weight is None or weight.constant is None or weight.constant.rank != 2:
        return None
    if node.op == "MatMul":
        return WeightProduct(x, weight, transposed=False, addend=None)
    if not is_plain_gemm(node):
        return None
    return WeightProduct(x, weight, transposed=bool(attribute(node, "transB")), addend=node.input(2))


def _product(node: Node, start: int, width: int) -> tuple[Value, Columns] | None:
    """The operand that is multiplied by columns of a constant matrix, and these columns; None for any other node."""
    found = weight_product(node)
    if found is None or found.x.rank != 2:
        return None
    sizes = numbers(*(found.weight.shape or ()))
    if not sizes or start + width > sizes[0 if found.transposed else 1]:
        return None
    return found.x, Columns(found.weight, start, found.transposed)
