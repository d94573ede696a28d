"""Recognizes the split of rows into heads: Transpose(Reshape(x)), with a scale before or after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import ints, own_producer, producer_of, scalar
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.symbols import plus, times
from ortconv.ir.types import Dim, DType, Shape
from ortconv.optimizer.conditions import keeps_rank, numbers, with_open
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, output_dims, refined, target

SPLIT = (0, 2, 1, 3)
SWAP_HEADS = (0, 1, 3, 2, 4)
SPLIT_TRANSPOSED = (0, 2, 3, 1)
LENGTH_FIRST: dict[tuple[int, ...], tuple[int, ...]] = {SPLIT: (1, 2, 0, 3), SPLIT_TRANSPOSED: (1, 2, 3, 0)}
"""For a Transpose of (batch, length, count, size), the one of (length, batch, count, size) with the same result."""
SWAP = (0, 1, 3, 2)
FLAT_SWAP = (0, 2, 1)


@dataclass(frozen=True, eq=False, slots=True)
class Heads:
    """Query, key or value. `source` has rows (batch, length, count * size), heads (batch, count, length, size), or rows of
    heads (batch, length, count, size).
    """

    source: Value
    count: int
    size: int
    scale: float
    nodes: tuple[Node, ...]
    """The nodes between the source and the product, beginning at the product."""
    rows: Shape | None
    """The shape (batch, length, hidden) of the source, if it has another one."""
    whole: Value | None = None
    """The value in the form of heads, (batch, count, length, size), if the graph has it."""
    copies: int = 1
    """Number of query heads that share each of these heads."""
    length_axis: int = 1
    """The axis of the source with its rows, if it has no other form; 0 if the length is first, with a batch of one."""

    @property
    def is_whole(self) -> bool:
        """True if the source has the form of heads, and is computed."""
        return self.source is self.whole and self.source.constant is None


class Path(NamedTuple):
    """A way back from an operand of a product."""

    value: Value
    """The value that it has reached."""
    scale: float = 1.0
    """The product of the constant factors on the way."""
    nodes: tuple[Node, ...] = ()
    """The nodes on the way, beginning at the operand."""

    def through(self) -> Path:
        """The path continued through the node that computes its value, to the first input."""
        node = self.value.producer
        assert node is not None
        return Path(node.present_inputs[0], self.scale, (*self.nodes, node))

    def unscaled(self) -> Path:
        """The path continued through all Mul and Div by a constant number."""
        path = self
        while (scaling := scaling_of(path.value)) is not None:
            node, value, number = scaling
            scale = path.scale * number if node.op == "Mul" else path.scale / number
            path = Path(value, scale, (*path.nodes, node))
        return path


def scaling_of(value: Value) -> tuple[Node, Value, float] | None:
    """A Mul or Div by a constant number that computes a value for one reader, its other input and the number; else None."""
    node = own_producer(value, "Mul", "Div")
    if node is None:
        return None
    a, b = node.inputs
    if node.op == "Mul" and scalar(b) is None:
        a, b = b, a
    number = scalar(b)
    return (node, a, number) if a is not None and b is not None and number and keeps_rank(a, b) else None


def split_heads(value: Value | None, *, transposed: bool = False) -> Heads | None:
    """The rows from which an operand (batch, heads, length, size) is computed; with `transposed`, (batch, heads, size, length)."""
    if value is None or value.dtype is not DType.FLOAT:
        return None
    path = Path(value).unscaled()
    if path.value.constant is not None:
        return None if transposed else _constant_heads(path)
    if transposed and transpose_perm(path.value.producer) in (SWAP, FLAT_SWAP):  # rows and columns are swapped
        return _heads_of(path.through().unscaled(), transposed=False)
    return _heads_of(path, transposed)


def _heads_of(path: Path, transposed: bool) -> Heads | None:
    gather = producer_of(path.value, "Gather")
    copies = None if gather is None or gather.attr("axis", 0) not in (1, -3) else repeats(gather)
    if copies is not None:
        inner = path.through()
        found = split_heads(inner.value, transposed=transposed)
        nodes, scale = inner.nodes, inner.scale
        return found and replace(found, scale=scale * found.scale, nodes=(*nodes, *found.nodes), copies=copies)
    if flattened(path.value) is not None:
        path = path.through().unscaled()
    found = _from_rows(path, SPLIT_TRANSPOSED if transposed else SPLIT)
    return found if found is not None or transposed else _from_one_row(path) or _as_they_are(path)


def repeats(gather: Node) -> int | None:
    """Number of consecutive copies that a Gather makes of every slice along its axis; None if it does anything else."""
    index = ints(gather.inputs[1])
    count = gather.dim(0, gather.attr("axis", 0))
    if not index or not isinstance(count, int) or count < 1 or len(index) % count:
        return None
    copies = len(index) // count
    return copies if copies > 1 and index == tuple(i // copies for i in range(len(index))) else None


def flattened(value: Value) -> Value | None:
    """The heads (batch, count, ...) that a Reshape flattens to `value` by merging the first two axes; None if it does
    anything else.

    Of the three dimensions, two must be known to be correct: the other one follows.
    """
    node = producer_of(value, "Reshape")
    x, dims = None if node is None else node.inputs[0], output_dims(node)
    if x is None or (x.rank, len(dims), value.rank) != (4, 3, 3) or not numbers(x.dim(1)):
        return None
    wanted = (times(x.dim(0), x.dim(1)), dim_of(x, 2), dim_of(x, 3))
    return x if sum(d in known for d, known in zip(wanted, dims)) >= 2 else None


def unflattened(node: Node, dims: Sequence[set[Element]]) -> bool:
    """True for a Reshape that splits the common axis of batch and heads into axes of these dimensions: batch, heads, rows, columns.

    Each set has all elements known to equal the dimension.
    """
    x = node.inputs[0]
    found = output_dims(node) if node.is_op("Reshape") else []
    if x is None or x.rank != 3 or len(found) != 4:
        return False
    known = [bool(side & its) for side, its in zip(dims, found)]
    return known[1] and sum(known) >= 3


def _from_rows(path: Path, perm: tuple[int, ...]) -> Heads | None:
    """Heads that a Transpose with this permutation moves before the rows. A Reshape splits them from rows, or they are apart."""
    transpose = path.value.producer
    found = transpose_perm(transpose)
    if transpose is None or found not in (perm, LENGTH_FIRST[perm]):
        return None
    reshape = producer_of(transpose.inputs[0], "Reshape")
    split = None if reshape is None else split_of(reshape)
    if split is None:
        heads = _from_heads_of_rows(path, perm)
    else:
        count, size, shape = split
        rows = path.through().through().unscaled()
        whole = path.value if perm == SPLIT and rows.scale == path.scale else None
        heads = Heads(rows.value, count, size, rows.scale, rows.nodes, shape, whole)
    return heads if found == perm else heads and _of_one_batch(heads)


def _of_one_batch(heads: Heads) -> Heads | None:
    """Heads of (length, 1, count, size) as those of a batch of one."""
    rows = heads.rows or heads.source.shape or ()
    if len(rows) != 3 or rows[0] is None or rows[1] != 1:
        return None
    return replace(heads, rows=(1, rows[0], rows[2]), length_axis=0)


def _from_heads_of_rows(path: Path, perm: tuple[int, ...]) -> Heads | None:
    """Heads that a Transpose with this permutation moves before the rows, from (batch, length, count, size).

    A CPU node must compute these: NNAPI would take the Reshape that attention needs.
    """
    split, transpose = path.through().unscaled(), path.value.producer
    x, node, dims = split.value, split.value.producer, split.value.shape or ()
    sizes, outer = numbers(*dims[2:]), dims[:2]
    if node is None or transpose is None or node.ep != transpose.ep or node.domain not in ("", MICROSOFT):
        return None
    if len(sizes) != 2 or None in outer:
        return None
    whole = path.value if perm == SPLIT and split.scale == path.scale else None
    return Heads(x, *sizes, split.scale, split.nodes, (*outer, prod(sizes)), whole)


def _from_one_row(path: Path) -> Heads | None:
    """Heads of one row, which a Reshape alone makes of (batch, 1, hidden), or flattened ones of (batch, 1, heads, size)."""
    heads, node = path.value, producer_of(path.value, "Reshape")
    x = None if node is None else node.inputs[0]
    if x is None or x.rank not in (3, 4) or x.dim(1) != 1 or heads.dim(-2) != 1:
        return None
    sizes = numbers(heads.dim(1), heads.dim(3)) if heads.rank == 4 else numbers(*(x.shape or ())[2:])
    if len(sizes) != 2 or (x.shape or ())[2:] not in (sizes, (prod(sizes),)):
        return None
    count, size = sizes
    if heads.rank != 4 and heads.shape != (times(x.dim(0), count), 1, size):
        return None
    row = path.through().unscaled()
    rows = None if row.value.rank == 3 else (x.dim(0), 1, count * size)
    is_whole = heads.rank == 4 and row.scale == path.scale
    return Heads(row.value, count, size, row.scale, row.nodes, rows, heads if is_whole else None)


def split_of_one_row(reshape: Node) -> tuple[int, int] | None:
    """The number and size of the heads (batch, count, 1, size) into which a Reshape splits (batch, 1, hidden); else None."""
    x, heads = reshape.present_inputs[0], reshape.out
    sizes = numbers(heads.dim(1), heads.dim(3)) if (x.rank, heads.rank) == (3, 4) else ()
    is_split = sizes and heads.dim(2) == x.dim(1) == 1 and x.dim(2) == prod(sizes)
    return (sizes[0], sizes[1]) if is_split else None


def ungrouped(heads: Heads, copies: int) -> Heads | None:
    """The heads of one row that a Reshape arranges in groups, (batch, groups, copies, size); None if there are none."""
    node, count = producer_of(heads.whole, "Reshape"), heads.count * copies
    x = None if node is None else node.inputs[0]
    if node is None or x is None or heads.source is not heads.whole or x.rank is None:
        return None
    nodes, dims = (*heads.nodes, node), (x.shape or ())[1:]
    if dims == (1, count * heads.size):
        return Heads(x, count, heads.size, heads.scale, nodes, None)
    row = split_heads(x) if dims == (count, 1, heads.size) else None
    return row and replace(row, scale=heads.scale * row.scale, nodes=(*nodes, *row.nodes))


def _as_they_are(path: Path) -> Heads | None:
    """Heads that are not computed from rows directly: rotated heads, or heads that include those of earlier steps."""
    heads = path.value
    sizes = numbers(heads.dim(1), heads.dim(3))
    return Heads(heads, *sizes, path.scale, path.nodes, None, heads) if heads.rank == 4 and len(sizes) == 2 else None


def _constant_heads(path: Path) -> Heads | None:
    const = path.value.constant
    if const is None or const.rank != 4:
        return None
    batch, count, rows, size = const.shape
    return Heads(path.value, count, size, path.scale, path.nodes, (batch, rows, count * size))


def split_of(reshape: Node, *parts: int, axis: int = 2) -> tuple[int, int, Shape | None] | None:
    """The number and size of the heads into which a Reshape splits the last axis, and the shape of rows if its input
    has another rank. `parts` are the sizes of axes that begin at `axis`; the shape of rows is that of one part.
    """
    x, wanted = reshape.inputs[0], target(reshape)
    if x is None or wanted is None or len(wanted) != 4 + len(parts) or wanted.count(-1) > 1:
        return None
    refined_dims, end = refined(wanted, reshape.out), axis + len(parts)
    dims = (*refined_dims[:axis], *refined_dims[end:])
    pair = _divided(x.dim(-1), prod(parts), *dims[-2:])
    if pair is None or refined_dims[axis:end] != parts:
        return None
    if x.rank == 3:
        kept = all(dims[i] == -1 or dim_of(x, i) in (wanted[i], dims[i]) for i in range(2))
        return (*pair, None) if kept else None
    outer = [d for i, e in enumerate(dims[:2]) if isinstance(d := reshape.out.dim(i) if e == -1 else e, (int, str))]
    flattens = x.rank == 2 and len(outer) == 2 and times(*outer) == x.dim(0) and with_open(outer).count(-1) < 2
    return (*pair, (*outer, prod(pair))) if flattens else None


def _divided(hidden: Dim, parts: int, count: Element, size: Element) -> tuple[int, int] | None:
    """The number of heads, maybe unknown, and their size, whose product in all parts is `hidden`; one may be -1. Else None."""
    match hidden, count, size:
        case int(), None | -1, int() if size > 0:
            count = hidden // (parts * size)
        case int(), int(), -1 if count > 0:
            size = hidden // (parts * count)
    pair = numbers(count, size)
    return (pair[0], pair[1]) if pair and parts * prod(pair) == hidden else None


def length(heads: Heads, axis: int) -> set[Element]:
    """All elements known to equal the batch (axis 0) or the number of rows (axis 1)."""
    if heads.rows is not None:
        return {heads.rows[axis]}
    if heads.source is not heads.whole:
        return {dim_of(value, axis) for value in row_sources(heads.source)}
    axis *= 2
    join = producer_of(heads.source, "Concat")
    if join is None:
        return {dim_of(heads.source, axis)}
    parts = join.present_inputs
    if join.attr("axis", 0) % 4 != axis:
        return {dim_of(value, axis) for value in (heads.source, *parts)}
    whole = plus(*(v.dim(axis) for v in parts))  # the declared shape of a graph output may be wrong
    return {dim_of(heads.source, axis) if whole is None else whole}


def row_sources(value: Value | None) -> Iterator[Value]:
    """The values with equal batch and number of rows along the projection that computes these rows, last one first."""
    while value is not None and value.rank == 3:
        yield value
        value = _rows_before(value.producer)


def _rows_before(node: Node | None) -> Value | None:
    """The input of a node that computes each row from the same row of this input; None for any other node."""
    if node is None:
        return None
    if node.op == "RotaryEmbedding":
        return node.inputs[0]
    if node.domain != "" or node.op not in _BESIDE_ROWS:
        return None
    a, b = node.inputs
    if b is not None and b.rank == _BESIDE_ROWS[node.op]:
        return a
    return b if node.op == "Add" and a is not None and a.rank == 1 else None


_BESIDE_ROWS = {"Add": 1, "MatMul": 2}
"""The rank of the other operand: a bias, or weights."""
