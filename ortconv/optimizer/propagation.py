"""Infers shapes from symbolic dimensions, beyond onnx's inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import axes_of
from ortconv.ir.operators import Trait, named
from ortconv.ir.resize import has_sizes, resizing
from ortconv.ir.shape_rules import joined, multiplied, window_shape
from ortconv.ir.slices import axis_slices
from ortconv.ir.symbols import (
    as_dim,
    broadcast_shapes,
    is_anonymous,
    is_vague,
    minus,
    more_exact,
    plus,
    quotient,
    times,
)
from ortconv.ir.types import Dim, DType, Shape, TensorType
from ortconv.optimizer.conditions import RESHAPES, split_sizes, stated_pads
from ortconv.optimizer.engine import Context
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.shapes import COMPUTES_SHAPES, DimOf, Element, elements, target

# ---------------------------------------------------------------------- shapes of results


def _same(node: Node) -> Shape | None:
    return None if node.inputs[0] is None else node.inputs[0].shape


def _shapes(node: Node) -> list[Shape]:
    """The shapes of a node's inputs; [] if one is unknown."""
    known = [v.shape for v in node.present_inputs if v.shape is not None]
    return known if len(known) == len(node.inputs) else []


def _reshaped(node: Node) -> Shape | None:
    x, wanted = node.inputs[0], target(node)
    if x is None or wanted is None:
        return None
    dims = list(map(as_dim, wanted))
    if wanted.count(-1) == 1 and x.shape is not None and 0 not in (*x.shape, *dims):
        dims[wanted.index(-1)] = _open_dim(x, x.shape, wanted)
    return tuple(dims)


def _open_dim(x: Value, shape: Shape, wanted: Sequence[Element]) -> Dim:
    """The dimension that a Reshape of x to these elements computes for -1; None if it is unknown."""
    copied = [e for e in wanted if isinstance(e, DimOf) and e.value is x]
    rest = [dim for i, dim in enumerate(shape) if DimOf(x, i) not in copied]
    others = [as_dim(e) for e in wanted if e != -1 and e not in copied]
    return quotient(rest, others) if len(copied) == len(set(copied)) else None


def _multiplied(node: Node) -> Shape | None:
    a, b = (None if v is None else v.shape for v in node.inputs[:2])
    return multiplied(a, b)


def _convolved(node: Node) -> Shape | None:
    x, w = (None if v is None else v.shape for v in node.inputs[:2])
    if x is None or w is None or len(w) != len(x) or len(x) < 3:
        return None
    return (x[0], w[0], *window_shape(node, x[2:], w[2:]))


def _transposed(node: Node) -> Shape | None:
    shape, perm = _same(node), transpose_perm(node)
    if shape is None or perm is None or len(perm) != len(shape):
        return None
    return tuple(shape[i] for i in perm)


def _gathered(node: Node) -> Shape | None:
    shapes, axis = _shapes(node), node.attr("axis", 0)
    if not shapes or not -len(shapes[0]) <= axis < len(shapes[0]):
        return None
    data, index = shapes
    return (*data[: axis % len(data)], *index, *data[axis % len(data) + 1 :])


def _expanded(node: Node) -> Shape | None:
    wanted = elements(node.inputs[1])
    return None if wanted is None else broadcast_shapes([_same(node), tuple(map(as_dim, wanted))])


def _tiled(node: Node) -> Shape | None:
    shape, repeats = _same(node), elements(node.input(1))
    if shape is None or repeats is None or len(repeats) != len(shape):
        return None
    return tuple(times(dim, as_dim(count)) for dim, count in zip(shape, repeats))


def _filled(node: Node) -> Shape | None:
    wanted = elements(node.inputs[0])
    return None if wanted is None else tuple(map(as_dim, wanted))


def _counted(node: Node) -> Shape | None:
    """The shape of a Range of integers."""
    numbers = [e[0] for v in node.inputs if (e := elements(v)) is not None and len(e) == 1]
    if node.out.dtype not in (DType.INT64, DType.INT32) or len(numbers) < 3:
        return None
    start, limit, step = numbers
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int) and step:
        return (len(range(start, limit, step)),)
    return (minus(as_dim(limit), as_dim(start)) if step == 1 else None,)


