"""Fuses LSTMs that were unrolled over time into one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.operands import producer_of
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim, DType, TensorType
from ortconv.optimizer.conditions import filler, is_filled_with, is_finite, rounded, same_dim, without_absent
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.extended.recurrent.cell import LstmCell, cell_of
from ortconv.optimizer.extended.recurrent.making import Maker
from ortconv.optimizer.insertion import LISTS_BY_INPUT
from ortconv.optimizer.parts import slice_of

OLDEST = 11
"""The opset from which on CumSum exists, and Slice and Pad have their bounds as inputs."""

SHORTEST, GUARDED = 3, 4
"""Minimum number of steps for which one node is faster, without and with a guard against an empty batch."""


Operands = Sequence[Value | None]
Weights = Sequence[Array | None]


class ChainLink(NamedTuple):
    """A cell of a chain: the previous state, unless it is zero, and its input, x[step] or x[:, step] of a tensor of rank 3."""

    cell: LstmCell
    h_before: Value | None
    x: Value
    axis: int
    step: int

    @property
    def batch(self) -> Dim:
        return self.x.dim(1 - self.axis)

    @property
    def states(self) -> tuple[Value, ...]:
        """The previous states that are not zero."""
        return tuple(v for v in (self.h_before, self.cell.c_before) if v is not None)


Chain = Sequence[ChainLink]


def fuse(graph: Graph, context: Context) -> int:
    """Steps of an LSTM over consecutive slices of a tensor, with the same weights  ->  LSTM

    Forward or backward in time, layer by layer. Readers of inner states read them from the LSTM's outputs. NaN stays
    NaN, which ONNX Runtime's kernel alone would lose. If infinities of both signs are added in a gate, so that the sum
    is NaN, the result is a number.
    """
    if graph.opset() < OLDEST:
        return 0
    before = len(context.trace)
    roots = [node for node in graph if node.is_op("Mul")]
    readers: dict[Value, list[LstmCell]] = {}
    while roots:
        cells = [cell for node in roots if (cell := cell_of(node)) is not None]
        for cell in cells:
            for operand in cell.operands:
                readers.setdefault(operand, []).append(cell)
        gone, again = _fuse_chains(graph, cells, context)
        again += [cell for value in gone for cell in readers.get(value, ())]
        roots = [node for node in dict.fromkeys(cell.root for cell in again) if node.graph is graph]
    return len(context.trace) - before


def _fuse_chains(graph: Graph, cells: Sequence[LstmCell], context: Context) -> tuple[dict[Value, None], list[LstmCell]]:
    """Fuse the chains of some cells. Return the removed states, and the cells to examine again because they read such states."""
    gone: dict[Value, None] = {}
    again: list[LstmCell] = []
    for chain in _chains(cells):
        if any(state in gone for state in chain[0].states):
            again += [link.cell for link in chain]
        elif _pays(chain, context) and _replace(graph, chain, context):
            gone.update(dict.fromkeys(v for link in chain for v in (link.cell.h, link.cell.c)))
    return gone, again


def _pays(chain: Chain, context: Context) -> bool:
    shortest = SHORTEST if isinstance(chain[0].batch, int) else GUARDED
    return len(chain) >= shortest and context.may_touch(*_nodes(chain))


def _nodes(chain: Chain) -> set[Node]:
    return {node for link in chain for node in link.cell.nodes}


def _chains(cells: Sequence[LstmCell]) -> list[list[ChainLink]]:
    """Runs of at least two consecutive steps."""
    by_c = {cell.c: cell for cell in cells}
    followers: dict[LstmCell, LstmCell] = {}
    for cell in cells:
        before = by_c.get(cell.c_before)
        if before is not None and _follows(cell, before):
            followers.setdefault(before, cell)
    inner = set(followers.values())
    return [run for cell in followers if cell not in inner for run in _runs(_line(cell, followers))]


def _follows(cell: LstmCell, before: LstmCell) -> bool:
    """True if a cell reads the states of another one, and has the same weights and biases."""
    h = before.h
    if h not in cell.operands or len(cell.operands) != 2 or cell.width != before.width:
        return False
    of_h, of_x, others = cell.operands[h], cell.operands[cell.other(h)], list(before.operands.values())
    if len(others) == 2:
        return cell.biases == before.biases and others in ([of_h, of_x], [of_x, of_h])
    if others != [of_x] or not _is_zero(before.c_before):
        return False
    return np.array_equal(cell.bias().astype(np.float32), before.bias().astype(np.float32))


def _line(first: LstmCell, followers: dict[LstmCell, LstmCell]) -> Iterator[tuple[LstmCell, Value | None]]:
    """A cell and all its followers, each with the operand that is the previous state."""
    weights = followers[first].operands[first.h]
    is_given = len(first.operands) == 2
    yield first, next((v for v, gates in first.operands.items() if is_given and gates == weights), None)
    while first in followers:
        h, first = first.h, followers[first]
        yield first, h


def _runs(line: Iterator[tuple[LstmCell, Value | None]]) -> Iterator[list[ChainLink]]:
    """The longest parts of a line that read consecutive slices, without other readers of inner values."""
    run: list[ChainLink] = []
    for cell, h_before in line:
        link = _link(cell, h_before)
        if run and (link is None or not _continues(run, link)):
            if len(run) > 1:
                yield run
            run = []
        if link is not None and (run or _may_start(link)):
            run.append(link)
    if len(run) > 1:
        yield run


def _link(cell: LstmCell, h_before: Value | None) -> ChainLink | None:
    inner = (v for node in cell.nodes for v in node.present_outputs if v not in (cell.h, cell.c))
    if any(v.is_read_outside(cell.nodes) for v in inner):
        return None
    part = slice_of(cell.other(h_before))
    if part is None or part.axis == 2 or part.x.rank != 3 or cell.h.dim(0) not in (None, part.x.dim(1 - part.axis)):
        return None
    return ChainLink(cell, h_before, part.x, part.axis, part.start)


def _continues(run: Chain, link: ChainLink) -> bool:
    last = run[-1]
    if link.x is not last.x or link.axis != last.axis or abs(link.step - last.step) != 1:
        return False
    if len(run) > 1 and link.step - last.step != last.step - run[-2].step:
        return False
    return not last.cell.c.is_read_outside(last.cell.nodes | link.cell.nodes)


def _may_start(link: ChainLink) -> bool:
    """True if the previous states have the shape of the next ones."""
    batch, width = link.batch, link.cell.width
    return batch != 0 and all(
        v.rank == 2 and v.dim(1) == width and (same_dim(v.dim(0), batch) or (v.dim(0) == 1 and _is_zero(v)))
        for v in link.states
    )


def _replace(graph: Graph, chain: Chain, context: Context) -> bool:
    """Replace a chain by one operator. Return False if its weights cannot be combined."""
    weights, end = _weights(chain[-1]), chain[-1].cell
    if weights is None:
        return False
    label, before, made = end.root.label, len(graph), _LstmMaker(chain[0].cell.root)
    inside, nodes = _nodes(chain), [*(link.cell.root for link in reversed(chain)), end.c.producer]
    read = [link for link in chain if link.cell.h.is_read_outside(inside)]
    only_last = read == [chain[-1]]
    all_h, h, c = made.lstm(chain, weights, (bool(read) and not only_last, only_last, end.c.is_read_outside(inside)))
    if c is not None:
        graph.replace(end.c, c)
    for link in read:
        found = h if all_h is None else made.element(all_h, 0, link.step - _low(chain), (all_h.shape or ())[1:])
        assert found is not None
        graph.replace(link.cell.h, found)
    removed = sum(graph.remove_dead(node) for node in nodes if node is not None)
    context.record("UnrolledLstmFusion", label, removed, len(graph) + removed - before)
    return True


def _low(chain: Chain) -> int:
    return min(chain[0].step, chain[-1].step)


def _is_zero(value: Value) -> bool:
    fill = producer_of(value, "ConstantOfShape")
    return is_filled_with(value, 0.0) if fill is None else bool(filler(fill) == 0)


def _weights(link: ChainLink) -> tuple[Array, Array, Array | None] | None:
    """W, R and B; None if they are not finite. B is None if it is zero."""
    cell, h = link.cell, link.h_before
    assert h is not None
    operands = (cell.operands[cell.other(h)], cell.operands[h])
    w, r = (np.concatenate([gate.matrix(cell.width) for gate in gates])[np.newaxis] for gates in operands)
    sums = cell.bias()
    bias = rounded(np.concatenate([sums, np.zeros(len(sums))])[np.newaxis], DType.FLOAT)
    if bias is None or not is_finite(w, r):
        return None
    return w, r, bias if bias.any() else None


class _LstmMaker(Maker):
    """Creates the nodes around an LSTM."""

    def with_axes(self, op: str, value: Value, axes: Sequence[int], shape: tuple[Dim, ...]) -> Value:
        if self.place.parent.opset() >= LISTS_BY_INPUT[op]:
            return self.node(op, [value, self.ints(*axes)], {}, shape)
        return self.node(op, [value], {"axes": Ints(axes)}, shape)

    def squeezed(self, value: Value, axis: int) -> Value:
        shape = value.shape or ()
        return self.with_axes("Squeeze", value, (axis,), (*shape[:axis], *shape[axis + 1 :]))

    def state(self, value: Value | None) -> Value | None:
        """A state in the operator's form, (1, batch, width); None if it is zero."""
        if value is None or _is_zero(value):
            return None
        return self.with_axes("Unsqueeze", value, (0,), (1, *(value.shape or ())))

    def sequence(self, chain: Chain) -> Value:
        """The input of a chain, (length, batch, size)."""
        axis = chain[0].axis
        x = self.part(chain[0].x, axis, _low(chain), len(chain))
        if axis == 0:
            return x
        return self.node("Transpose", [x], {"perm": Ints((1, 0, 2))}, (x.dim(1), x.dim(0), x.dim(2)))

    def lstm(self, chain: Chain, weights: Weights, wanted: Sequence[bool]) -> list[Value | None]:
        """All states (length, batch, width), the last state, and the last cell state; None for each one that is not wanted."""
        first = chain[0]
        x, *states = self.sequence(chain), self.state(first.h_before), self.state(first.cell.c_before)
        if isinstance(first.batch, int):
            return self.steps(chain, x, states, weights, wanted)
        rows = self.rows(x)
        pads = self.pads(rows)
        states = [v and self.padded(v, pads) for v in states]
        found = self.steps(chain, self.padded(x, pads), states, weights, wanted)
        return [v and self.trimmed(v, rows, first.batch) for v in found]

    def steps(
        self, chain: Chain, x: Value, states: Operands, weights: Weights, wanted: Sequence[bool]
    ) -> list[Value | None]:
        """The same of an input x, (length, batch, size), with at least one row in the batch."""
        width, backwards = chain[0].cell.width, chain[-1].step < chain[0].step
        attrs: dict[str, Attribute] = {"hidden_size": width}
        if backwards:
            attrs["direction"] = "reverse"
        inputs = without_absent([x, *(None if w is None else self.constant(w) for w in weights), None, *states])
        y, *last = self.outputs(inputs, attrs, (len(chain), 1, x.dim(1), width), wanted)
        y = y and self.marked(self.squeezed(y, 1), self.running(x, states, backwards))
        total = self.total(x, (0, 2), states) if any(last) else x
        return [y, *(v and self.squeezed(self.marked(v, total), 0) for v in last)]

    def outputs(
        self, inputs: Operands, attrs: dict[str, Attribute], shape: tuple[Dim, ...], wanted: Sequence[bool]
    ) -> list[Value | None]:
        """The three outputs of an LSTM, the first with this shape; None for each one that is not wanted."""
        base = self.place.parent.fresh(f"{self.place.name or self.place.out.name}/LSTM")
        names = [self.place.parent.fresh(f"{base}_{part}") if w else None for part, w in zip(("y", "h", "c"), wanted)]
        types = [TensorType(DType.FLOAT, s) for s in (shape, shape[1:], shape[1:])]
        node = insert_node("LSTM", inputs, without_absent(names), types, self.place, attrs, name=base)
        return [node.output(i) for i in range(3)]

    # NaN stays NaN: the kernel clips the input of a gate and treats NaN as a bound.

    def strays(self, value: Value, axes: Sequence[int]) -> Value:
        """Number of NaN elements along axes of a tensor of rank 3."""
        is_nan = self.node("IsNaN", [value], {}, value.shape, DType.BOOL)
        ones = self.node("Cast", [is_nan], {"to": int(DType.FLOAT)}, value.shape)
        return self.with_axes("ReduceSum", ones, axes, tuple(1 if i in axes else value.dim(i) for i in range(3)))

    def total(self, x: Value, axes: Sequence[int], states: Operands) -> Value:
        """Number of NaN elements along axes of (length, batch, size), and in the states."""
        found = self.strays(x, axes)
        for state in states:
            if state is not None:
                found = self.node("Add", [found, self.strays(state, (0, 2))], {}, found.shape)
        return found

    def running(self, x: Value, states: Operands, backwards: bool) -> Value:
        """Number of NaN elements up to each step."""
        counts = self.total(x, (2,), states)
        axis = self.constant(np.array(0, np.int64))
        return self.node("CumSum", [counts, axis], {"reverse": int(backwards)}, counts.shape)

    def marked(self, value: Value, counts: Value) -> Value:
        """The value, with NaN wherever the count is not zero."""
        is_stray = self.node("Cast", [counts], {"to": int(DType.BOOL)}, counts.shape, DType.BOOL)
        nan = self.constant(np.array(np.nan, np.float32))
        return self.node("Where", [is_stray, nan, value], {}, value.shape)

    # An empty batch gets a row: ONNX Runtime 1.31 aborts in an LSTM without rows.

    def rows(self, x: Value) -> Value:
        """The batch of (length, batch, size), as a tensor of rank 1."""
        shape = self.node("Shape", [x], {}, (3,), DType.INT64)
        return self.node("Gather", [shape, self.ints(1)], {"axis": 0}, (1,), DType.INT64)

    def pads(self, rows: Value) -> Value:
        """The pads with which Pad adds a row to (..., batch, size) if the batch is empty."""
        empty = self.node("Equal", [rows, self.ints(0)], {}, (1,), DType.BOOL)
        missing = self.node("Cast", [empty], {"to": int(DType.INT64)}, (1,), DType.INT64)
        return self.node("Concat", [self.ints(0, 0, 0, 0), missing, self.ints(0)], {"axis": 0}, (6,), DType.INT64)

    def padded(self, value: Value, pads: Value) -> Value:
        return self.node("Pad", [value, pads], {}, (value.dim(0), None, value.dim(2)))

    def trimmed(self, value: Value, rows: Value, batch: Dim) -> Value:
        """The first `rows` rows of (..., batch, width)."""
        shape = (*(value.shape or ())[:-2], batch, value.dim(-1))
        return self.node("Slice", [value, self.ints(0), rows, self.ints(len(shape) - 2)], {}, shape)
