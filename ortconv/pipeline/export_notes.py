"""Facts about a model that another export would avoid. `inspect` lists them, and `convert` warns of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ortconv.ir.graph import Graph, Value
from ortconv.ir.operands import producer_of
from ortconv.ir.schema import trains
from ortconv.ir.types import DType
from ortconv.wording import and_others, counted


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that stands out, and the advice."""

    kind: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


FLOAT16_TO_FLOAT32 = "Float16ToFloat32"


def _is_narrowed(value: Value) -> bool:
    """True for a dequantized value that a Cast rounds to float16."""
    cast = producer_of(value, "Cast")
    return (
        cast is not None
        and value.dtype is DType.FLOAT16
        and producer_of(cast.inputs[0], "DequantizeLinear") is not None
    )


def export_notes(graph: Graph) -> Iterator[Note]:
    overridable = [v.name for v in graph.overridable]
    if overridable:
        message = f"{and_others(overridable)}: a constant that is also an input is never folded"
        yield Note("overridable", message, "ortconv convert --freeze-initializers")
    halves = [node.label for node in graph.walk() if any(map(_is_narrowed, node.present_inputs))]
    if halves:
        count = f"{counted(len(halves), 'node')} between quantizers in float16, such as {halves[0]}: no integer kernels"
        yield Note("float16", count, f"ortconv convert --enable-pass {FLOAT16_TO_FLOAT32}")
    training = [node.label for node in graph.walk() if trains(node)]
    if training:
        count = f"{counted(len(training), 'node')} in training mode, such as {training[0]}"
        yield Note("training", count, "export the model in inference mode: model.eval() in PyTorch")
