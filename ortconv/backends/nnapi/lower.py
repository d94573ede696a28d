"""Lowers a region of a graph to an NNAPI model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortconv import nnapi
from ortconv.backends.nnapi import convolution, elementwise, matmul, movement, normalization, pooling, resize
from ortconv.backends.nnapi.builder import Builder, Fused, Lowering, Quantization
from ortconv.errors import BackendError
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.units import NodeUnit, UnitOperand
from ortconv.nnapi import NnapiError
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.properties import properties
from ortconv.nnapi.running import NCHW
from ortconv.nnapi.tracing.timing import mark
from ortconv.nnapi.validation import operation_level
from ortconv.partition.nnapi.checks import is_quantized, parameters
from ortconv.runtime.backend import Region
from ortconv.runtime.placement import is_needed

FAMILIES = (convolution, elementwise, matmul, movement, normalization, pooling, resize)

LOWERINGS: dict[str, Lowering] = {op: lowering for family in FAMILIES for op, lowering in family.LOWERINGS.items()}
"""Lowering functions by ONNX op type."""

FUSING = frozenset(
    {"Conv", "Add", "Sub", "Mul", "Div", "Gemm", "MatMul", "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool",
     "BatchNormalization"}
)  # fmt: skip
"""Operators whose NNAPI operations can fuse the activation after them."""

Refuse = Callable[[nnapi.Model], Iterable[tuple[ModelOperation, str]]]
"""Returns the operations of a finished model that another runtime refuses, with reasons."""


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Position of a result: the index of the model's output, and the order of its axes if it must be transposed."""

    output: int
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """A finished model. `inputs` are the values fed to it; `names` are names of values by operand.

    `outputs` are the region's results, and `places` their positions: None for a value that the model does not compute.
    """

    model: nnapi.Model
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    places: tuple[OutputPlace | None, ...]
    names: Mapping[int, str]

    def in_order(self, results: Sequence[Array]) -> list[Array | None]:
        """The region's results from those of the model; None for a value that the model does not compute."""
        places = zip(self.outputs, self.places, strict=True)
        return [None if place is None else _shaped(results[place.output], place, value) for value, place in places]


def _shaped(result: Array, place: OutputPlace, value: Value) -> Array:
    """A result in ONNX's shape and axis order; NNAPI represents a scalar as [1]."""
    if place.order is not None:
        return np.ascontiguousarray(result.transpose(place.order))
    return result.reshape(()) if value.rank == 0 else result


class RefusedError(BackendError):
    """NNAPI refuses nodes of a region: those of a unit, or all nodes if no single unit is at fault."""

    def __init__(self, nodes: Sequence[Node], reason: str) -> None:
        super().__init__(f"{nodes[-1].label} cannot be lowered: {reason}", backend="nnapi")
        self.nodes, self.reason = tuple(nodes), reason


@mark("LA", "PP", "lower")
def lower(region: Region, level: int, nchw: bool = False, relaxed: bool = False) -> Lowered:
    """Lower a claimed region. Raises RefusedError if NNAPI cannot express it at this feature level."""
    if not region.units:
        raise RefusedError(region.nodes, "no claim groups its nodes into units")
    draft = Draft(region, level, nchw)
    if draft.refused:
        raise draft.refused[0]
    return draft.finished(relaxed)