def _reduced(node: Node) -> Shape | None:
    shape, axes = _same(node), axes_of(node)
    if shape is None or not axes or not all(-len(shape) <= axis < len(shape) for axis in axes):
        return None
    over = {axis % len(shape) for axis in axes}
    keeps = node.attr("keepdims", 1) != 0
    return tuple(1 if i in over else dim for i, dim in enumerate(shape) if keeps or i not in over)


def _rank(node: Node) -> Shape | None:
    """The shape of a Shape."""
    found = elements(node.out)
    return None if found is None else (len(found),)


def _padded(node: Node) -> Shape | None:
    shape = _same(node)
    pads = None if shape is None else stated_pads(node, len(shape))
    return shape and pads and tuple(map(plus, shape, pads, pads[len(shape) :]))


def _resized(node: Node) -> Shape | None:
    shape = _same(node)
    return resizing(node, elements).shape(shape) if shape is not None and has_sizes(node) else None


def _sliced(node: Node) -> Shape | None:
    shape, parts = _same(node), axis_slices(node, elements)
    if shape is None or parts is None or "starts" in node.attrs:
        return None
    dims = list(shape)
    if any(part.axis >= len(dims) for part in parts):  # more bounds than axes, which onnxruntime refuses when it runs
        return None
    for part in parts:
        dims[part.axis] = part.length(dims[part.axis])
    return tuple(dims)


def _parts(node: Node) -> Iterator[Shape]:
    """The shapes of the parts of a Split, if their sizes are known."""
    shape, axis = _same(node), node.attr("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return
    for size in split_sizes(node, shape[axis]) or ():
        dims = list(shape)
        dims[axis] = size
        yield tuple(dims)


_KEEPING = named(Trait.ELEMENTWISE, Trait.KEEPS_SHAPE)

_SHAPES: dict[str, Callable[[Node], Shape | None]] = {
    **dict.fromkeys(named(Trait.BROADCASTS), lambda node: broadcast_shapes(_shapes(node))),
    **dict.fromkeys(_KEEPING, _same),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _multiplied),
    **dict.fromkeys(RESHAPES, _reshaped),
    **dict.fromkeys(named(Trait.REDUCES), _reduced),
    "Concat": lambda node: joined(_shapes(node), node.attr("axis", 0)),
    "ConstantOfShape": _filled,
    "Conv": _convolved,
    "Expand": _expanded,
    "Gather": _gathered,
    "GatherElements": lambda node: None if node.inputs[1] is None else node.inputs[1].shape,
    "Pad": _padded,
    "Range": _counted,
    "Resize": _resized,
    "Shape": _rank,
    "Slice": _sliced,
    "Tile": _tiled,
    "Transpose": _transposed,
}
"""Functions from a node to the shape of its first output, for the most common operators."""


# ---------------------------------------------------------------------- propagation


class Equalities:
    """Equalities found between dimensions: anonymous symbols that equal other symbols or numbers. Symbols of the inputs
    are never replaced.

    Equalities in a branch hold only in that branch. In loop bodies none are recorded: the value of a symbol may change
    between iterations.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self._learns = graph is None or graph.owner is None or graph.owner.is_op("If")
        self._kept = frozenset(d for v in (graph.inputs if graph else ()) for d in v.shape or ())
        self._replacements: dict[str, Dim] = {}

    def __bool__(self) -> bool:
        return bool(self._replacements)

    def resolve(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self._replacements:
            dim = self._replacements[dim]
        return dim

    def note(self, a: Dim, b: Dim) -> None:
        """Record that two dimensions are equal."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b or None in (a, b) or not self._learns:
            return
        if 0 in (a, b):  # a Reshape with a computed 0 copies a dimension; onnx infers this 0 as the size of its result
            return
        for dim, other in ((a, b), (b, a)):
            if isinstance(dim, str) and is_anonymous(dim) and dim not in self._kept:
                self._replacements[dim] = other
                return

    def apply(self, value: Value | None) -> bool:
        """Replace known symbols in the type of a value. Return True if it changed."""
        type = value.type if value is not None and self._replacements else None
        if value is None or not isinstance(type, TensorType) or type.shape is None:
            return False
        shape = tuple(map(self.resolve, type.shape))
        if shape != type.shape:
            value.retype(TensorType(type.dtype, shape))
        return shape != type.shape


