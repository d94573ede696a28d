"""The support rules of the NNAPI execution provider: one row per operator, and the function that applies a row to a unit."""

from __future__ import annotations

from collections.abc import Callable

from ortconv.ir.graph import Value
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import CHANGED, no_operation, not_of_domains, type_name, version
from ortconv.partition.nnapi import convolution, elementwise, matmul, movement, normalization, pooling, resize
from ortconv.partition.nnapi.checks import needs_level, static_shapes
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.nnapi.runtime import INTERNAL_UINT8, refusals
from ortconv.partition.policy import Objection, Objections, Target

FAMILIES = (convolution, elementwise, matmul, movement, normalization, pooling, resize)

ROWS: dict[str, NnapiRow] = {row.op: row for family in FAMILIES for row in family.ROWS}
"""The operators that NNAPI supports, by ONNX op type."""

_FUSED = "use the operators that it was fused from, which NNAPI supports: convert --use-nnapi leaves them unfused"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("Erf", "Gelu"), f"export GELU in its approximate form, by Tanh, {CHANGED}"),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization"), "write it as ReduceMean, Sub, Mul, Add, Sqrt and Div"),
    "SpaceToDepth": "write it as Slice and Concat",
    "HardSigmoid": "write it as Mul, Add, Max and Min",
    "HardSwish": "write it as Add of 3, Clip from 0 to 6, Mul by 1/6, and Mul",
    "Mish": "write it as Exp, Add, Log, Tanh and Mul",
    "Cos": "write it as Add of pi/2 and Sin",
    "LogSoftmax": "write it as Softmax and Log",
    "Softplus": "write it as Exp, Add and Log",
    "ConvTranspose": f"train or export with Resize and Conv, {CHANGED}",
    "GroupNormalization": "write it as Reshape, ReduceMean, Sub, Mul, Add, Sqrt and Div",
    "Sum": "write it as Add nodes",
    "Mean": "write it as Add nodes and Mul",
    "Reciprocal": "write it as Div",
    "ReduceSum": "write it as ReduceMean and Mul",
    "GlobalLpPool": "write it as Mul, ReduceMean, Mul and Sqrt",
    "ReduceL2": "write it as Mul, ReduceMean, Mul and Sqrt",
    "Expand": "leave it out where Add, Sub, Mul or Div read it, which broadcast",
    **dict.fromkeys(("Shape", "ConstantOfShape", "Range"), "fix the shapes, so that it folds: convert --fix-dim"),
    "Where": "write masks as float32 factors and summands, by Mul and Add",
    "NonMaxSuppression": "end the model before it, and select boxes in the app",
    "Upsample": "export with opset 11 or newer, as Resize in asymmetric coordinates",
    **dict.fromkeys(("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"),
                    f"quantize statically, with QuantizeLinear and DequantizeLinear, {CHANGED}"),
    **{f"com.microsoft:{op}": _FUSED
       for op in ("QuickGelu", "FusedConv", "FusedGemm", "FusedMatMul", "QLinearConcat", "QLinearSoftmax")},
}  # fmt: skip
"""Advice for operators that NNAPI does not support."""


def objections(unit: NodeUnit, target: Target, in_group: Callable[[Value], bool]) -> Objections:
    """All objections to a unit. `in_group(value)` is true if a target node of the growing partition produces the value.

    Objections with the rule "runtime" are to units that ONNX Runtime's execution provider accepts and NNAPI then refuses.
    """
    row = ROWS.get(unit.op)
    if row is None:
        yield no_operation(unit.target, target, INSTEAD, "export one model per branch, or unroll the loop")
    elif unit.target.domain not in row.domains:
        yield not_of_domains(unit, row.domains)
    else:
        found = tuple(_provider(row, unit, target, in_group))
        yield from found or refusals(row, unit, target, in_group)


def _provider(row: NnapiRow, unit: NodeUnit, target: Target, in_group: Callable[[Value], bool]) -> Objections:
    """All objections of the execution provider to a unit of the row's operator."""
    level = row.level(unit) if callable(row.level) else row.level
    yield from needs_level(unit.op, level, target)
    yield from static_shapes(unit, target)
    yield from version(unit, row.since, target)
    if not unit.is_group:
        yield from row.types(unit, target)
        yield from _internal_uint8(unit, in_group)
    elif row.qdq is None:
        group = f"this QDQ group of {len(unit.nodes)} nodes computes in {type_name(unit.dtype(0))}"
        message = f"NNAPI runs {unit.op} only in float: {group}"
        yield Objection("qdq", message, f"leave {unit.op} unquantized, {CHANGED}")
        return
    else:
        yield from row.qdq(unit, target)
    yield from row.check(unit, target)


def _internal_uint8(unit: NodeUnit, in_group: Callable[[Value], bool]) -> Objections:
    if unit.op not in INTERNAL_UINT8 or unit.dtype(0) is not DType.UINT8:
        return
    for slot, operand in enumerate(unit.inputs if unit.op == "Concat" else unit.inputs[:1]):
        if operand is not None and not in_group(operand.value):
            message = f"input {slot} '{operand.value.name}' is uint8 and comes from outside of the partition"
            advice = f"place {unit.op} between DequantizeLinear and QuantizeLinear" if ROWS[unit.op].qdq else ""
            yield Objection("internal-uint8", f"{message}: its scale and zero point are unknown", advice)
