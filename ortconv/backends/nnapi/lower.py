"""A region of a graph as an NNAPI model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortconv import nnapi
from ortconv.backends.nnapi import (
    convolution,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    resize,
)
from ortconv.backends.nnapi.builder import Builder, Lowering, Quantization
from ortconv.errors import BackendError
from ortconv.executor.backend import Region
from ortconv.ir.graph import Value
from ortconv.nnapi import FuseCode, NnapiError
from ortconv.nnapi.timing import mark
from ortconv.partition.nnapi.checks import is_quantized, parameters
from ortconv.partition.units import Operand, Unit, units

FAMILIES = (convolution, elementwise, matmul, movement, normalization, pooling, quantization, resize)

LOWERINGS: dict[str, Lowering] = {op: lowering for family in FAMILIES for op, lowering in family.LOWERINGS.items()}
"""How each operator is lowered, by ONNX op type."""

FUSING = frozenset(
    {"Conv", "Add", "Sub", "Mul", "Div", "Gemm", "MatMul", "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool",
     "BatchNormalization"}
)  # fmt: skip
"""Operators whose operations take in the activation behind them."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A finished model, and the values that its inputs and outputs are. `names` are values behind other operands."""

    model: nnapi.Model
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    names: Mapping[int, str]


@mark("LA", "PP", "lower")
def lower(region: Region, level: int, nchw: bool = False, relaxed: bool = False) -> Lowered:
    """The model for a region that is a partition. BackendError where NNAPI cannot express it at this feature level."""
    members = units(region.nodes)
    fused = _fused(members, region.outputs)
    builder = Builder(level, nchw, _quantization(members), fused)
    read = {v for node in region.nodes for v in node.inputs}
    fed = [v for v in region.inputs if v in read and _reaches(v, members)]
    inputs = [builder.add_input(value) for value in fed]
    absorbed = {result for _, result in fused.values()}
    for unit in members:
        if unit.target.out not in absorbed:
            _lower_unit(builder, unit)
    taken = set(inputs)
    outputs: list[int] = []
    for value in region.outputs:
        outputs.append(builder.output(value, taken))
        taken.add(outputs[-1])
    try:
        builder.finish(inputs, outputs, relaxed)
    except NnapiError as error:
        raise BackendError(
            f"the partition with {region.nodes[0].label} is refused: {error}", backend="nnapi"
        ) from error
    return Lowered(builder.model, tuple(fed), region.outputs, builder.names)


def _lower_unit(builder: Builder, unit: Unit) -> None:
    try:
        LOWERINGS[unit.op](builder, unit)
    except (NnapiError, BackendError) as error:
        message = error.message if isinstance(error, BackendError) else str(error)
        raise BackendError(f"{unit.target.label} cannot be lowered: {message}", backend="nnapi") from error


def _reaches(value: Value, members: Sequence[Unit]) -> bool:
    """Whether a unit takes a value as a tensor, and not as a number that the model has within it."""
    return any(operand is not None and operand.value is value for unit in members for operand in unit.inputs)


def _quantization(members: Sequence[Unit]) -> dict[Value, Quantization]:
    """Scale and zero point of the quantized tensors. BackendError where units disagree about one that is no constant."""
    found: dict[Value, Quantization] = {}
    for unit in members:
        for operand in (*unit.inputs, *unit.outputs):
            stated = parameters(operand)
            if operand is None or stated is None or found.setdefault(operand.value, stated) == stated:
                continue
            if operand.value.constant is None:
                raise _disagreement(operand, found[operand.value], stated)
    return found


def _disagreement(operand: Operand, one: Quantization, other: Quantization) -> BackendError:
    return BackendError(
        f"'{operand.value.name}' has scale {one[0]:g} and zero point {one[1]} to one node, {other[0]:g} and {other[1]} to "
        "another: NNAPI knows one quantization of a tensor",
        backend="nnapi",
    )


def _fused(members: Sequence[Unit], outputs: Sequence[Value]) -> dict[Value, tuple[FuseCode, Value]]:
    """Activations that the operation before them takes in: what they read, with their code and what they make."""
    makers = {unit.target.out: unit for unit in members if _makes_one(unit)}
    found: dict[Value, tuple[FuseCode, Value]] = {}
    for unit in members:
        value = unit.input(0)
        if unit.op not in ("Relu", "Clip") or unit.is_group or value is None or value in outputs:
            continue
        maker = makers.get(value)
        if maker is not None and maker.op in FUSING and len(value.uses) == 1:
            found[value] = (elementwise.fuse_code(unit), unit.target.out)
    return found


def _makes_one(unit: Unit) -> bool:
    return not is_quantized(unit) and sum(v is not None for v in unit.target.outputs) == 1
