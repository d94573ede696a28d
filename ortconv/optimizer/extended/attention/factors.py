"""Finds the values that the factors of rotary positions, cosines and sines, are copies of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import axes_of, constant_of, ints, producer_of, scalar
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim, DType
from ortconv.optimizer.conditions import copied_from_one, equal_shapes, keeps_rank, same_dim
from ortconv.optimizer.parts import part_of
from ortconv.optimizer.permutation import transpose_perm


class Factors(NamedTuple):
    """Factors that broadcast to rank 4, as copies of the elements of a value, to which functions are applied."""

    value: Value
    axes: tuple[int | None, ...]
    """For each axis of the factors, the axis of the value; None for a new axis of length 1."""
    columns: Array
    """For each column of the factors, the column of the value."""
    functions: tuple[Node, ...] = ()
    """Cos, Sin, or Mul by a number, the last one first."""

    @property
    def column_axis(self) -> int:
        axis = self.axes[3]
        assert axis is not None
        return axis

    def dim(self, axis: int) -> Dim:
        """The length of an axis of the factors other than the columns."""
        source = self.axes[axis]
        return 1 if source is None else self.value.dim(source)

    def moved(self, value: Value, sources: tuple[int | None, ...] | None) -> Factors | None:
        """The same factors as copies of a value whose axes are those of the present one; None if they are unknown."""
        axes = None if sources is None else tuple(None if a is None else sources[a] for a in self.axes)
        return None if axes is None or axes[3] is None else self._replace(value=value, axes=axes)


def as_copies(factors: Value) -> Factors | None:
    """Factors that broadcast to rank 4 as copies of themselves; None if their width is unknown."""
    rank, width = factors.rank, factors.dim(-1) if factors.rank else None
    if not isinstance(width, int) or rank is None or rank > 4:
        return None
    return Factors(factors, (*[None] * (4 - rank), *range(rank)), np.arange(width))


def sources_of(factors: Value) -> Iterator[Factors]:
    """The values that factors are copies of, the factors themselves first."""
    found = as_copies(factors)
    while found is not None:
        yield found
        found = _before(found)


def copied_from(factors: Value, columns: Array) -> Factors | None:
    """The last value whose columns 0, 1, ... are those of the factors, before functions of more columns; None if there is none."""
    found, narrow, width = None, False, int(columns[-1]) + 1
    for source in sources_of(factors):
        was_narrow, narrow = narrow, source.value.dim(source.column_axis) == width
        narrow = narrow and np.array_equal(source.columns, columns)
        if narrow and not was_narrow:
            found = source
    return found


class Lookup(NamedTuple):
    """Rows that a Gather selects from a constant table, and the columns of the table that suffice."""

    positions: Value
    table: Value
    columns: Array


def looked_up(factors: Value, columns: Array, batch: int, rows: int) -> Lookup | None:
    """The lookup of these axes of factors, if the columns of its result are copied in this order; else None."""
    for source in sources_of(factors):
        gather = producer_of(source.value, "Gather")
        if gather is None or source.functions or gather.attr("axis", 0):
            continue
        positions = gather.inputs[1]
        table = constant_of(gather.inputs[0])
        if positions is None or table is None or (table.dtype, table.rank, positions.rank) != (DType.FLOAT, 2, 2):
            return None
        if (source.axes[batch], source.axes[rows], source.axes[3]) != (0, 1, 2):
            return None
        first = _of_pairs(table.numpy(), source.columns, columns)
        return None if first is None else Lookup(positions, gather.present_inputs[0], first)
    return None


def constant_columns(factors: Value, columns: Array) -> Array | None:
    """For each pair, its column in constant factors; None if the factors are not constant, or if a pair has several."""
    table = constant_of(factors)
    if table is None or not table.rank or table.shape[-1] != len(columns):
        return None
    return _of_pairs(table.numpy(), np.arange(len(columns)), columns)


def _of_pairs(table: Array, copied: Array, pairs: Array) -> Array | None:
    """For each pair, its first column of a table of which these columns are copied. None if other columns of the pair differ."""
    first = copied[np.unique(pairs, return_index=True)[1]]
    return first if np.array_equal(table[..., copied], table[..., first[pairs]]) else None


# ---------------------------------------------------------------------- one step back


def _before(f: Factors) -> Factors | None:
    """The same factors as copies of an input of the node that computes their value; None if they are not."""
    node = f.value.producer
    if node is None or node.domain != "":
        return None
    if node.op in ("Cos", "Sin", "Mul"):
        return _before_function(f, node)
    if node.op in ("Split", "Slice"):
        return _before_part(f)
    if node.op in ("Concat", "Tile"):
        return _before_join(f, node)
    if node.op == "Gather":
        return _before_gather(f, node)
    if node.op == "GatherND":
        return _before_pick(f, node)
    return _before_copies(f, node) or _before_move(f, node)


def _before_function(f: Factors, node: Node) -> Factors | None:
    x = node.present_inputs[0]
    if node.op == "Mul":
        a, b = node.present_inputs
        x, number = (a, b) if scalar(b) is not None else (b, a)
        if scalar(number) is None or number.rank not in (0, 1) or not keeps_rank(x, number):
            return None
    return f._replace(value=x, functions=(*f.functions, node))


def _before_part(f: Factors) -> Factors | None:
    """Before a Split or Slice of columns."""
    part = part_of(f.value)
    found = part is not None and part.axis == f.axes[3]
    return f._replace(value=part.x, columns=f.columns + part.start) if part is not None and found else None


def _before_join(f: Factors, node: Node) -> Factors | None:
    """Before a Concat of a value with itself along the columns, or a Tile along them."""
    x, rank = node.present_inputs[0], f.value.rank or 1
    width = x.dim(f.column_axis)
    if node.op == "Tile":
        axes = [axis for axis, count in enumerate(ints(node.inputs[1]) or ()) if count != 1]
        joined = axes == [f.axes[3]]
    else:
        joined = node.attr("axis", 0) % rank == f.axes[3] and set(node.inputs) == {x}
    return f._replace(value=x, columns=f.columns % width) if joined and isinstance(width, int) else None


def _before_gather(f: Factors, node: Node) -> Factors | None:
    """Before a Gather of columns."""
    x, index = node.present_inputs
    picked, width = ints(index), x.dim(f.column_axis)
    if picked is None or index.rank != 1 or node.attr("axis", 0) % (x.rank or 1) != f.axes[3]:
        return None
    return f._replace(value=x, columns=_from_front(picked, width)[f.columns]) if isinstance(width, int) else None


def _from_front(indices: tuple[int, ...], size: int) -> Array:
    array = np.array(indices, np.int64)
    return np.where(array < 0, array + size, array)


def _before_pick(f: Factors, node: Node) -> Factors | None:
    """Before a GatherND that selects columns and their copies; x has no axis for these."""
    copies, index = node.present_inputs
    x, pairs = copied_from_one(copies, 1), constant_of(index)
    width = copies.dim(0)
    if x is None or pairs is None or not isinstance(width, int) or pairs.rank != 2 or pairs.shape[1] != 2:
        return None
    if f.axes[3] != 0 or node.attr("batch_dims", 0):
        return None
    moved = f._replace(columns=_from_front(tuple(pairs.numpy()[:, 0].tolist()), width)[f.columns])
    return moved.moved(x, (0, *range(2, copies.rank or 0)))


def _before_copies(f: Factors, node: Node) -> Factors | None:
    """Before a Reshape that merges the columns with the last axis, along which all elements are copies."""
    copies, merged = node.input(0), f.value.shape
    shape = copies.shape if copies is not None and node.op == "Reshape" else None
    if copies is None or shape is None or merged is None:
        return None
    if len(shape) != len(merged) + 1 or f.axes[3] != len(merged) - 1:
        return None
    width, count = shape[-2:]
    if not isinstance(width, int) or not isinstance(count, int) or merged[-1] != width * count:
        return None
    x = copied_from_one(copies, len(shape) - 1)
    if x is None or not equal_shapes(shape[:-2], merged[:-1]):
        return None
    return f._replace(value=x, columns=f.columns // count).moved(x, tuple(range(len(shape))))


def _before_move(f: Factors, node: Node) -> Factors | None:
    """Before an Unsqueeze or Reshape that inserts axes, or a Transpose."""
    x = node.input(0)
    if x is None or x.rank is None:
        return None
    if node.op == "Transpose":
        return f.moved(x, transpose_perm(node))
    inserted = _inserted(node, x)
    if inserted is None:
        return None
    rest = iter(range(x.rank))
    return f.moved(x, tuple(None if i in inserted else next(rest) for i in range(x.rank + len(inserted))))


def _inserted(node: Node, x: Value) -> set[int] | None:
    """The axes of length 1 that an Unsqueeze or Reshape inserts; None for any other node."""
    dims, before = node.out.shape, list(x.shape or ())
    if node.op == "Unsqueeze":
        axes = axes_of(node)
        return None if axes is None or dims is None else {a % len(dims) for a in axes}
    if node.op != "Reshape" or dims is None:
        return None
    inserted = set()
    for axis, dim in enumerate(dims):
        if before and same_dim(dim, before[0]):
            del before[0]
        elif dim == 1:
            inserted.add(axis)
        else:
            return None
    return None if before else inserted
