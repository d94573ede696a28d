"""Recognizes the split of rows into heads: Transpose(Reshape(x)), with a scale before or after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.types import DType, Shape
from ortconv.optimizer.conditions import ints, scalar
from ortconv.optimizer.shapes import Element, dim_of, refined, target
from ortconv.optimizer.symbols import plus, times
from ortconv.records import dataclass

MICROSOFT = "com.microsoft"
SPLIT = (0, 2, 1, 3)
SWAP_HEADS = (0, 1, 3, 2, 4)
SPLIT_TRANSPOSED = (0, 2, 3, 1)
SWAP = (0, 1, 3, 2)
FLAT_SWAP = (0, 2, 1)


@dataclass(frozen=True, eq=False, slots=True)
class Heads:
    """Query, key or value. `source` has rows (batch, length, count * size), or heads (batch, count, length, size)."""

    source: Value
    count: int
    size: int
    scale: float
    nodes: tuple[Node, ...]
    """The nodes between the source and the product, beginning at the product."""
    rows: Shape | None
    """The shape (batch, length, hidden) of the source, if it has another rank."""
    whole: Value | None = None
    """The value in the form of heads, (batch, count, length, size), if the graph has it."""
    copies: int = 1
    """Number of query heads that share each of these heads."""


def alone(value: Value) -> Node | None:
    """The only reader of a value, if it reads the value once and the graph does not return it; else None."""
    if value.is_output or len(value.uses) != 1:
        return None
    ((node, _),) = value.uses
    return node if node.graph is value.graph else None


def perm_of(node: Node) -> tuple[int, ...]:
    """The permutation of a Transpose of rank 4; () for any other node."""
    return tuple(node.attr("perm", Ints((3, 2, 1, 0)))) if node.is_op("Transpose") else ()


def is_known(scale: float) -> bool:
    """True for a factor that the `scale` attribute can represent; there, zero means the default."""
    return math.isfinite(scale) and scale != 0


def unscaled(value: Value) -> tuple[Value, float]:
    """A value without the constant factors by which it is multiplied, and the product of these factors."""
    inner, factor, _ = _unscaled(value)
    return inner, factor


def _unscaled(value: Value) -> tuple[Value, float, tuple[Node, ...]]:
    factor, nodes = 1.0, []
    while (node := value.producer) is not None and node.domain == "" and node.op in ("Mul", "Div"):
        a, b = node.inputs
        if node.op == "Mul" and scalar(b) is None:
            a, b = b, a
        number = scalar(b)
        if a is None or b is None or b.constant is None or number is None or alone(value) is None:
            break
        if b.constant.rank > (a.rank or 0) or not number:
            break
        factor = factor * number if node.op == "Mul" else factor / number
        nodes.append(node)
        value = a
    return value, factor, tuple(nodes)


def split_heads(value: Value | None, *, transposed: bool = False) -> Heads | None:
    """The rows from which an operand (batch, heads, length, size) is computed; with `transposed`, (batch, heads, size, length)."""
    if value is None or value.dtype is not DType.FLOAT:
        return None
    value, scale, nodes = _unscaled(value)
    node = value.producer
    if node is None and value.constant is not None:
        return None if transposed else _constant_heads(value, scale, nodes)
    if node is not None and transposed and _swaps(node) and node.inputs[0] is not None:
        value, more, scaling = _unscaled(node.inputs[0])
        nodes, scale, transposed = (*nodes, node, *scaling), scale * more, False
    copies, join = repeats(value.producer), value.producer
    if join is not None and copies is not None and join.inputs[0] is not None and join.attr("axis", 0) in (1, -3):
        found = split_heads(join.inputs[0], transposed=transposed)
        return found and replace(found, scale=scale * found.scale, nodes=(*nodes, join, *found.nodes), copies=copies)
    stack = flattened(value)
    if stack is not None and join is not None:
        value, more, scaling = _unscaled(stack)
        nodes, scale = (*nodes, join, *scaling), scale * more
    found = _from_rows(value, scale, nodes, transposed)
    if found is not None or transposed:
        return found
    return _from_one_row(value, scale, nodes) or _as_they_are(value, scale, nodes)


def repeats(gather: Node | None) -> int | None:
    """Number of consecutive copies that a Gather makes of every slice along its axis; None if it does anything else."""
    x = None if gather is None or not gather.is_op("Gather") else gather.inputs[0]
    if gather is None or x is None or x.rank is None:
        return None
    index, axis = ints(gather.inputs[1]), gather.attr("axis", 0)
    count = x.dim(axis % x.rank) if -x.rank <= axis < x.rank else None
    if not index or not isinstance(count, int) or count < 1 or len(index) % count:
        return None
    copies = len(index) // count
    return copies if copies > 1 and index == tuple(i // copies for i in range(len(index))) else None


def _swaps(node: Node) -> bool:
    """True for a Transpose that swaps rows and columns of heads, with or without a common axis for batch and heads."""
    return perm_of(node) == SWAP or (node.is_op("Transpose") and tuple(node.attr("perm", Ints())) == FLAT_SWAP)


def flattened(value: Value) -> Value | None:
    """The heads (batch, count, ...) that a Reshape flattens to `value` by merging the first two axes; None if it does
    anything else.

    Of the three dimensions, two must be known to be correct: the other one follows.
    """
    node = value.producer
    x = None if node is None or not node.is_op("Reshape") else node.inputs[0]
    wanted = None if x is None or node is None else target(node)
    if x is None or wanted is None or x.rank != 4 or len(wanted) != 3 or value.rank != 3:
        return None
    batch, count, *rest = (dim_of(x, i) for i in range(4))
    whole = times(batch, count) if isinstance(batch, (int, str)) and isinstance(count, int) else None
    return x if _agree(wanted, value, (whole, *rest)) >= 2 and isinstance(count, int) and count > 0 else None


def unflattened(node: Node, dims: tuple[set[Element], int, set[Element], set[Element]]) -> bool:
    """True for a Reshape that splits the common axis of batch and heads into (batch, count, rows, columns)."""
    x, wanted = node.inputs[0], target(node) if node.is_op("Reshape") else None
    if x is None or wanted is None or x.rank != 3 or len(wanted) != 4:
        return False
    batch, count, rows, columns = dims
    sides: tuple[set[Element], ...] = (batch, {count}, rows, columns)
    known = [bool({w, d} & side) for w, d, side in zip(wanted, refined(wanted, node.out), sides)]
    return known[1] and sum(known) >= 3


def _agree(wanted: tuple[Element, ...], out: Value, dims: tuple[Element, ...]) -> int:
    """Number of dimensions of a Reshape's output that certainly equal those in `dims`."""
    return sum(d is not None and d in pair for d, *pair in zip(dims, wanted, refined(wanted, out)))


