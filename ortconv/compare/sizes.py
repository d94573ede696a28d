"""Finds sizes for the free dimensions of a model's inputs, and the memory of a run with them, without running the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from ortconv.compare import shape_inputs
from ortconv.compare.demands import Demand, Extent, Numbers, demands, size_of
from ortconv.compare.ranks import LARGEST_RANK, rank_of
from ortconv.errors import BackendError, GraphError
from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import MICROSOFT, Trait, traits
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import TensorType
from ortconv.onnxio.infer import LARGEST_SHAPE_DATA, infer_model
from ortconv.onnxio.messages import subgraphs
from ortconv.onnxio.proto import node_proto, tensor_proto, value_info
from ortconv.onnxio.shield import SliceBelowZeroError
from ortconv.onnxlib import IR_VERSION, AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto
from ortconv.runtime.deadline import check_limit
from ortconv.watch import risky

Sizes = dict[str, int]
"""Sizes of free dimensions by name."""

ROUNDS = 24
"""Maximum number of changes of sizes to meet demands; the remaining demands are left to trial."""

LARGEST_SIZE = 1 << 20
"""Upper bound of free dimensions."""


def dimensions(value: Value) -> tuple[int | str, ...]:
    """The shape of an input, with a name for each unknown dimension: its symbol, or a name made from the input's name."""
    shape = value.shape
    if shape is None:
        shape = (None,) * min(rank_of(value) or 1, LARGEST_RANK)
    return tuple(f"{value.name}[{axis}]" if d is None else d for axis, d in enumerate(shape))


TARGETS_TRIED = 16
"""Number of alternatives for the elements of targets, tried if the model runs with none of the sizes."""


LENGTHS = range(1, 7)
"""Lengths of inputs that hold shapes, tried if the model does not run with the length that its readers imply."""


