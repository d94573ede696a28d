"""The list of operators, and the types they are used with, that a reduced build of onnxruntime must contain."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ortconv.ir.graph import Node
from ortconv.ir.model import Model
from ortconv.ir.types import DType, MapType, SequenceType, TensorType, ValueType
from ortconv.ortformat.derived import resolved_schema

CPP_TYPES = {
    DType.FLOAT: "float", DType.UINT8: "uint8_t", DType.INT8: "int8_t", DType.UINT16: "uint16_t",
    DType.INT16: "int16_t", DType.INT32: "int32_t", DType.INT64: "int64_t", DType.STRING: "std::string",
    DType.BOOL: "bool", DType.FLOAT16: "MLFloat16", DType.DOUBLE: "double", DType.UINT32: "uint32_t",
    DType.UINT64: "uint64_t", DType.BFLOAT16: "BFloat16", DType.FLOAT8E4M3FN: "Float8E4M3FN",
    DType.FLOAT8E4M3FNUZ: "Float8E4M3FNUZ", DType.FLOAT8E5M2: "Float8E5M2", DType.FLOAT8E5M2FNUZ: "Float8E5M2FNUZ",
}  # fmt: skip


class Tracked(NamedTuple):
    """The inputs and outputs whose types an operator's kernel depends on."""

    inputs: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = ()


_BY_FIRST_INPUT = """
    Abs Add ArgMax ArgMin AveragePool BatchNormalization BitShift Ceil Clip Concat Conv CumSum DequantizeLinear Div Equal
    Exp Expand Floor Gemm Greater IsNaN Less Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mul Neg NonZero Pad
    QLinearConv QLinearMatMul Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign Round Scatter ScatterElements
    ScatterND Shrink Sigmoid Sign Sin Softmax Split SplitToSequence Sqrt Sub Sum Tanh TopK Transpose Unique
"""
_BY_TWO_INPUTS = ("Gather", "GatherElements", "Pow", "Slice")
_BY_OUTPUT = (
    "ConstantOfShape", "DynamicQuantizeLinear", "Multinomial", "QuantizeLinear", "RandomNormal", "RandomNormalLike",
    "RandomUniform", "RandomUniformLike",
)  # fmt: skip

TRACKED: dict[tuple[str, str], Tracked] = {
    **{("ai.onnx", op): Tracked() for op in _BY_FIRST_INPUT.split()},
    **{("ai.onnx", op): Tracked((0, 1)) for op in _BY_TWO_INPUTS},
    **{("ai.onnx", op): Tracked((), (0,)) for op in _BY_OUTPUT},
    **{("com.microsoft", op): Tracked() for op in ("QLinearAdd", "QLinearMul", "QLinearConv")},
    ("ai.onnx", "Where"): Tracked((1,)),
    ("ai.onnx", "Cast"): Tracked((0,), (0,)),
}

ONE_HOT = ("ai.onnx", "OneHot")
"""Its kernels are chosen by three types at once: those of inputs 0, 2 and 1."""


class RequiredOperators:
    """What the models that were added need of a build; with `types`, also the types that they use operators with."""

    def __init__(self, *, types: bool) -> None:
        self._operators: dict[str, dict[int, set[str]]] = {}
        self._usage = _Usage()
        self._types = types

    def add(self, model: Model) -> None:
        """Add what a model needs as it is."""
        for node in model.graph.walk():
            domain = node.domain or "ai.onnx"
            self._operators.setdefault(domain, {}).setdefault(resolved_schema(node).since, set()).add(node.op)
            if self._types:
                self._usage.add(domain, node)

    def text(self, labels: Iterable[str]) -> str:
        """The text of a required_operators.config whose header shows these labels, the paths of models."""
        lines = ["# Generated from model/s:", *(f"# - {label}" for label in sorted(labels, key=Path))]
        for domain, versions in sorted(self._operators.items()):
            for version, ops in sorted(versions.items()):
                rows = ",".join(op + self._usage.text(domain, op) for op in sorted(ops))
                lines.append(f"{domain};{version};{rows}")
        return "\n".join(lines) + "\n"


class _Usage:
    """The types that operators are used with, whatever their version."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[tuple[str, int], set[str]]] = {}
        self.triples: set[tuple[str, str, str]] = set()

    def add(self, domain: str, node: Node) -> None:
        if (domain, node.op) == ONE_HOT:
            first, depth, last = (_cpp_type(node.inputs[i]) for i in range(3))
            self.triples.add((first, last, depth))
        tracked = TRACKED.get((domain, node.op))
        if tracked is None:
            return
        seen = self.seen.setdefault((domain, node.op), {})
        for side, slots, values in (
            ("inputs", tracked.inputs, node.inputs),
            ("outputs", tracked.outputs, node.outputs),
        ):
            for slot in slots:
                if slot < len(values) and values[slot] is not None:
                    seen.setdefault((side, slot), set()).add(_cpp_type(values[slot]))

    def text(self, domain: str, op: str) -> str:
        """The JSON that follows an operator's name; empty where no types are known."""
        if (domain, op) == ONE_HOT and self.triples:
            return json.dumps({"custom": sorted(self.triples)})
        entry: dict[str, dict[int, list[str]]] = {}
        for (side, slot), found in sorted(self.seen.get((domain, op), {}).items()):
            entry.setdefault(side, {})[slot] = sorted(found)
        return json.dumps(entry) if entry else ""


def _cpp_type(value: object) -> str:
    return _cpp(getattr(value, "type", None))


def _cpp(type: ValueType | None) -> str:
    if isinstance(type, TensorType):
        return CPP_TYPES[type.dtype]
    if isinstance(type, SequenceType):
        return _cpp(type.element)
    if isinstance(type, MapType):
        return f"std::map<{CPP_TYPES[type.key]},{_cpp(type.value)}>"
    return "unknown"