def _from_rows(value: Value, scale: float, nodes: tuple[Node, ...], transposed: bool) -> Heads | None:
    node = value.producer
    if node is None or perm_of(node) != (SPLIT_TRANSPOSED if transposed else SPLIT) or node.inputs[0] is None:
        return None
    reshape = node.inputs[0].producer
    found = None if reshape is None or not reshape.is_op("Reshape") else _split_of(reshape)
    if reshape is None or found is None or reshape.inputs[0] is None:
        return None
    source, more, scaling = _unscaled(reshape.inputs[0])
    count, size, rows = found
    whole = None if transposed or more != 1 else value
    return Heads(source, count, size, scale * more, (*nodes, node, reshape, *scaling), rows, whole)


def _from_one_row(value: Value, scale: float, nodes: tuple[Node, ...]) -> Heads | None:
    """Heads of one row, which a Reshape alone makes of (batch, 1, hidden)."""
    node = value.producer
    x = None if node is None or not node.is_op("Reshape") else node.inputs[0]
    if node is None or x is None or x.rank != 3 or value.rank != 4 or x.dim(1) != 1 or value.dim(2) != 1:
        return None
    count, size, hidden = value.dim(1), value.dim(3), x.dim(2)
    if not isinstance(count, int) or not isinstance(size, int) or hidden != count * size or not hidden:
        return None
    source, more, scaling = _unscaled(x)
    return Heads(source, count, size, scale * more, (*nodes, node, *scaling), None, value if more == 1 else None)


