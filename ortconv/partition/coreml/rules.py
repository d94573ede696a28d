"""The support rules of the CoreML execution provider: one row per operator."""

from __future__ import annotations

from collections.abc import Callable

from ortconv.ir.graph import Value
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import CHANGED, no_operation, not_of_domains
from ortconv.partition.coreml import convolution, elementwise, image, indices, matmul, movement, normalization, resize
from ortconv.partition.coreml.row import CoremlRow, judge
from ortconv.partition.policy import Objections, Target

FAMILIES = (convolution, elementwise, image, indices, matmul, movement, normalization, resize)

ROWS: dict[str, CoremlRow] = {row.op: row for family in FAMILIES for row in family.ROWS}
"""The operators that CoreML supports, by ONNX op type."""

INSTEAD: dict[str, str] = {
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "DynamicQuantizeLinear", "MatMulInteger",
         "ConvInteger"),
        f"convert the float model, {CHANGED}: CoreML computes in floats, and quantizes weights with tools of its own",
    ),
    "HardSwish": "write it as HardSigmoid and Mul",
    "Mish": "write it as Softplus, Tanh and Mul",
    "Neg": "write it as Mul by -1",
    "Min": "write it as Mul by -1, Max, and Mul by -1",
    "Sum": "write it as Add nodes",
    "Mean": "write it as Add nodes and Mul",
    "Abs": "write it as Max of the tensor and its Mul by -1",
    "ReduceL2": "write it as Mul, ReduceSum and Sqrt",
    "ReduceL1": "write it as Mul by -1, Max and ReduceSum",
    "SpaceToDepth": "leave it as Slice and Concat: convert --disable-pass SliceConcatToSpaceToDepthFusion",
    "Upsample": "export with opset 11 or newer, as Resize",
    "Expand": "let Add and Mul broadcast, or give the other operand the broadcast shape",
    **dict.fromkeys(("ConstantOfShape", "Range"), "fix the shapes, so that it folds: convert --fix-dim NAME=N"),
    "NonMaxSuppression": "end the model before it, and select boxes in the app",
    **{f"com.microsoft:{op}": "leave it in parts: convert --use-coreml"
       for op in ("FusedGemm", "FusedMatMul", "SkipLayerNormalization", "BiasGelu")},
}  # fmt: skip
"""Advice for operators that CoreML does not support."""


def objections(unit: NodeUnit, target: Target, in_group: Callable[[Value], bool]) -> Objections:
    """All objections to a unit, which is always a single node."""
    row = ROWS.get(unit.op)
    if row is None:
        unnest = "let CoreML have the nodes inside: --coreml-enable-on-subgraph"
        yield no_operation(unit.target, target, INSTEAD, unnest)
    elif unit.target.domain not in row.domains:
        yield not_of_domains(unit, row.domains)
    else:
        yield from judge(row, unit, target)
