"""Assignments to parts of a tensor, which exporters write as scatters at positions that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import constant_of, own_producer, producer_of
from ortconv.ir.types import DType, Shape
from ortconv.optimizer.basic.mask_index import LARGEST, runs_along, strides
from ortconv.optimizer.conditions import RESHAPES, array_of, equal_shapes, same_dim, uniform
from ortconv.optimizer.engine import Context, New, NewInput, Replacement, insert_new, rule
from ortconv.optimizer.parts import AxisRange, picked_part, sliced_part
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import compose, identity, transpose_perm

SCATTERS = ("ScatterND", "ScatterElements")


class Store(NamedTuple):
    """A block of x that a scatter writes: it starts at these positions, and covers every other axis."""

    x: Value
    starts: dict[int, int]
    updates: Value

    @property
    def part(self) -> AxisRange | None:
        """The range of the only axis that the block does not cover; None if there are several, or it is unknown."""
        if len(self.starts) != 1:
            return None
        ((axis, start),) = self.starts.items()
        size = self.updates.dim(axis)
        return AxisRange(self.x, axis, start, start + size) if isinstance(size, int) else None


def store_of(node: Node | None) -> Store | None:
    """The block that a scatter writes, if its indices count up from known positions and every element is written once."""
    if node is None or node.attr("reduction", "none") != "none":
        return None
    x, index, updates = node.present_inputs
    if not x.shape or not index.shape or updates.rank != x.rank:
        return None
    starts = _block(x.shape, index, node.attr("axis", 0)) if node.op == "ScatterElements" else _blocks(x.shape, index)
    return None if starts is None else Store(x, starts, updates)


def _block(shape: Shape, index: Value, axis: int) -> dict[int, int] | None:
    """Where the block of a ScatterElements starts."""
    axis, dims = axis % len(shape), index.shape or ()
    if not equal_shapes((*shape[:axis], dims[axis], *shape[axis + 1 :]) if len(dims) == len(shape) else None, dims):
        return None
    start = _start(index, axis)
    return None if start is None else _inside(shape, {axis: start}, dims)


def _start(index: Value, axis: int) -> int | None:
    """The first index, if all count up from it along the axis; else None."""
    number, const = uniform(index), constant_of(index)
    if number is not None:
        return int(number) if index.dim(axis) == 1 else None
    if const is None or not 0 < const.size <= LARGEST:
        return None
    along = np.moveaxis(const.numpy(), axis, -1)
    first = along[(0,) * (along.ndim - 1)]
    return int(first[0]) if (along == first).all() and (np.diff(first) == 1).all() else None


def _blocks(shape: Shape, index: Value) -> dict[int, int] | None:
    """Where the block of a ScatterND starts."""
    dims = index.shape or ()
    if dims[-1] != len(dims) - 1 or len(dims) - 1 > len(shape):
        return None
    grid = dims[:-1]
    starts = _constant_starts(index) if index.constant is not None else _computed_starts(index, grid)
    return None if starts is None else _inside(shape, dict(enumerate(starts)), grid)


def _constant_starts(index: Value) -> list[int] | None:
    array = array_of(index)
    if not 0 < array.size <= LARGEST:
        return None
    grid = array.shape[:-1]
    first = array[(0,) * len(grid)]
    return first.tolist() if np.array_equal(array - first, np.moveaxis(np.indices(grid), 0, -1)) else None


def _computed_starts(index: Value, grid: Shape) -> list[int] | None:
    """The starts, if each column of the indices counts up from zero along its axis, or is a number."""
    node = producer_of(index, "Concat")
    if node is None or node.attr("axis", 0) not in (-1, len(grid)) or len(node.inputs) != len(grid):
        return None
    starts: list[int] = []
    for axis, column in enumerate(node.present_inputs):
        number, steps = uniform(column), strides(column)
        if column.dim(-1) != 1:
            return None
        if number is not None and grid[axis] == 1:
            starts.append(int(number))
        elif steps is not None and runs_along(axis, steps[:-1], grid):
            starts.append(0)
        else:
            return None
    return starts


def _inside(shape: Shape, starts: dict[int, int], lengths: Shape) -> dict[int, int] | None:
    """The starts along the axes that are not written as a whole; None if the block is not known to be inside the tensor."""
    found = {axis: start for axis, start in starts.items() if start or not same_dim(lengths[axis], shape[axis])}
    for axis, start in found.items():
        size, length = shape[axis], lengths[axis]
        if not isinstance(size, int) or not isinstance(length, int) or not 0 <= start <= size - length:
            return None
    return found


@rule("StoreFusion", P(SCATTERS, "x", "index", "updates"))
def fuse_stores(m: Match) -> Replacement:
    """Stores of parts of a tensor, one after another  ->  Concat of the parts, or Pad

    The parts lie along one axis and do not overlap. Between them are parts of the tensor before the stores: constants, or
    Slices if that takes no more nodes.
    """
    last = store_of(m.root)
    if last is None or not last.starts:
        return last and last.updates
    readers = [reader for reader, slot in m.root.out.uses if slot == 0 and any(map(reader.is_op, SCATTERS))]
    if any(store_of(reader) is not None for reader in readers):
        return None
    stores = _chain(m.root, last)
    return _padded(last) if len(stores) == 1 else _joined(stores)


def _chain(node: Node, last: Store) -> list[Store]:
    """This store and those before it whose results only the next one reads."""
    found, ep = [last], node.ep
    while (before := own_producer(found[-1].x, *SCATTERS)) is not None and before.ep == ep:
        store = store_of(before)
        if store is None:
            break
        found.append(store)
    return found


_PADDED = (DType.FLOAT, DType.DOUBLE, DType.INT32, DType.INT64, DType.INT8, DType.UINT8)
"""Element types that Pad supports in every opset and release."""


def _padded(store: Store) -> Replacement:
    """Pad around a block that is written into a tensor of equal elements."""
    filler, shape, dims = uniform(store.x), store.x.shape or (), store.updates.shape or ()
    if filler is None or store.x.dtype not in _PADDED:
        return None
    before = [store.starts.get(axis, 0) for axis in range(len(shape))]
    after = [
        size - length - start if axis in store.starts and isinstance(size, int) and isinstance(length, int) else 0
        for axis, (size, length, start) in enumerate(zip(shape, dims, before))
    ]
    return New("Pad", [store.updates, np.array([*before, *after], np.int64), np.asarray(filler)], {"mode": "constant"})


def _joined(stores: list[Store]) -> Replacement:
    """Concat of the stored parts, and of the parts between them."""
    x, parts = stores[-1].x, _parts(stores)
    if parts is None:
        return None
    axis = parts[0][0].axis
    pieces = _pieces(x, axis, parts)
    slices = sum(isinstance(piece, New) for piece in pieces)
    return New("Concat", pieces, {"axis": axis}) if pieces and slices < len(stores) else None


def _parts(stores: list[Store]) -> list[tuple[AxisRange, Value]] | None:
    """The stored parts along one axis of known length, in order, with what is stored there last; None if they have other forms."""
    found = [(part, store.updates) for store in stores if (part := store.part) is not None]
    axes = {part.axis for part, _ in found}
    if len(found) < len(stores) or len(axes) != 1 or not isinstance(stores[-1].x.dim(min(axes)), int):
        return None
    last = {item[0][1:]: item for item in reversed(found)}
    return [last[bounds] for bounds in sorted(last)]


def _pieces(x: Value, axis: int, parts: Sequence[tuple[AxisRange, NewInput]]) -> list[NewInput]:
    """The parts of an axis, and those of x between them; [] if parts overlap."""
    pieces: list[NewInput] = []
    end, size = 0, x.dim(axis)
    for part, updates in parts:
        if part.start < end:
            return []
        pieces += [_rest(x, axis, end, part.start)] * (part.start > end) + [updates]
        end = part.end
    return pieces + ([_rest(x, axis, end, size)] if isinstance(size, int) and end < size else [])


def _rest(x: Value, axis: int, start: int, end: int) -> NewInput:
    """A part of the tensor before the stores."""
    const = constant_of(x)
    if const is not None:
        return np.ascontiguousarray(const.numpy().take(range(start, end), axis))
    return New("Slice", [x, *(np.array([n], np.int64) for n in (start, end, axis))], {})


@rule("TransposedStoreFusion", P("Transpose", P(SCATTERS, "x", "index", "updates", name="store")))
def fuse_transposed_stores(m: Match) -> Replacement:
    """Transpose(Transpose(x) with stored parts)  ->  Concat of the parts, transposed, and of the parts of x between them

    For Transposes that cancel out, as exporters write x[..., :n] = y.
    """
    node, back = m.node("store"), transpose_perm(m.root) or ()
    last = store_of(node)
    stores = _chain(node, last) if last is not None else []
    move = producer_of(stores[-1].x, "Transpose") if stores else None
    perm, parts = transpose_perm(move), _parts(stores)
    if move is None or perm is None or not parts or compose(perm, back) != identity(len(perm)):
        return None
    axis, attrs = perm[parts[0][0].axis], {"perm": Ints(back)}
    moved = [(part, New("Transpose", [updates], attrs)) for part, updates in parts]
    pieces = _pieces(move.present_inputs[0], axis, moved)
    return New("Concat", pieces, {"axis": axis}) if pieces else None


_STORE = P(SCATTERS, "x", "index", "updates", name="store", shared=True)


@rule("StoredPartElimination", P(("Slice", "Gather"), _STORE, ...))
def read_before_store(m: Match) -> Replacement:
    """Slice(stored x, part)  ->  what is stored there; Slice(stored x, other part)  ->  Slice(x, other part); also Gather

    The latter only if x has other readers: otherwise the store writes into the memory of x, and would have to copy it.
    """
    store = store_of(m.node("store"))
    part, wanted = store and store.part, picked_part(m.root.out)
    if store is None or part is None or wanted is None or part.axis != wanted.axis:
        return None
    common = range(max(part.start, wanted.start), min(part.end, wanted.end))
    if not common:
        return New(m.root.op, [store.x, *m.root.inputs[1:]], like=m.root) if len(store.x.uses) > 1 else None
    return _from_updates(m.root, store, part, wanted) if len(common) == wanted.end - wanted.start else None


def _from_updates(node: Node, store: Store, part: AxisRange, wanted: AxisRange) -> Replacement:
    """A part that has been stored; not another part of it by a Slice."""
    if node.op != "Gather" or node.present_inputs[1].rank:
        return store.updates if part == wanted._replace(x=part.x) else None
    before = producer_of(store.updates, *RESHAPES)
    x = None if before is None or part.end - part.start != 1 else before.present_inputs[0]
    if x is not None and equal_shapes(x.shape, node.out.shape):
        return x
    return New("Gather", [store.updates, np.array(wanted.start - part.start, np.int64)], {"axis": part.axis})


def join_stored_rows(graph: Graph, context: Context) -> int:
    """Slice(stored x, larger part)  ->  Concat(Slice(x, its first part), what is stored there), if the graph has that Slice

    Also with a Slice behind the stored part. So rows that depend on the rows before them are joined, not stored one by one.
    """
    places = {node: place for place, node in enumerate(graph)}
    return sum(_join(node, places, context) for node in reversed(context.nodes(graph, {("", "Slice")})))


def _join(root: Node, places: Mapping[Node, int], context: Context) -> bool:
    wanted = sliced_part(root.out)
    store = store_of(producer_of(wanted.x, *SCATTERS)) if wanted is not None else None
    pieces = [] if wanted is None or store is None else _around(store, wanted, _earlier(store.x, root, places))
    if not pieces or not context.may_touch(root):
        return False
    graph, label = root.parent, root.label
    joined = insert_new(New("Concat", pieces, {"axis": wanted.axis if wanted else 0}, types=[root.out.type]), root)
    graph.replace(root.out, joined.out)
    graph.remove_dead(root)
    context.record("StoredRowsFusion", label, 1, 1)
    return True


def _earlier(x: Value, root: Node, places: Mapping[Node, int]) -> dict[AxisRange | None, Value]:
    """The Slices of x that are before a node in its graph, by the part that they select."""
    readers = [reader for reader, slot in x.uses if slot == 0 and reader.is_op("Slice")]
    return {sliced_part(r.out): r.out for r in readers if places.get(r, len(places)) < places[root]}


def _around(store: Store, wanted: AxisRange, slices: Mapping[AxisRange | None, Value]) -> list[Value]:
    """What is stored, between Slices of the tensor before the store; [] if these are not the wanted part, or one is missing."""
    part = store.part
    if part is None or part.axis != wanted.axis:
        return []
    bounds = ((wanted.start, part.start), (part.end, wanted.end))
    rests = [[slices.get(AxisRange(store.x, part.axis, *ends))] * (ends[0] != ends[1]) for ends in bounds]
    pieces = [*rests[0], store.updates, *rests[1]]
    found = [piece for piece in pieces if piece is not None]
    return found if len(found) == len(pieces) > 1 else []