def _as_they_are(value: Value, scale: float, nodes: tuple[Node, ...]) -> Heads | None:
    """Heads that are not computed from rows directly: rotated heads, or heads that include those of earlier steps."""
    count, size = value.dim(1), value.dim(3)
    if value.rank != 4 or not isinstance(count, int) or not isinstance(size, int) or min(count, size) < 1:
        return None
    return Heads(value, count, size, scale, nodes, None, value)


def _constant_heads(value: Value, scale: float, nodes: tuple[Node, ...]) -> Heads | None:
    const = value.constant
    if const is None or const.rank != 4:
        return None
    batch, count, rows, size = const.shape
    return Heads(value, count, size, scale, nodes, (batch, rows, count * size))


def _split_of(reshape: Node) -> tuple[int, int, Shape | None] | None:
    """The number and size of the heads into which a Reshape splits the last axis, and the shape of rows if its input
    has another rank.
    """
    x, wanted = reshape.inputs[0], target(reshape)
    if x is None or wanted is None or len(wanted) != 4 or wanted.count(-1) > 1:
        return None
    dims = refined(wanted, reshape.out)
    hidden = x.dim(-1)
    if not isinstance(hidden, int) or hidden <= 0:
        return None
    pair = _divided(hidden, dims[2], dims[3])
    if pair is None:
        return None
    if x.rank == 3:
        kept = all(dims[i] == -1 or dim_of(x, i) in (wanted[i], dims[i]) for i in range(2))
        return (*pair, None) if kept else None
    batch, rows = dims[:2]
    if x.rank != 2 or not isinstance(batch, int) or not isinstance(rows, int) or batch * rows != x.dim(0):
        return None
    return (*pair, (batch, rows, hidden)) if batch > 0 and rows > 0 else None


def _divided(hidden: int, count: Element, size: Element) -> tuple[int, int] | None:
    """The number of heads and their size; one of the two may be unknown. None unless their product is the hidden size."""
    if isinstance(count, int) and count > 0 and not isinstance(size, int):
        return None
    if not isinstance(size, int) or not (isinstance(count, int) or count is None):
        return None
    if count in (-1, None) and size > 0:
        count = hidden // size
    elif size == -1 and isinstance(count, int) and count > 0:
        size = hidden // count
    if not isinstance(count, int) or count <= 0 or size <= 0 or count * size != hidden:
        return None
    return count, size


def length(heads: Heads, axis: int) -> set[Element]:
    """All elements known to equal the batch (axis 0) or the number of rows (axis 1)."""
    if heads.rows is not None:
        return {heads.rows[axis]}
    if heads.source is heads.whole:
        join = heads.source.producer
        parts = [] if join is None or not join.is_op("Concat") else [v for v in join.inputs if v is not None]
        if parts and join is not None and join.attr("axis", 0) % 4 == 2 * axis:
            whole = plus(*(v.dim(2 * axis) for v in parts))  # the declared shape of a graph output may be wrong
            return {dim_of(heads.source, 2 * axis) if whole is None else whole}
        return {dim_of(value, 2 * axis) for value in (heads.source, *parts)}
    return {dim_of(value, axis) for value in row_sources(heads.source)}


def row_sources(value: Value | None) -> Iterator[Value]:
    """The values with equal batch and number of rows along the projection that computes these rows, last one first."""
    while value is not None and value.rank == 3:
        yield value
        node = value.producer
        if node is None or (node.domain != "" and node.op != "RotaryEmbedding"):
            return
        a, b = (node.input(i) for i in range(2))
        if node.op == "RotaryEmbedding":
            value = a
        elif node.op == "Add" and a is not None and b is not None:
            value = a if b.rank == 1 else b if a.rank == 1 else None
        elif node.op == "MatMul" and b is not None and b.rank == 2:
            value = a
        else:
            return
