"""The problem of generating inputs: the free dimensions of a model, and the elements of inputs that hold shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from ortconv.inputs import shape_inputs
from ortconv.inputs.demands import Numbers
from ortconv.inputs.ranks import rank_of
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.symbols import with_stated_sizes
from ortconv.ir.tensor import LARGEST_RANK
from ortconv.ir.types import TensorType

if TYPE_CHECKING:
    from ortconv.onnxproto import NodeProto

Sizes = dict[str, int]
"""Sizes of free dimensions by name."""


TARGETS_TRIED = 16
"""Number of alternatives for the elements of targets, tried if the model runs with none of the sizes."""

LENGTHS = range(1, 7)
"""Lengths of inputs that hold shapes, tried if the model does not run with the length that its readers imply."""


@dataclass
class Problem:
    """The free dimensions of the inputs `made`. `fixed` are sizes that cannot be chosen; `batches` are the leading dimensions of
    inputs with several dimensions.

    `targets` are inputs that hold shapes, with a name and an initial value for each element. These elements are free like
    dimensions; they may also be -1 or 0 if a Reshape reads them. `shaped` are inputs whose shapes are given. `defaults` are inputs
    that have their default values. `observe` returns shapes in addition to those that inference finds for given sizes.
    """

    graph: Graph
    made: list[Value]
    fixed: Sizes = field(default_factory=dict)
    shaped: tuple[Value, ...] = ()
    defaults: frozenset[Value] = frozenset()
    observe: Callable[[Sizes, Mapping[Value, Numbers]], Mapping[Value, Numbers]] | None = None
    outer: tuple[Value, ...] = ()
    """Values of enclosing graphs that the nodes read."""
    messages: list[NodeProto] = field(default_factory=list, repr=False)
    """The nodes as messages, made when shapes are first inferred."""
    encoders: dict[Node, Problem] = field(default_factory=dict, repr=False)
    """The encoders of nodes that generate text, made when shapes are first inferred."""

    def __post_init__(self) -> None:
        self.shapes = {v: dimensions(v) for v in self.made if isinstance(v.type, TensorType)}
        lengths = self._target_lengths()
        named = ((self.shapes[value][0], count) for value, count in lengths.items())
        self.fixed = self.fixed | {dim: count for dim, count in named if isinstance(dim, str)}
        self.targets = {value: shape_inputs.elements(value, count) for value, count in lengths.items()}
        self._named = {out: tuple(self.targets[v]) for out, v in shape_inputs.outputs(self.targets).items()}
        self.free = self._free_names()
        self.batches = {s[0] for s in self.shapes.values() if len(s) > 1 and isinstance(s[0], str)}

    def _free_names(self) -> list[str]:
        """The names of all sizes to choose: dimensions, then elements of targets."""
        names = dict.fromkeys(chain(*self.shapes.values(), *self.targets.values()))
        return [n for n in names if isinstance(n, str) and n not in self.fixed]

    def _target_lengths(self) -> dict[Value, int]:
        """The number of elements of each target. A free length is fixed, unless another input has the same one."""
        found = {}
        uses = Counter(dim for shape in self.shapes.values() for dim in shape)
        for value in filter(shape_inputs.is_target, self.shapes):
            (dim,) = self.shapes[value]
            if isinstance(dim, str) and uses[dim] > 1 and dim not in self.fixed:
                continue
            count = dim if isinstance(dim, int) else self.fixed.get(dim, shape_inputs.length(value))
            if count is not None and count <= LARGEST_RANK:
                found[value] = count
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
        return self.with_stated(
            {**self.fixed, **{n: starts.get(n, batch if n in self.batches else size) for n in self.free}}
        )

    def with_stated(self, sizes: Sizes) -> Sizes:
        """The sizes, with those of free dimensions whose names state them by others, such as past + rows, set accordingly."""
        return with_stated_sizes(sizes, self.free)

    def other_targets(self) -> Iterator[Sizes]:
        """Alternatives to the initial values of the targets' elements."""
        for variant in range(1, TARGETS_TRIED) if self.targets else ():
            made: Sizes = {}
            for value, names in self.targets.items():
                made |= zip(names, shape_inputs.other_elements(value, len(names), variant))
            yield made

    def names(self, value: Value) -> tuple[int | str | None, ...]:
        """The known dimensions of a shape, with the names of free sizes; empty if none are known."""
        return self.shapes.get(value) or self._named.get(value) or value.shape or ()

    def held(self, sizes: Mapping[str, int]) -> dict[Value, list[int]]:
        """The elements of the targets, and of default values that hold shapes."""
        made = {value: [sizes[name] for name in names] for value, names in self.targets.items()}
        defaults = ((value, shape_inputs.default(value)) for value in self.defaults)
        return made | {value: numbers for value, numbers in defaults if numbers is not None}

    def shape(self, value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a generated input with these sizes."""
        named = self.shapes.get(value, ())
        return tuple(d if isinstance(d, int) else sizes[d] for d in named)


def dimensions(value: Value) -> tuple[int | str, ...]:
    """The shape of an input, with a name for each unknown dimension: its symbol, or a name made from the input's name."""
    shape = value.shape
    if shape is None:
        rank = rank_of(value)
        shape = (None,) * min(1 if rank is None else rank, LARGEST_RANK)
    return tuple(f"{value.name}[{axis}]" if d is None else d for axis, d in enumerate(shape))
