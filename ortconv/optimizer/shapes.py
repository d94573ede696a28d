"""Shapes as symbolic quantities: what the elements of a computed shape are, and types that follow from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.types import Dim, DType, Shape, TensorType
from ortconv.optimizer.conditions import axes_of, ints, same_dim
from ortconv.optimizer.engine import Context, FunctionPass


class DimOf(NamedTuple):
    """A dimension of a value, as an unknown quantity."""

    value: Value
    axis: int


Element = int | str | DimOf | None
"""An element of a computed shape: a number, a symbol, a dimension of a value, or unknown."""

ANONYMOUS = "?"
"""What the names of symbols begin with that shape inference makes up."""

DEPTH = 16
"""How many nodes deep the computation of a shape is followed."""

LONGEST = 64
"""Elements of the longest value that counts as a shape."""

# ---------------------------------------------------------------------- elements


def dim_of(value: Value, axis: int) -> Element:
    """One dimension, counted from the front, as exactly as it is known."""
    dim = value.dim(axis)
    return DimOf(value, axis) if dim is None else dim


def elements(value: Value | None) -> tuple[Element, ...] | None:
    """The elements of an integer value of rank 0 or 1; None if not even their number is known."""
    found: dict[Value, tuple[Element, ...] | None] = {}

    def look(value: Value | None, depth: int) -> tuple[Element, ...] | None:
        if value is None:
            return None
        if value not in found:
            found[value] = _look_back(value, lambda v: look(v, depth - 1) if depth else None)
        return found[value]

    return look(value, DEPTH)


def static_elements(node: Node) -> tuple[int, ...] | None:
    """The elements of the only output of a shape computation, where all are known; not for a node of constants only."""
    out = node.output(0)
    if node.op not in _ELEMENTS or node.domain != "" or len(node.outputs) != 1 or out is None:
        return None
    if out.dtype not in (DType.INT64, DType.INT32) or (out.rank or 0) > 1:
        return None
    found = _ELEMENTS[node.op](node, elements)
    known = tuple(e for e in found or () if isinstance(e, int))
    return known if found is not None and len(known) == len(found) else None


Elements = tuple[Element, ...] | None
Look = Callable[[Value | None], Elements]
"""Gives the elements of an input."""


def _look_back(value: Value, look: Look) -> Elements:
    known = ints(value)
    if known is not None:
        return known
    node = value.producer
    if node is not None and node.op in _ELEMENTS and node.domain == "":
        found = _ELEMENTS[node.op](node, look)
        if found is not None:
            return found
    shape = value.static_shape
    if shape is None or len(shape) > 1 or math.prod(shape) > LONGEST:
        return None
    return (None,) * math.prod(shape)


def _shape(node: Node, look: Look) -> Elements:
    x = node.inputs[0]
    if x is None or x.rank is None:
        return None
    return tuple(dim_of(x, i) for i in range(x.rank))[slice(node.attr("start", 0), node.attr("end", x.rank))]


def _size(node: Node, look: Look) -> Elements:
    x = node.inputs[0]
    shape = None if x is None else x.static_shape
    return None if shape is None else (math.prod(shape),)


def _gather(node: Node, look: Look) -> Elements:
    data, index = node.inputs
    picked = ints(index)
    if data is None or picked is None:
        return None
    if data.producer is not None and data.producer.is_op("Shape") and not data.producer.attrs:
        x = data.producer.inputs[0]
        if x is not None and x.rank is None and min(picked, default=0) >= 0:
            return tuple(DimOf(x, i) for i in picked)
    source = look(data)
    if source is None or not all(-len(source) <= i < len(source) for i in picked):
        return None
    return tuple(source[i] for i in picked)


def _same_elements(node: Node, look: Look) -> Elements:
    rank = node.out.rank
    return look(node.inputs[0]) if rank is None or rank <= 1 else None


def _cast(node: Node, look: Look) -> Elements:
    return look(node.inputs[0]) if node.out.dtype in (DType.INT64, DType.INT32) else None


def _concat(node: Node, look: Look) -> Elements:
    parts = [look(v) for v in node.inputs]
    if any(p is None for p in parts):
        return None
    return tuple(e for p in parts for e in p or ())


def _slice(node: Node, look: Look) -> Elements:
    source = look(node.inputs[0])
    if source is None:
        return None
    if "starts" in node.attrs:
        parts: list[tuple[int, ...] | None] = [node.attr("starts", Ints()), node.attr("ends", Ints()), (1,)]
    else:
        parts = [(1,) if i == 4 and node.input(i) is None else ints(node.input(i)) for i in (1, 2, 4)]
    bounds = [part[0] for part in parts if part is not None and len(part) == 1]
    if len(bounds) < 3 or bounds[2] <= 0:
        return None
    return source[slice(*bounds)]


def _arithmetic(node: Node, look: Look) -> Elements:
    left, right = (look(v) for v in node.inputs)
    if left is None or right is None or len({len(left), len(right)} - {1}) > 1:
        return None
    size = 0 if 0 in (len(left), len(right)) else max(len(left), len(right))
    pairs = zip(*(e * size if len(e) == 1 else e for e in (left, right)))
    return tuple(_combine(node.op, a, b) for a, b in pairs)


def _combine(op: str, a: Element, b: Element) -> Element:
    if isinstance(a, int) and isinstance(b, int):
        if op == "Div":
            return a // b if a >= 0 and b > 0 else None
        return a * b if op == "Mul" else a + b if op == "Add" else a - b
    if b == (1 if op in ("Mul", "Div") else 0):
        return a
    if op in ("Mul", "Add") and a == (1 if op == "Mul" else 0):
        return b
    return None


_ELEMENTS: dict[str, Callable[[Node, Look], Elements]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Unsqueeze": _same_elements,
    "Squeeze": _same_elements,
    "Reshape": _same_elements,
    "Identity": _same_elements,
    "Cast": _cast,
    "Concat": _concat,
    "Slice": _slice,
    "Mul": _arithmetic,
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Div": _arithmetic,
}

# ---------------------------------------------------------------------- what Reshape and its kin return


def target(node: Node) -> tuple[Element, ...] | None:
    """The dimensions that a Reshape, Squeeze, Unsqueeze or Flatten gives its input; -1 stands for what is left.

    None if not even their number is known.
    """
    x = node.inputs[0]
    assert x is not None
    if node.op == "Reshape":
        wanted = elements(node.input(1))
        if wanted is None:
            return None
        copies = not node.attr("allowzero", 0)
        return tuple(dim_of(x, i) if e == 0 and copies else e for i, e in enumerate(wanted))
    if node.op == "Flatten":
        axis = node.attr("axis", 1)
        return (1, -1) if axis == 0 else (dim_of(x, 0), -1) if axis == 1 else _flattened(x, axis)
    axes = axes_of(node)
    if axes is None or x.rank is None:
        return None
    if node.op == "Unsqueeze":
        rank = x.rank + len(axes)
        inserted = {a % rank for a in axes}
        rest = iter(range(x.rank))
        return tuple(1 if i in inserted else dim_of(x, next(rest)) for i in range(rank))
    if not axes and any(not isinstance(d, int) for d in x.shape or ()):
        return None
    dropped = {a % x.rank for a in axes} if axes else {i for i, d in enumerate(x.shape or ()) if d == 1}
    return tuple(dim_of(x, i) for i in range(x.rank) if i not in dropped)


def _flattened(x: Value, axis: int) -> tuple[Element, ...] | None:
    shape = x.shape
    if shape is None:
        return None
    return _product(shape[:axis]), _product(shape[axis:])


def _product(dims: Sequence[Dim]) -> Element:
    if all(isinstance(d, int) for d in dims):
        return math.prod(d for d in dims if isinstance(d, int))
    others = [d for d in dims if d != 1]
    return others[0] if len(others) == 1 else None


def refined(wanted: Sequence[Element], out: Value) -> tuple[Element, ...]:
    """The dimensions of a value, each from where it is known best: its type where that has a number or all else fails."""
    if out.rank != len(wanted):
        return tuple(wanted)
    return tuple(
        d if isinstance(d, int) or (d is not None and (e is None or (is_anonymous(e) and not is_anonymous(d)))) else e
        for e, d in zip(wanted, out.shape or ())
    )


def expressed(wanted: Sequence[Element], x: Value) -> tuple[int, ...] | None:
    """A constant shape for Reshape that gives x these dimensions, made of numbers, 0 for copies and one -1 at most.

    A -1 assumes that x has elements.
    """
    spec: list[int] = []
    for i, e in enumerate(wanted):
        if e is not None and (e == dim_of(x, i) if not isinstance(e, int) else False):
            spec.append(0)
        elif isinstance(e, int) and e != 0:
            spec.append(e)
        elif e == 0 and x.dim(i) == 0:
            spec.append(0)
        elif e == 0 or -1 in spec:
            return None
        else:
            spec.append(-1)
    return tuple(spec) if spec.count(-1) <= 1 and not (-1 in spec and 0 in (x.shape or ())) else None


def keeps_shape(wanted: Sequence[Element], x: Value) -> bool:
    """True if these are the dimensions that x has already."""
    return x.rank == len(wanted) and all(e is not None and e == dim_of(x, i) for i, e in enumerate(wanted))


# ---------------------------------------------------------------------- shapes of results


def _same(node: Node) -> Shape | None:
    return None if node.inputs[0] is None else node.inputs[0].shape


def _reshaped(node: Node) -> Shape | None:
    x, wanted = node.inputs[0], target(node)
    if x is None or wanted is None:
        return None
    dims: list[Dim] = [d if isinstance(d, str) or (isinstance(d, int) and d >= 0) else None for d in wanted]
    if wanted.count(-1) == 1 and dims.count(None) == 1:
        dims[dims.index(None)] = _left_over(x.shape, dims)
    return tuple(dims)


def _left_over(shape: Shape | None, dims: Sequence[Dim]) -> Dim:
    """What -1 stands for beside the other dimensions of a tensor of that shape."""
    if shape is None or None in shape or 0 in shape or 0 in dims:
        return None
    symbols = Counter(d for d in shape if isinstance(d, str))
    taken = Counter(d for d in dims if isinstance(d, str))
    if taken - symbols:
        return None
    rest = list((symbols - taken).elements())
    total = math.prod(d for d in shape if isinstance(d, int))
    others = math.prod(d for d in dims if isinstance(d, int))
    if total % others:
        return None
    if not rest:
        return total // others
    return rest[0] if len(rest) == 1 and total == others else None


def _broadcast(node: Node) -> Shape | None:
    return _broadcast_shapes([None if v is None else v.shape for v in node.inputs])


def _broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape that these broadcast to, None where a dimension is not certain."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(s)) + s for s in known]
    return tuple(_broadcast_dims(dims) for dims in zip(*padded))


def _broadcast_dims(dims: Sequence[Dim]) -> Dim:
    others = [d for d in dims if d != 1]
    if not others:
        return 1
    if all(same_dim(others[0], d) for d in others):
        return others[0]
    return next((d for d in others if isinstance(d, int)), None)


def _multiplied(node: Node) -> Shape | None:
    a, b = (None if v is None else v.shape for v in node.inputs[:2])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    outer = _broadcast_shapes([a[:-2], b[:-2]])
    return None if outer is None else (*outer, a[-2], b[-1])


def _transposed(node: Node) -> Shape | None:
    shape = _same(node)
    if shape is None:
        return None
    perm = node.attr("perm", Ints(reversed(range(len(shape)))))
    return tuple(shape[i] for i in perm) if len(perm) == len(shape) else None


_RETYPING = frozenset({"Cast", "DynamicQuantizeLinear", "MatMulInteger"})
_SAME_SHAPE = (
    "Abs", "Cast", "Clip", "Cos", "DynamicQuantizeLinear", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "Identity",
    "LayerNormalization", "LeakyRelu", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sin", "Softmax", "Sqrt", "Tanh",
)  # fmt: skip
_SHAPES: dict[str, Callable[[Node], Shape | None]] = {
    **dict.fromkeys(_SAME_SHAPE, _same),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), _broadcast),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _multiplied),
    "Transpose": _transposed,
    "Reshape": _reshaped,
}
"""The shape of the first output from those of the inputs, for the operators that models are mostly made of."""


# ---------------------------------------------------------------------- propagation


def is_anonymous(dim: Element) -> bool:
    """True for a symbol that shape inference made up."""
    return isinstance(dim, str) and dim.startswith(ANONYMOUS)


class Equalities:
    """Which anonymous symbols turned out to be other symbols, or numbers."""

    def __init__(self) -> None:
        self._stands_for: dict[str, Dim] = {}

    def __bool__(self) -> bool:
        return bool(self._stands_for)

    def resolve(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self._stands_for:
            dim = self._stands_for[dim]
        return dim

    def note(self, a: Dim, b: Dim) -> None:
        """Take note that two dimensions are one."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b or a is None or b is None:
            return
        if isinstance(a, str) and is_anonymous(a):
            self._stands_for[a] = b
        elif isinstance(b, str) and is_anonymous(b):
            self._stands_for[b] = a

    def apply(self, value: Value) -> bool:
        """Write the type of a value with what is known. True if it changed."""
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return False
        shape = tuple(map(self.resolve, value.type.shape))
        if shape == value.type.shape:
            return False
        value.type = TensorType(value.type.dtype, shape)
        return True