class Draft:
    """A claimed region while it is lowered. `refused` has an error for each unit that cannot be lowered."""

    def __init__(self, region: Region, level: int, nchw: bool = False) -> None:
        self.region = region
        self.refused: list[RefusedError] = []
        fused = _fused(region.units, region.outputs)
        absorbed = {result for _, result in fused.values()}
        self._builder = Builder(level, nchw, self._quantization(), fused)
        self._makers: list[NodeUnit] = []  # the unit of each operation
        self._inputs = self._fed()
        at_fault = {node for error in self.refused for node in error.nodes}
        for unit in region.units:
            if unit.target.out not in absorbed and unit.target not in at_fault:
                self._lower(unit)

    def finished(self, relaxed: bool = False, *, to_run: bool = True) -> Lowered:
        """Finish the model; unless `to_run`, large constants are zeros. Raises RefusedError if NNAPI refuses the model.

        Results that no node outside the region reads are only observed: they keep the model's layout, and may not be computed at
        all.
        """
        region, builder = self.region, self._builder
        inputs = [builder.operand(value) for value in self._inputs]
        outputs: dict[int, int] = {}  # output indices by operand
        try:
            places = self._places(inputs, outputs)
            builder.finish(inputs, list(outputs), relaxed, to_run)
        except NnapiError as error:
            raise RefusedError(self._newest(), str(error)) from error
        in_order = tuple(places[value] for value in region.outputs)
        return Lowered(builder.model, self._inputs, region.outputs, in_order, builder.names)

    def _places(self, inputs: Sequence[int], outputs: dict[int, int]) -> dict[Value, OutputPlace | None]:
        """The position of each result. Operands that the model must return for them are added to `outputs`."""
        region, builder = self.region, self._builder
        inside = set(region.nodes)
        read = {value for value in region.outputs if is_needed(region.graph, value, inside)}
        places: dict[Value, OutputPlace | None] = {}
        for value in sorted(region.outputs, key=lambda v: v not in read):
            index, image = (builder.operand(value), False) if value in read else builder.found(value)
            if index is None:
                places[value] = None
                continue
            if index in inputs or index in builder.constants or (value in read and index in outputs):
                index = builder.reshaped(index, builder.dims(index))  # a copy, which the model can return
            places[value] = OutputPlace(outputs.setdefault(index, len(outputs)), NCHW if image else None)
        return places

    def without_elements(self) -> Iterator[tuple[NodeUnit, str]]:
        """Units of a finished model with an operation that does not support its input without elements, with reasons."""
        model = self._builder.model
        for operation, unit in self._made():
            empty = [i for i in operation.inputs if (k := model.operands[i].kind).type.is_tensor and k.size == 0]
            if empty and not row_of(operation.code).zero_sized:
                name = self._builder.names.get(empty[0], unit.target.out.name)
                yield unit, f"'{name}' has no elements, and {operation.code.name} supports no such tensor"

    def refused_by(self, refuse: Refuse) -> Iterator[tuple[NodeUnit, str]]:
        """Units of a finished model with an operation that `refuse` rejects, with reasons. If the operation belongs to no unit but
        copies or transposes a result, every unit is listed.
        """
        reasons = dict(refuse(self._builder.model))
        blamed = [(unit, reasons.pop(o)) for o, unit in self._made() if o in reasons]
        yield from blamed
        if not blamed:
            yield from ((unit, reason) for reason in reasons.values() for unit in self.region.units)

    def _made(self) -> Iterator[tuple[ModelOperation, NodeUnit]]:
        """The operations of a finished model with their units. Those after the last unit copy and transpose results."""
        model = self._builder.model
        for operation, added in zip(model.operations, model.client_order):
            if added < len(self._makers):
                yield operation, self._makers[added]

    def _newest(self) -> tuple[Node, ...]:
        """The nodes of the unit with the operation of the highest feature level if that exceeds the runtime's; else all nodes."""
        model = self._builder.model
        if model.level > properties().feature_level:
            for operation, unit in self._made():
                if operation_level(operation, model.operands) == model.level:
                    return unit.nodes
        return self.region.nodes

    def _lower(self, unit: NodeUnit) -> None:
        builder = self._builder
        if self.refused and any(o is not None and builder.lacks(o.value) for o in unit.inputs):
            return  # A unit that produces an input could not be lowered.
        try:
            LOWERINGS[unit.op](builder, unit)
        except (NnapiError, BackendError) as error:
            self._refuse(unit, error)
        except OverflowError as error:
            self._refuse(unit, BackendError(f"a number is too large ({error})", backend="nnapi"))
        self._makers += [unit] * (len(builder.model.operations) - len(self._makers))

    def _refuse(self, unit: NodeUnit, error: NnapiError | BackendError) -> None:
        self.refused.append(RefusedError(unit.nodes, str(error).removeprefix("backend nnapi: ")))

    def _fed(self) -> tuple[Value, ...]:
        """The values that the model gets as inputs. Values that it uses only as numbers, not as tensors, are left out."""
        read = {v for node in self.region.nodes for v in node.inputs}
        found = []
        for value in self.region.inputs:
            readers = [u for u in self.region.units if any(o is not None and o.value is value for o in u.inputs)]
            if value in read and readers and self._is_made(value, readers):
                found.append(value)
        return tuple(found)

    def _is_made(self, value: Value, readers: Sequence[NodeUnit]) -> bool:
        """Add the operand of an input. If that fails, the readers are refused."""
        try:
            self._builder.make(value)
        except (NnapiError, BackendError) as error:
            for unit in readers:
                self._refuse(unit, error)
            return False
        return True

    def _quantization(self) -> dict[Value, Quantization]:
        """Scale and zero point of the quantized tensors. A unit that states others for a tensor that is not constant is refused."""
        found: dict[Value, Quantization] = {}
        for unit in self.region.units:
            for operand in (*unit.inputs, *unit.outputs):
                stated = parameters(operand)
                if operand is None or stated is None or found.setdefault(operand.value, stated) == stated:
                    continue
                if operand.value.constant is None:
                    self._refuse(unit, _disagreement(operand, found[operand.value], stated))
        return found


def _disagreement(operand: UnitOperand, one: Quantization, other: Quantization) -> BackendError:
    stated = f"scale {one[0]:g} and zero point {one[1]} to one node, {other[0]:g} and {other[1]} to another"
    message = f"'{operand.value.name}' has {stated}: NNAPI knows one quantization of a tensor"
    return BackendError(message, backend="nnapi")


def _may_fuse(unit: NodeUnit) -> bool:
    """True for an operation with one result and one reader of it, which may be its activation."""
    is_alone = len(unit.target.present_outputs) == 1 and len(unit.target.out.uses) == 1
    return unit.op in FUSING and not is_quantized(unit) and is_alone


def _fused(members: Sequence[NodeUnit], outputs: Sequence[Value]) -> dict[Value, Fused]:
    """For each value whose operation applies the Relu or Clip after it: the fuse code, and the output of that Relu or Clip."""
    fusing = {u.target.out for u in filter(_may_fuse, members)}.difference(outputs)
    found: dict[Value, Fused] = {}
    for unit in members:
        value = unit.input(0)
        if unit.op in ("Relu", "Clip") and not unit.is_group and value is not None and value in fusing:
            found[value] = (elementwise.fuse_code(unit), unit.target.out)
    return found
