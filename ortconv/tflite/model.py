"""The content of a .tflite file: one graph of tensors and operators, and the names of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortconv.ir.tensor import Array
from ortconv.tflite.layout import ElementType

Option = int | float | bool | Sequence[int]


@dataclass(frozen=True, slots=True)
class QuantizationParameters:
    """Scales and zero points: one of each for a tensor, or one for each index of a dimension."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dimension: int = 0


@dataclass(slots=True)
class Tensor:
    """`shape` has 0 for unknown dimensions. `data` are the elements of a constant."""

    name: str
    type: ElementType
    shape: tuple[int, ...]
    quantization: QuantizationParameters | None = None
    data: Array | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """`code` is a name of `layout.OPERATORS`. `inputs` and `outputs` are numbers of tensors."""

    code: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Option]


@dataclass(slots=True)
class TfliteModel:
    """`inputs` and `outputs` are pairs of the name in the signature and the number of the tensor."""

    name: str
    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    inputs: list[tuple[str, int]] = field(default_factory=list)
    outputs: list[tuple[str, int]] = field(default_factory=list)