@dataclass
class Problem:
    """The free dimensions of the inputs `made`. `fixed` are given sizes; `batches` are the leading dimensions of inputs
    with several dimensions.

    Elements of the `targets`, which are inputs that hold shapes, are free like dimensions; they may also be -1 or 0 if
    a Reshape reads them. `shaped` are inputs whose shapes are given. `defaults` are inputs that have their default values.
    `observe` returns shapes in addition to those that inference finds for given sizes.
    """

    graph: Graph
    made: list[Value]
    fixed: Sizes = field(default_factory=dict)
    shaped: tuple[Value, ...] = ()
    defaults: frozenset[Value] = frozenset()
    observe: Callable[[Sizes, Mapping[Value, Numbers]], Mapping[Value, Numbers]] | None = None

    def __post_init__(self) -> None:
        self.shapes = {v: dimensions(v) for v in self.made if isinstance(v.type, TensorType)}
        self.targets = self._targets()
        self._named = {out: tuple(self.targets[v]) for out, v in shape_inputs.outputs(self.targets).items()}
        names = chain(chain.from_iterable(self.shapes.values()), chain.from_iterable(self.targets.values()))
        self.free = [n for n in dict.fromkeys(names) if isinstance(n, str) and n not in self.fixed]
        self.batches = {s[0] for s in self.shapes.values() if len(s) > 1 and isinstance(s[0], str)}

    def _targets(self) -> dict[Value, Sizes]:
        """The names of the elements of each target, and their initial values. A free length is fixed, unless another
        input has the same one.
        """
        found: dict[Value, Sizes] = {}
        uses = Counter(dim for shape in self.shapes.values() for dim in shape)
        for value in filter(shape_inputs.is_target, self.shapes):
            (dim,) = self.shapes[value]
            if isinstance(dim, str) and uses[dim] > 1 and dim not in self.fixed:
                continue
            count = dim if isinstance(dim, int) else self.fixed.get(dim, shape_inputs.length(value))
            if count is not None and count <= LARGEST_RANK:
                self.fixed |= {} if isinstance(dim, int) else {dim: count}
                found[value] = shape_inputs.elements(value, count)
        return found

    @property
    def open_lengths(self) -> dict[str, int]:
        """The free lengths of inputs that hold shapes but are no targets, because their length is not known; with the least rank
        that readers need.
        """
        values = (v for v in self.shapes if shape_inputs.is_target(v) and v not in self.targets)
        dims = ((v, dim) for v in values for dim in self.shapes[v])
        return {dim: shape_inputs.length(v) or 0 for v, dim in dims if isinstance(dim, str) and dim in self.free}

    def with_other_lengths(self) -> Iterator[Problem]:
        """The same problem with each other length of the inputs that hold shapes, unless their lengths are declared."""
        dims = [dim for v in self.shapes if shape_inputs.is_target(v) for dim in self.shapes[v] if isinstance(dim, str)]
        for count in LENGTHS if dims else ():
            fixed = {**self.fixed, **dict.fromkeys(dims, count)}
            if fixed != self.fixed:
                yield replace(self, fixed=fixed)

    def first(self, size: int, batch: int) -> Sizes:
        """Initial sizes: `batch` for leading dimensions, `size` for all other free dimensions."""
        starts = {name: held for found in self.targets.values() for name, held in found.items()}
        return {**self.fixed, **{n: starts.get(n, batch if n in self.batches else size) for n in self.free}}

    def other_targets(self) -> list[Sizes]:
        """Alternatives to the initial values of the targets' elements."""
        variants = range(1, TARGETS_TRIED) if self.targets else ()
        return [
            {
                name: made
                for value, found in self.targets.items()
                for name, made in zip(found, shape_inputs.other_elements(value, len(found), variant))
            }
            for variant in variants
        ]

    def names(self, value: Value) -> tuple[int | str | None, ...]:
        """The known dimensions of a shape, with the names of free sizes; empty if none are known."""
        return self.shapes.get(value) or self._named.get(value) or value.shape or ()

    def held(self, sizes: Mapping[str, int]) -> dict[Value, list[int]]:
        """The elements of the targets, and of default values that hold shapes."""
        made = {value: [sizes[name] for name in names] for value, names in self.targets.items()}
        return made | {
            value: numbers for value in self.defaults if (numbers := shape_inputs.default(value)) is not None
        }

    def shape(self, value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
        named = self.shapes.get(value, ())
        return tuple(d if isinstance(d, int) else sizes[d] for d in named)


@dataclass
class Solution:
    """Sizes, and the resulting shapes. Sizes in `implied` are determined by the graph. `is_met` is True if all known
    demands are met.
    """

    sizes: Sizes
    implied: set[str]
    shapes: dict[Value, Numbers]
    is_met: bool = False


def solve(problem: Problem, sizes: Sizes, implied: frozenset[str] = frozenset()) -> Solution:
    """Change sizes until every demand is met, or no change helps."""
    found = Solution(dict(sizes), set(implied), {})
    hopeless: set[DemandKey] = set()
    for _ in range(ROUNDS):
        found.shapes = infer_shapes(problem, found.sizes)
        open_demands = ((key, d) for key, d in _all_demands(problem, found.sizes, found.shapes) if not d.is_met)
        key, demand = next(((k, d) for k, d in open_demands if k not in hopeless), (None, None))
        if key is None or demand is None:
            found.is_met = not hopeless
            break
        if not (_set_symbol(problem, found, demand) or _search(problem, found, key, demand)):
            hopeless.add(key)
    return found


DemandKey = tuple[Node, int]


def demands_for(problem: Problem, sizes: Mapping[str, int]) -> Iterator[tuple[DemandKey, Demand]]:
    """All demands with these sizes, in the graph's order."""
    return _all_demands(problem, sizes, infer_shapes(problem, sizes))


def _all_demands(
    problem: Problem, sizes: Mapping[str, int], shapes: Mapping[Value, Numbers]
) -> Iterator[tuple[DemandKey, Demand]]:
    """The demands of all nodes; in addition, inner values must have their declared shapes, and must not be empty unless an input
    of their node is.
    """
    held = problem.held(sizes)
    for node in problem.graph.walk():
        for i, demand in enumerate(demands(node, shapes, held)):
            yield (node, i), demand
        least = 0 if any(0 in shapes.get(value, ()) for value in node.present_reads) else 1
        for out, value in enumerate(node.outputs):
            if value is not None and value in shapes:
                for axis, demand in _declared_demands(value, shapes[value], least):
                    yield (node, -1 - axis - 64 * out), demand


def _declared_demands(value: Value, shape: Numbers, least: int) -> Iterator[tuple[int, Demand]]:
    """For each known dimension: that it equals the declared one, or else is at least `least`."""
    declared = value.shape if value.shape is not None and len(value.shape) == len(shape) else ()
    for axis, (have, want) in enumerate(zip(shape, declared, strict=False)):
        if have is not None:
            place = Extent(value, axis)
            yield axis, Demand(place, have, want) if isinstance(want, int) else Demand(place, have, least, "at least")


def symbol(problem: Problem, place: Extent | None) -> str | None:
    """The free dimension at a place; None if its name is not known there."""
    if place is None or place.axis is None:
        return None
    named = problem.names(place.value)
    if not -len(named) <= place.axis < len(named):
        return None
    dim = named[place.axis]
    return dim if isinstance(dim, str) and dim in problem.free else None


def _set_symbol(problem: Problem, found: Solution, demand: Demand) -> bool:
    for place, wanted in ((demand.place, demand.want), (demand.partner, demand.have)):
        name = symbol(problem, place)
        if name is None or name in found.implied:
            continue
        if demand.kind == "multiple":
            wanted = -(-found.sizes[name] // demand.want) * demand.want
        if 0 < wanted <= LARGEST_SIZE:
            found.sizes[name] = wanted
            if demand.kind == "equal":
                found.implied.add(name)
            return True
    return False


def _search(problem: Problem, found: Solution, key: DemandKey, demand: Demand) -> bool:
    """Find a free dimension that affects the demanded size, and its size with which the demand is met. Returns True if found.

    Dimensions that must be equal change together.
    """
    equal = _equal_names(problem, found)
    for name in problem.free:
        if name in found.implied:
            continue
        names = equal.get(name, (name,))
        before = found.sizes[name]
        size, gap = before, demand.have - demand.want
        trial, last = size + max(1, size), demand
        for _ in range(8):
            again = _demand_again(problem, found.sizes | dict.fromkeys(names, trial), key)
            if again is None or (again.have, again.want) == (last.have, last.want):
                break
            if again.is_met:
                found.sizes |= dict.fromkeys(names, trial)
                if demand.kind == "equal":
                    found.implied.update(names)
                return True
            moved = (again.have - again.want) - gap
            if demand.kind != "equal":
                size, trial = trial, trial + (1 if demand.kind == "multiple" else trial)
            elif moved == 0:
                break
            else:
                slope = moved / (trial - size)
                size, gap, trial = trial, gap + moved, max(1, round(trial - (gap + moved) / slope))
            last = again
            if trial == size or trial > LARGEST_SIZE:
                break
    return False


def _equal_names(problem: Problem, found: Solution) -> dict[str, set[str]]:
    """For each free dimension, all that must be equal to it, itself included."""
    classes = DisjointSets(problem.free)
    for _, demand in _all_demands(problem, found.sizes, found.shapes):
        one, other = symbol(problem, demand.place), symbol(problem, demand.partner)
        if demand.kind == "equal" and one is not None and other is not None:
            classes.join(one, other)
    return {name: set(names) for names in classes.sets() for name in names}


def _demand_again(problem: Problem, sizes: Sizes, key: DemandKey) -> Demand | None:
    return next((d for k, d in demands_for(problem, sizes) if k == key), None)


def is_solved(problem: Problem, sizes: Sizes) -> bool:
    """True if these sizes meet all known demands."""
    return all(d.is_met for _, d in demands_for(problem, sizes))


def can_be_met(problem: Problem) -> bool:
    """False if sizes that are the same with all inputs contradict each other: then no inputs help.

    Nodes of subgraphs may never run, the bodies of Loop and Scan may declare wrong shapes, the last part of a Split may be
    smaller, and a size of 1 may broadcast.
    """
    inputs = {v: shape for v in problem.graph.inputs if (shape := _substituted(v, {})) is not None}
    shapes = _inferred_shapes(Problem(problem.graph, []), {}, inputs)
    certain = (node for node in problem.graph if not node.domain and node.op not in ("Loop", "Scan", "Split"))
    found = (demand for node in certain for demand in demands(node, shapes))
    return all(d.is_met or (d.partner is not None and 1 in (d.have, d.want)) for d in found)


def behind(problem: Problem, node: Node) -> list[str]:
    """The free dimensions of the inputs that a node depends on, the nearest first."""
    nodes = {node: None}
    found: dict[str | int, None] = {}
    near = [node]
    for current in near:
        values = current.present_reads
        for value in values:
            found |= dict.fromkeys((*problem.shapes.get(value, ()), *problem.targets.get(value, ())))
        fresh = dict.fromkeys(v.producer for v in values if v.producer is not None and v.producer not in nodes)
        nodes |= fresh
        near += fresh
    return [str(name) for name in found if name in problem.free]


def infer_shapes(problem: Problem, sizes: Mapping[str, int]) -> dict[Value, Numbers]:
    """The shapes of all values that are determined by these sizes. Raises TimeLimitError at the end of the search time."""
    check_limit()
    fed = {v: problem.shape(v, sizes) for v in problem.made if v in problem.shapes}
    if not sizes:
        return {**_known(problem.graph), **fed}
    found = _inferred_shapes(problem, sizes, fed)
    if problem.observe is not None:
        found.update(problem.observe(dict(sizes), found))
    return found


def _inferred_shapes(problem: Problem, sizes: Mapping[str, int], fed: Mapping[Value, Numbers]) -> dict[Value, Numbers]:
    """The shapes that onnx infers from those of constants and of the inputs `fed`, as far as they are known."""
    graph = problem.graph
    found: dict[Value, Numbers] = {**_constants(graph), **fed}
    with suppress(GraphError, BackendError), risky(f"onnx inferring shapes for {dict(sizes)}"):
        _read(_inferred(_message(problem, sizes, fed)), graph, found)
    return found


def _message(problem: Problem, sizes: Mapping[str, int], fed: Mapping[Value, Numbers]) -> ModelProto:
    """The model with these sizes, without its large constants, and without declared shapes where inference finds them."""
    graph = problem.graph
    message = ModelProto(ir_version=IR_VERSION)
    for domain, version in graph.opsets.items():
        message.opset_import.add(domain=domain, version=version)
    message.graph.name = "sizes"
    held = _held(problem, sizes)
    message.graph.initializer.extend(tensor_proto(tensor, value.name) for value, tensor in held.items())
    for value in graph.inputs:
        if value not in held:
            _declare(message.graph.input.add(), value, fed.get(value) or _substituted(value, sizes))
    large = (v for v in graph.initializers.values() if v not in held and not v.is_input)
    message.graph.input.extend(map(value_info, large))
    message.graph.node.extend(_undeclared(_stand_in(node) or node_proto(node)) for node in graph)
    for made in _unknown_to_onnx(graph):
        _declare(message.graph.value_info.add(), made, _substituted(made, sizes))
    message.graph.output.extend(value_info(v) for v in graph.outputs if v.producer is None)
    return message


def _unknown_to_onnx(graph: Graph) -> Iterator[Value]:
    """The values of known types that nodes make for which onnx infers none."""
    made = (value for node in graph if node.domain not in ("", "ai.onnx.ml") for value in node.outputs)
    return (value for value in made if value is not None and value.type is not None)


def _held(problem: Problem, sizes: Mapping[str, int]) -> dict[Value, Tensor]:
    """The elements that are known before a run, as far as shapes may depend on them: of targets, constants and defaults."""
    held = {value: Tensor.of(np.array(numbers, np.int64)) for value, numbers in problem.held(sizes).items()}
    for value in problem.graph.initializers.values():
        const, is_known = value.const, not value.is_input or value in problem.defaults
        if is_known and isinstance(const, Tensor) and const.size <= LARGEST_SHAPE_DATA:
            held[value] = const
    return held


def _inferred(message: ModelProto) -> GraphProto:
    """The inferred types; those before its Slices only if a Slice reads a value with a negative size."""
    try:
        return infer_model(message).graph
    except SliceBelowZeroError as error:
        return error.inferred


STAND_INS = {
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), ("Identity", (0,))),
}
"""Operators of ONNX Runtime, with the standard operator whose result has the same shape, and the inputs that it reads."""