def propagate(graph: Graph, context: Context) -> int:
    """Find out ranks and dimensions that follow from others.

    Returns the number of types that became more exact.

    What holds in a branch or a loop body need not hold outside, so only the main graph teaches about symbols.

    Counterpart: none: ONNX Runtime has only the inference of each operator by itself
    Differs: dimensions of several nodes are related, so symbols that must be equal become one.
    """
    from ortconv.onnxio.infer import update_types

    equal = Equalities()
    changed = 0
    for node in graph:
        out = node.outputs[0] if node.outputs else None
        if out is None or not _is_vague(out.shape):
            continue
        rule = _SHAPES.get(node.op) if node.domain == "" else None
        shape = rule(node) if rule is not None else None
        if out.shape is None:
            changed += _set_shape(node, out, shape) or (
                shape is None and all(v is None or v.rank is not None for v in node.inputs) and update_types(node)
            )
        elif shape is not None and len(shape) == len(out.shape):
            if graph.owner is None:
                for known, found in zip(out.shape, shape):
                    equal.note(known, found)
            changed += _refine(out, shape)
        if equal:
            changed += equal.apply(out)
    if equal:
        changed += sum(map(equal.apply, _values(graph)))
    return changed


def _is_vague(shape: Shape | None) -> bool:
    return shape is None or any(d is None or is_anonymous(d) for d in shape)


def _set_shape(node: Node, out: Value, shape: Shape | None) -> bool:
    dtype = out.dtype
    source = node.input(0)
    if dtype is None and node.op not in _RETYPING and source is not None:
        dtype = source.dtype
    if shape is None or dtype is None:
        return False
    out.type = TensorType(dtype, shape)
    return True


def _refine(out: Value, shape: Shape) -> bool:
    """Fill in the dimensions of a type that are not known."""
    known = out.shape or ()
    merged = tuple(f if k is None else k for k, f in zip(known, shape))
    if merged == known or out.dtype is None:
        return False
    out.type = TensorType(out.dtype, merged)
    return True


def _values(graph: Graph) -> Iterator[Value]:
    for each in graph.graphs():
        yield from each.inputs
        for node in each:
            yield from (v for v in node.outputs if v is not None)


PASSES = (FunctionPass("ShapePropagation", propagate),)
