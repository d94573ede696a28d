"""Matrix products."""

from __future__ import annotations

from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import CHANGED, all_of, attribute_is, constant, dtype, rank, role
from ortconv.partition.nnapi.checks import bias_scale, coarser_output, is_quantized, needs_level, quantized
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import Objection, Objections, Target


def gemm_weights(unit: NodeUnit, target: Target) -> Objections:
    """Require a constant B unless transB is set: NNAPI stores it as [N, K]."""
    if unit.target.attr("transB", 0) == 0:
        yield from constant(1)(unit, target)


def gemm_bias(unit: NodeUnit, target: Target) -> Objections:
    """Require for C one row of N elements, constant if quantized; leading dimensions of 1 need feature level 28."""
    shape, weights = unit.shape(2), unit.shape(1)
    if unit.input(2) is None:
        return
    if unit.is_group:
        yield from constant(2)(unit, target)
        yield from dtype(DType.INT32, slots=(2,))(unit, target)
    if shape is None or weights is None or len(weights) != 2:
        return
    columns = weights[0 if unit.target.attr("transB", 0) else 1]
    if not shape or shape[-1] != columns or any(d != 1 for d in shape[:-1]):
        message = f"{role(unit, 2)} has shape {list(shape)}: NNAPI accepts [{columns}] or [1,{columns}]"
        yield Objection("shape", message, "add it with Add behind the Gemm")
    elif len(shape) != 1:
        yield from needs_level(f"a bias of rank {len(shape)}", 28, target)


def matmul(unit: NodeUnit, target: Target) -> Objections:
    """Require two matrices, B constant, or, in float, two batches of matrices of the same size."""
    a, b = unit.shape(0), unit.shape(1)
    if a is None or b is None:
        return
    if len(a) == len(b) == 2:
        yield from constant(1)(unit, target)
        return
    if is_quantized(unit):
        yield from rank(2, 2, 0, 1)(unit, target)
        yield from constant(1)(unit, target)
    elif len(a) != len(b) or len(a) < 3:
        message = f"the inputs have ranks {len(a)} and {len(b)}: NNAPI accepts 2 and 2, or equal ones from 3"
        yield Objection("rank", message, _same_rank(unit, len(a), len(b)))
    else:
        yield from needs_level(f"a MatMul of rank {len(a)}", 29, target)
        if a[:-2] != b[:-2]:
            message = f"the batches are {list(a[:-2])} and {list(b[:-2])}: NNAPI needs them equal"
            yield Objection("shape", message, "repeat the smaller one: fold an Expand of it, if it is constant")


def _same_rank(unit: NodeUnit, a: int, b: int) -> str:
    if max(a, b) > 2 and min(a, b) > 2:
        return "give both the same dimensions before the last 2"
    if unit.constant(1) is None:
        return ""
    return "put it between Reshapes, from and to matrices" + (", and give it the matrix" if b == 1 else "")


def signed_weights(unit: NodeUnit, target: Target) -> Objections:
    """Require int8 weights without transB, for which the provider makes an operand itself, and with one scale."""
    operand = unit.inputs[1]
    if not unit.is_group or operand is None or unit.dtype(1) is not DType.INT8:
        return
    scale = None if operand.scale is None else operand.scale.constant
    if unit.target.attr("transB", 0):
        message = f"{role(unit, 1)} is int8 with transB 1"
        yield Objection("quantization", message, "transpose it and set transB to 0; convert --use-nnapi does so")
    elif scale is not None and scale.size > 1:
        message = f"{role(unit, 1)} has a scale for each channel: NNAPI's FULLY_CONNECTED has one"
        yield Objection("quantization", message, f"quantize per tensor, {CHANGED}")


WEIGHTS = quantized(weights=1)
ONE_BETA = all_of(
    attribute_is("transA", 0, instead="put a Transpose before it"),
    attribute_is("alpha", 1.0, instead="multiply B by alpha"),
    attribute_is("beta", 1.0, instead="multiply C by beta"),
)

ROWS = (
    NnapiRow("Gemm", since=7, check=all_of(rank(2, 2, 0, 1), ONE_BETA, gemm_weights, gemm_bias), qdq=WEIGHTS,
        runtime=all_of(coarser_output(29), signed_weights, bias_scale), takes_empty=True),
    NnapiRow("MatMul", check=matmul, qdq=WEIGHTS, runtime=all_of(rank(0, 4, 0, 1), coarser_output(29))),
    NnapiRow("QLinearMatMul", types=WEIGHTS, check=matmul, runtime=coarser_output(29)),
)  # fmt: skip