def _stand_in(node: Node) -> NodeProto | None:
    """For an operator of ONNX Runtime, a standard node that onnx can infer and whose result has the same shape. Else None."""
    if node.domain != MICROSOFT or node.op not in STAND_INS:
        return _as_cast(node)
    op, slots = STAND_INS[node.op]
    names = [value.name for value in map(node.input, slots) if value is not None]
    return NodeProto(op_type=op, name=node.name, input=names, output=[node.out.name])


def _as_cast(node: Node) -> NodeProto | None:
    """A Cast, for an operator of ONNX Runtime whose result has the shape of its first input. Else None."""
    if node.domain != MICROSOFT or len(node.outputs) != 1 or not traits(node).has(Trait.ELEMENTWISE, Trait.KEEPS_SHAPE):
        return None
    x, dtype, graph = node.input(0), node.out.dtype, node.graph
    if x is None or dtype is None or graph is None or "" not in graph.opsets:
        return None
    made = NodeProto(op_type="Cast", name=node.name, input=[x.name], output=[node.out.name])
    made.attribute.add(name="to", type=AttributeProto.INT, i=int(dtype))
    return made


def _undeclared(message: NodeProto) -> NodeProto:
    """The node without the output shapes that its subgraphs declare."""
    for graph in subgraphs(message):
        del graph.value_info[:]
        for output in graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        for node in graph.node:
            _undeclared(node)
    return message


