"""Query, key and value, or the last two, selected along an axis of their own become parts of rows, or columns of each head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, ints, reader_of
from ortconv.ir.types import Shape, TensorType
from ortconv.optimizer.conditions import numbers
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.extended.attention.heads import SPLIT_TRANSPOSED, split_of
from ortconv.optimizer.insertion import insert, integers, with_list
from ortconv.optimizer.parts import gathered, part_of
from ortconv.optimizer.permutation import Perm, identity, permuted_type, transpose_perm
from ortconv.optimizer.shapes import Element, dim_of, refined, target

PARTS, KEYS_AND_VALUES = 3, 2
BEFORE_HEADS, IN_HEADS, BEFORE_HEADS_ALONE = 2, 3, 1
"""The axis of the parts in (batch, rows, parts, heads, size), (batch, rows, heads, parts, size) and (rows, parts, heads, size)."""

FORMS = ((PARTS, BEFORE_HEADS), (PARTS, IN_HEADS), (KEYS_AND_VALUES, BEFORE_HEADS))
"""The numbers of parts, and their axis. Two parts in each head are those of a rotation."""

ADDED = -1
"""An axis of length 1 that the Reshape or an Unsqueeze adds."""


class Packed(NamedTuple):
    """A Reshape that splits rows into parts."""

    axes: Perm
    """The axes of the result: their numbers without added ones, or ADDED."""
    axis: int
    """The number of the axis of the parts."""
    parts: int
    shape: Shape
    """The shape of one part."""
    together: Shape | None = None
    """The target of a Reshape of the rows whose last axis has all parts, if their own last axis has not."""
    target: Shape | None = None
    """The target of a Reshape of one part, if it needs one."""


class Pick(NamedTuple):
    """A part whose axis is gone, or which only a Reshape reads, and how it permutes the axes of the part."""

    value: Value
    part: int
    perm: Perm
    keeps: bool = False
    """True if the part still has its axis, and other nodes read it."""


class _View(NamedTuple):
    """A value with all parts, or with one part, whose axis it still has."""

    value: Value
    axes: Perm
    """As `axes` of Packed."""
    axis: int
    """As `axis` of Packed."""
    part: int | None = None

    @property
    def place(self) -> int:
        """The position of the axis of the parts."""
        return self.axes.index(self.axis)

    @property
    def perm(self) -> Perm:
        """How the axes of a part are permuted."""
        return tuple(a - (a > self.axis) for a in self.axes if a not in (self.axis, ADDED))


def fuse(graph: Graph, context: Context) -> int:
    """Reshape(x, (..., 3, size))[..., i, :]  ->  Split(x)[i];
    Reshape(x, (batch, rows, 3, heads, size))[:, :, i]  ->  Reshape(Split(x)[i]);
    Reshape(x, (batch, rows, heads, 3, size))[:, :, :, i]  ->  Split(Reshape(x, (batch, rows, heads, 3 * size)))[i];
    also behind a Transpose, which then follows; the first two also with two parts; three also without a batch
    """
    reshapes = (node for node in graph if node.is_op("Reshape"))
    return sum(any(_fuse(packed, node, context) for packed in _forms(node)) for node in reshapes)


def _fuse(packed: Packed, reshape: Node, context: Context) -> bool:
    graph, passed = reshape.parent, list[Node]()
    picks = _picks(_View(reshape.out, packed.axes, packed.axis), passed)
    if not picks or not context.may_touch(reshape, *passed):
        return False
    if all(pick.perm == SPLIT_TRANSPOSED for pick in picks):  # scores of columns, not rows
        return False
    near = reader_of(reshape.out, "Transpose") or reshape
    before, label, x = len(graph), near.label, reshape.present_inputs[0]
    parts = _split(x, packed, reshape, near)
    if packed.target is not None:
        wanted, type = integers(graph, packed.target, x, "heads"), _type(reshape, packed.shape)
        parts = [insert("Reshape", [part, wanted], type, near) for part in parts]
    for pick in picks:
        graph.replace(pick.value, _picked(pick, parts[pick.part], packed.axis, near))
    for node in (*reversed(passed), *(part.producer for part in parts)):
        if node is not None:
            graph.remove_dead(node)
    context.record("PackedHeadsFusion", label, max(0, before - len(graph)), max(0, len(graph) - before))
    return True


def _picked(pick: Pick, part: Value, axis: int, before: Node) -> Value:
    """The value that replaces that of a pick."""
    if pick.keeps:
        inputs, attrs = with_list(before.parent, "Unsqueeze", part, (axis,))
        return insert("Unsqueeze", inputs, pick.value.type, before, attrs)
    if pick.perm == identity(len(pick.perm)):
        return part
    return insert("Transpose", [part], permuted_type(part.type, pick.perm), before, {"perm": Ints(pick.perm)})


def _forms(reshape: Node) -> Iterator[Packed]:
    """The ways in which a Reshape may split rows into parts, judged by its dimensions."""
    outer = (reshape.out.dim(0), reshape.out.dim(1))
    for parts, axis in FORMS:
        found = split_of(reshape, parts, axis=axis)
        if found is not None:
            heads, size, rows = found
            copied = rows[:2] if rows else (0, 0)
            together = (*copied, heads, parts * size) if axis == IN_HEADS else None
            own = (*copied, heads, size) if axis == BEFORE_HEADS else None
            yield Packed(identity(5), axis, parts, (*outer, heads, size), together, own)
    yield from filter(None, (_packed_matrix(reshape), _packed_rows(reshape)))


def _packed_matrix(reshape: Node) -> Packed | None:
    """A Reshape of (rows, 3 * heads * size) to (rows, 3, heads, size)."""
    x, wanted = reshape.present_inputs[0], target(reshape)
    dims = () if wanted is None else refined(wanted, reshape.out)
    known = numbers(x.dim(-1), *dims[1:])
    if x.rank != 2 or len(known) != 4 or known[1] != PARTS or known[0] != prod(known[1:]):
        return None
    return Packed(identity(4), BEFORE_HEADS_ALONE, PARTS, (reshape.out.dim(0), *known[2:]), None, (0, *known[2:]))


def _packed_rows(reshape: Node) -> Packed | None:
    """A Reshape of (..., 3 * size) to (..., 3, size), perhaps with leading axes of length 1; also of a matrix, if all is known."""
    x, wanted = reshape.inputs[0], target(reshape)
    if x is None or wanted is None or len(wanted) < 2 or not x.rank or wanted.count(-1) > 1:
        return None
    dims = refined(wanted, reshape.out)
    known = numbers(x.dim(-1), *dims[-2:])
    if not known or known[1] not in (KEYS_AND_VALUES, PARTS) or known[0] != known[1] * known[2]:
        return None
    _, parts, size = known
    added = _leading_ones(dims[:-2], max(x.rank - 1, 2))
    outer, own = dims[added:-2], None
    if x.rank == len(outer) + 1:
        kept = all(e == -1 or dim_of(x, i) in (e, outer[i]) for i, e in enumerate(wanted[added:-2]))
    else:
        lead = numbers(*outer)
        kept, own = x.rank == 2 and bool(lead) and prod(lead) == x.dim(0), (*lead, size)
    shape = (*(reshape.out.dim(added + i) for i in range(len(outer))), size)
    axes = (*(ADDED,) * added, *identity(len(outer) + 2))
    return Packed(axes, len(outer), parts, shape, None, own) if kept and outer else None


def _leading_ones(dims: Sequence[Element], rest: int) -> int:
    """The number of leading dimensions of 1 without which at least `rest` dimensions remain."""
    ones = next((i for i, d in enumerate(dims) if d != 1), len(dims))
    return max(0, min(ones, len(dims) - rest))


# ---------------------------------------------------------------------- the readers


def _picks(view: _View, passed: list[Node]) -> list[Pick] | None:
    """The parts that the readers of a value select, and the nodes on the way; None if there are other readers."""
    way = list[Node]()
    found = _picks_behind(view, way)
    if found is None and view.part is not None and (view.axes, view.axis) == (identity(4), BEFORE_HEADS_ALONE):
        return [Pick(view.value, view.part, view.perm, keeps=True)]
    passed += way
    return found


def _picks_behind(view: _View, passed: list[Node]) -> list[Pick] | None:
    x, found = view.value, list[Pick]()
    for node in x.consumers:
        if node.graph is not x.graph or node.inputs[0] is not x:
            return None
        passed.append(node)
        for value in node.outputs:
            inner = None if value is None else _picks_of(value, view, passed)
            if inner is None:
                return None
            found += inner
    return None if x.is_output else found


def _picks_of(value: Value, view: _View, passed: list[Node]) -> list[Pick] | None:
    """The parts that an output of a reader of a view is or leads to; None if it is anything else."""
    node = value.producer
    step = None if node is None or node.domain else _STEPS.get(node.op)
    found = None if node is None or step is None else step(node, value, view)
    return [found] if isinstance(found, Pick) else None if found is None else _picks(found, passed)


def _turned(node: Node, value: Value, view: _View) -> _View | None:
    perm = transpose_perm(node)
    return None if perm is None else view._replace(value=value, axes=tuple(view.axes[i] for i in perm))


def _unsqueezed(node: Node, value: Value, view: _View) -> _View | None:
    added = axes_of(node)
    if not added or value.rank != len(view.axes) + len(added):
        return None
    places = {a % value.rank for a in added}
    rest = iter(view.axes)
    return view._replace(value=value, axes=tuple(ADDED if i in places else next(rest) for i in range(value.rank)))


def _squeezed(node: Node, value: Value, view: _View) -> Pick | _View | None:
    """A part without its axis, or a view without added axes."""
    axes = view.axes
    gone = {a % len(axes) for a in axes_of(node) or ()}
    rest = tuple(a for i, a in enumerate(axes) if i not in gone)
    if view.part is not None and view.axis not in rest and ADDED not in rest and len(rest) == len(view.perm):
        return Pick(value, view.part, view.perm)
    return view._replace(value=value, axes=rest) if gone and all(axes[i] == ADDED for i in gone) else None


def _gathered(node: Node, value: Value, view: _View) -> Pick | _View | None:
    """A part without its axis that a scalar index selects, or one with it."""
    taken = gathered(value, keeps=False)
    if taken is None:
        return _selected(node, value, view)
    if ADDED in view.axes or taken.axis != view.place:
        return None
    return Pick(value, taken.start if view.part is None else view.part, view.perm)


def _selected(node: Node, value: Value, view: _View) -> _View | None:
    """A part that keeps its axis."""
    kept = gathered(value, keeps=True) or part_of(value)
    if view.part is not None or kept is None or kept.axis != view.place or kept.end - kept.start != 1:
        return None
    return view._replace(value=value, part=kept.start)


def _reshaped(node: Node, value: Value, view: _View) -> Pick | None:
    """A part that only this Reshape reads, to a shape in which no 0 refers to an axis of the part."""
    reshape = reader_of(view.value, "Reshape")
    shape = None if reshape is None or view.part is None else ints(reshape.input(1))
    return None if shape is None or view.part is None or 0 in shape else Pick(view.value, view.part, view.perm)


_STEPS: dict[str, Callable[[Node, Value, _View], Pick | _View | None]] = {
    "Gather": _gathered,
    "Reshape": _reshaped,
    "Slice": _selected,
    "Split": _selected,
    "Squeeze": _squeezed,
    "Transpose": _turned,
    "Unsqueeze": _unsqueezed,
}
"""What an output of a reader of a view is: a part, or another view; None if it is anything else."""


# ---------------------------------------------------------------------- the parts


def _split(x: Value, packed: Packed, reshape: Node, near: Node) -> list[Value]:
    """The parts, or the rows of each part: equal parts of the last axis."""
    graph = near.parent
    if packed.together is not None:
        inputs = [x, integers(graph, packed.together, x, "heads")]
        type = _type(reshape, (*packed.shape[:-1], packed.together[-1]))
        x = insert("Reshape", inputs, type, near, name=reshape.name)
    *outer, width = x.shape or ()
    assert isinstance(width, int)
    part = width // packed.parts
    inputs, attrs = with_list(graph, "Split", x, [part] * packed.parts, "parts", axis=len(outer))
    types = [_type(reshape, (*outer, part))] * packed.parts
    name = graph.fresh(f"{near.name or near.out.name}/Split")
    return insert_node("Split", inputs, packed.parts, types, near, attrs, name=name).present_outputs


def _type(reshape: Node, shape: Shape) -> TensorType:
    dtype = reshape.out.dtype
    assert dtype is not None
    return TensorType(dtype, shape)