def _follow(node: Node, out: Value, equal: Equalities) -> int:
    """Set the shape of a node's first output from its rule, or else by onnx. Return the number of changes."""
    from ortconv.onnxio.infer import declared_type, update_types

    rule = _SHAPES.get(node.op) if node.domain == "" else None
    shape = rule(node) if rule is not None else None
    if out.shape is not None:
        return 0 if shape is None else _refine(out, shape, equal)
    type = out.type or declared_type(node, 0)
    if shape is not None and isinstance(type, TensorType):
        out.retype(TensorType(type.dtype, shape))
        return 1
    can_infer = shape is None and all(v is None or v.rank is not None for v in node.inputs)
    return int(can_infer and update_types(node))


def propagate(graph: Graph, context: Context) -> int:
    """Infer ranks and dimensions from other values.

    Returns the number of types that became more exact.

    Counterpart: none: ONNX Runtime only infers each operator by itself
    Differs: dimensions of several nodes are related, so symbols that must be equal become one.
    """
    equal = Equalities(graph)
    changed, since = 0, context.since
    near: set[Value | None] = set()  # values affected by changes of this run, which `touched` does not show
    for node in graph:
        is_news = node.touched >= since or not near.isdisjoint(node.inputs)
        found = 0
        if is_news:
            found = _update(node, equal)
        elif equal:
            found = equal.apply(node.output(0))
        if since and (found or (is_news and node.op in COMPUTES_SHAPES)):
            near.update(filter(None, node.outputs))
        changed += found
    return changed + (sum(map(equal.apply, _values(graph))) if equal else 0)


def _update(node: Node, equal: Equalities) -> int:
    """Make the types of a node's outputs, or of an operand, more exact. Return the number of changes."""
    out, changed = node.output(0), 0
    if out is not None and is_vague(out.shape):
        changed = _follow(node, out, equal) + equal.apply(out)
    return changed + _complete(node, equal)


def _complete(node: Node, equal: Equalities) -> int:
    """Refine the outputs' shapes from the operands, or an operand with the shape of the result. Return how many changed."""
    x, out = node.input(0), node.output(0)
    if x is not None and out is not None and None in (x.shape or ()) and node.op in _KEEPING and node.domain == "":
        # the declared shape of a graph output may be wrong
        return 0 if out.shape is None or out.is_output else _refine(x, out.shape, equal)
    pairs = zip(node.outputs, _inferred(node), strict=False)
    return sum(_refine(v, shape, equal) for v, shape in pairs if v is not None and shape is not None)


def _inferred(node: Node) -> list[Shape | None]:
    """The shapes of all outputs that follow from the operands; [] if none do."""
    parts: list[Shape | None] = [*_parts(node)] if node.is_op("Split") else []
    if parts or not _is_decided(node):
        return parts
    from ortconv.onnxio.infer import infer_node

    return [type.shape if isinstance(type, TensorType) else None for type in infer_node(node)]


def _is_decided(node: Node) -> bool:
    """True if a result has unknown dimensions and no operand does, or if it has symbols and all sizes of the operands are known."""
    for v in node.outputs:
        if v is not None and v.shape is not None and v.static_shape is None:
            shapes = [x.shape if None in v.shape else x.static_shape for x in node.present_inputs]
            return not node.subgraphs and not any(shape is None or None in shape for shape in shapes)
    return False


def _refine(out: Value, shape: Shape, equal: Equalities) -> bool:
    """Fill in unknown dimensions of a value's type, and replace symbols by numbers. Return True if it changed."""
    known = out.shape
    if known is None or out.dtype is None or len(known) != len(shape):
        return False
    for one, other in zip(known, shape):
        equal.note(one, other)
    merged = tuple(map(more_exact, known, shape))
    if merged == known:
        return False
    out.retype(TensorType(out.dtype, merged))
    return True


def _values(graph: Graph) -> Iterator[Value]:
    for each in graph.graphs():
        yield from each.inputs
        for node in each:
            yield from node.present_outputs