def _known(graph: Graph) -> dict[Value, Numbers]:
    """The shapes that the graph itself declares."""
    values = (v for g in graph.graphs() for v in (*g.inputs, *g.initializers.values(), *_made_by(g)))
    return {v: tuple(d if isinstance(d, int) else None for d in v.shape) for v in values if v.shape is not None}


def _made_by(graph: Graph) -> Iterator[Value]:
    return (v for node in graph for v in node.outputs if v is not None)


def _constants(graph: Graph) -> dict[Value, Numbers]:
    found = (v for g in graph.graphs() for v in g.initializers.values())
    return {v: v.static_shape for v in found if v.static_shape is not None}


def _substituted(value: Value, sizes: Mapping[str, int]) -> Numbers | None:
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else None if d is None else sizes.get(d) for d in value.shape)


def _declare(info: object, value: Value, shape: Numbers | None) -> None:
    made = value_info(value)
    if isinstance(value.type, TensorType):
        made.type.CopyFrom(TypeProto())
        made.type.tensor_type.elem_type = int(value.type.dtype)
        if shape is not None:
            made.type.tensor_type.shape.SetInParent()
            for d in shape:
                dim = made.type.tensor_type.shape.dim.add()
                if d is not None and d < 1 << 63:
                    dim.dim_value = d
    info.CopyFrom(made)  # type: ignore[attr-defined]


