"""What a lowered partition is made of, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ortconv.backends.nnapi.lower import Lowered
from ortconv.nnapi.model import ModelOperand

MOST_VALUES = 8
"""Elements of a constant that are shown."""


def document(lowered: Lowered) -> dict[str, Any]:
    """Operands and operations as JSON values: codes by name, operands by index."""
    model = lowered.model
    return {
        "feature_level": int(model.level),
        "relaxed": model.relaxed,
        "inputs": list(model.inputs),
        "outputs": list(model.outputs),
        "operands": [_operand(i, operand, lowered.names.get(i)) for i, operand in enumerate(model.operands)],
        "operations": [
            {
                "operation": o.code.name,
                "feature_level": int(o.level),
                "inputs": list(o.inputs),
                "outputs": list(o.outputs),
            }
            for o in model.operations
        ],
    }


def _operand(index: int, operand: ModelOperand, name: str | None) -> dict[str, Any]:
    kind = operand.kind
    found: dict[str, Any] = {"index": index, "type": kind.type.name, "lifetime": operand.lifetime.name}
    if kind.type.is_tensor:
        found["dimensions"] = list(kind.dims)
    if kind.scale:
        found |= {"scale": kind.scale, "zero_point": kind.zero_point}
    if kind.channel_quant is not None:
        found |= {"channel": kind.channel_quant.dim, "scales": list(kind.channel_quant.scales)}
    if name is not None:
        found["name"] = name
    if operand.value is not None:
        found["bytes"] = operand.value.nbytes
        if operand.value.size <= MOST_VALUES:
            found["value"] = operand.value.ravel().tolist()
    return found


def lines(lowered: Lowered) -> Iterable[str]:
    """One line for each input, operation and output; numbers with % are operands."""
    model = lowered.model
    yield from (f"input  {_typed(lowered, i)}" for i in model.inputs)
    for operation in model.operations:
        made = ", ".join(_typed(lowered, i) for i in operation.outputs)
        yield f"{made} = {operation.code.name}({', '.join(_argument(lowered, i) for i in operation.inputs)})"
    yield from (f"output {_typed(lowered, i)}" for i in model.outputs)


def _typed(lowered: Lowered, index: int) -> str:
    name = lowered.names.get(index)
    return f"%{index}: {lowered.model.operands[index].kind}" + (f" '{name}'" if name is not None else "")


def _argument(lowered: Lowered, index: int) -> str:
    operand = lowered.model.operands[index]
    if operand.value is None:
        return f"%{index}"
    if operand.value.size > MOST_VALUES:
        return f"%{index}: {operand.kind}"
    values = [f"{v:g}" if isinstance(v, float) else str(v) for v in operand.value.ravel().tolist()]
    return values[0] if operand.kind.type.is_scalar else f"[{', '.join(values)}]"
