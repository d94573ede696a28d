"""Recognizes one step of an LSTM that is written with elementary operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import wide
from ortconv.optimizer.extended.parts import part_of
from ortconv.optimizer.pattern import Match, P, matches

LARGEST = 16
"""Maximum number of nodes in a sum. The input of a gate has fewer."""


GATES = ("i", "o", "f", "g")
"""Names of the inputs of the gates, in the order in which LSTM stores its weights."""


def _times(a: P | str, b: P | str) -> P:
    return P("Mul", a, b, commutative=True)


_STATE = P(
    "Add",
    _times(P("Sigmoid", "f"), "c"),
    _times(P("Sigmoid", "i"), P("Tanh", "g")),
    commutative=True,
    name="state",
    shared=True,
)
STEP = _times(P("Sigmoid", "o"), P("Tanh", _STATE))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a constant from `start` on; of its transpose if `transposed`."""

    value: Value
    start: int
    transposed: bool = False

    def matrix(self, width: int) -> Array:
        """`width` of these columns, as rows."""
        assert self.value.constant is not None
        whole = self.value.constant.numpy()
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
    h: Value
    c: Value
    c_before: Value
    operands: dict[Value, tuple[Columns, ...]]
    biases: tuple[tuple[Columns, ...], ...]

    def other(self, operand: Value | None) -> Value:
        return next(value for value in self.operands if value is not operand)

    def bias(self) -> Array:
        """The sums of the biases for all gates, concatenated, in float64."""
        return np.concatenate(
            [sum((b.vector(self.width) for b in biases), np.zeros(self.width)) for biases in self.biases]
        )


def cell_of(root: Node) -> LstmCell | None:
    """The step whose last node is `root`; None if there is none."""
    h = root.out
    width = h.dim(1)
    if h.dtype is not DType.FLOAT or h.rank != 2 or not isinstance(width, int) or width < 1:
        return None
    found = (_cell(m, width) for m in matches(STEP, root))
    return next((cell for cell in found if cell is not None), None)


def _cell(m: Match, width: int) -> LstmCell | None:
    nodes = {m.root, *(node for node, _ in m.nodes)}
    operands: dict[Value, list[Columns]] = {}
    biases = []
    for i, name in enumerate(GATES):
        found = _sum(m.bound[name], width)
        if found is None:
            return None
        for operand, columns in found.products:
            gates = operands.setdefault(operand, [])
            if len(gates) != i or operand.rank != 2:
                return None
            gates.append(columns)
        biases.append(tuple(found.biases))
        nodes |= found.nodes
    if len(operands) not in (1, 2) or any(len(gates) != len(GATES) for gates in operands.values()):
        return None
    weights = {value: tuple(gates) for value, gates in operands.items()}
    cell = LstmCell(width, nodes, m.root.out, m.state.out, m.c, weights, tuple(biases))
    return cell if all(node.graph is m.root.graph for node in nodes) else None


@dataclass(slots=True)
class _Sum:
    products: list[tuple[Value, Columns]]
    biases: list[Columns]
    nodes: set[Node]


def _sum(value: Value, width: int) -> _Sum | None:
    """The input of a gate as a sum of products with constant matrices, and of constant rows; None if it has another form."""
    found = _Sum([], [], set())
    stack = [(value, 0)]
    while stack and len(found.nodes) < LARGEST:
        value, start = stack.pop()
        if value.constant is not None:
            if not _is_row(value, start, width):
                return None
            found.biases.append(Columns(value, start))
            continue
        node = value.producer
        if node is None or node.domain != "" or value.rank != 2 or value.dtype is not DType.FLOAT:
            return None
        found.nodes.add(node)
        if node.op in ("Gemm", "MatMul"):
            product = _product(node, start, width)
            if product is None:
                return None
            found.products.append(product)
            addend = node.input(2)
            stack += [] if addend is None else [(addend, start)]
        elif node.op == "Add":
            a, b = node.inputs
            assert a is not None
            assert b is not None
            stack += [(b, start), (a, start)]
        else:
            part = part_of(value)
            if part is None or part.axis != 1:
                return None
            stack.append((part.x, part.start + start))
    return None if stack else found


def _is_row(value: Value, start: int, width: int) -> bool:
    """True for a constant that adds the same values to every row."""
    const = value.constant
    if const is None or const.dtype is not DType.FLOAT or const.rank > 2 or not const.size:
        return False
    if const.size == 1:
        return True
    rows = const.numpy().reshape(-1, const.shape[-1])
    return const.shape[-1] >= start + width and bool(np.all(rows == rows[0]))


def _product(node: Node, start: int, width: int) -> tuple[Value, Columns] | None:
    a, b = node.inputs[:2]
    transposed = False
    if node.op == "Gemm":
        if attribute(node, "alpha") != 1 or attribute(node, "transA"):
            return None
        if node.input(2) is not None and attribute(node, "beta") != 1:
            return None
        transposed = bool(attribute(node, "transB"))
    if a is None or b is None or b.constant is None or b.constant.rank != 2 or 0 in b.constant.shape:
        return None
    columns = b.constant.shape[0 if transposed else 1]
    return (a, Columns(b, start, transposed)) if start + width <= columns else None