def _read(message: GraphProto, graph: Graph, found: dict[Value, Numbers]) -> None:
    """Note the shapes in the message of a graph, including its subgraphs."""
    infos = (info for info in (*message.value_info, *message.output) if info.type.tensor_type.HasField("shape"))
    shapes = {info.name: tuple(map(_size, info.type.tensor_type.shape.dim)) for info in infos}
    for value in (*graph.inputs, *_made_by(graph)):
        if value.name in shapes:
            found[value] = shapes[value.name]
    for node, proto in zip(graph, message.node, strict=True):
        for sub, inner in zip(node.subgraphs, subgraphs(proto), strict=True):
            _read(inner, sub, found)


def _size(dim: Any) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The maximum memory of values that are live at one time, and the node at which it occurs."""

    bytes: int
    node: str


def footprint(graph: Graph, shapes: Mapping[Value, Numbers]) -> Footprint:
    """The memory of a run, without constants and values of unknown shape."""
    last = {value: i for i, node in enumerate(graph) for value in node.reads}
    last |= dict.fromkeys(graph.outputs, len(graph))
    live = _total((v for v in graph.inputs if v.const is None), shapes)
    most = Footprint(live, graph.inputs[0].name if graph.inputs else "")
    for i, node in enumerate(graph):
        inner = max((footprint(sub, shapes).bytes for sub in node.subgraphs), default=0)
        live += _total(node.outputs, shapes)
        if live + inner > most.bytes:
            most = Footprint(live + inner, node.label)
        dead = {v for v in (*node.reads, *node.outputs) if last.get(v, -1) <= i}
        live -= _total((v for v in dead if v is not None and v.const is None and v.graph is graph), shapes)
    return most


def _total(values: Iterable[Value | None], shapes: Mapping[Value, Numbers]) -> int:
    """Total bytes of the values with a known shape."""
    return sum(size_of(v, shapes[v]) for v in values if v is not None and v in shapes)
