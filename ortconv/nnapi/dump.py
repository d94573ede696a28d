"""Models as JSON documents and as text: operands, operations, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ortconv.nnapi.device import Device
from ortconv.nnapi.model import Model, ModelOperand
from ortconv.nnapi.operand import Lifetime

SHOWN = 8  # elements of a constant that the text shows


def document(
    model: Model, names: Mapping[int, str] | None = None, places: Sequence[Device | None] = ()
) -> dict[str, Any]:
    """Plain data for JSON, operations in execution order. `names` are names of operands, `places` the devices of operations."""
    return {
        "feature_level": int(model.level),
        "relaxed": model.relaxed,
        "inputs": list(model.inputs),
        "outputs": list(model.outputs),
        "operands": [
            _operand(index, operand, (names or {}).get(index)) for index, operand in enumerate(model.operands)
        ],
        "operations": [
            {"type": one.code.name, "inputs": list(one.inputs), "outputs": list(one.outputs)}
            | ({} if device is None else {"device": device.name})
            for one, device in zip_longest(model.operations, places)
        ],
    }


def _operand(index: int, operand: ModelOperand, name: str | None) -> dict[str, Any]:
    kind, quant = operand.kind, operand.kind.channel_quant
    found: dict[str, Any] = {
        "index": index,
        "type": kind.type.name,
        "dimensions": list(kind.dims),
        "lifetime": operand.lifetime.name,
    }
    if name is not None:
        found["name"] = name
    if kind.scale or kind.is_quantized:
        found |= {"scale": kind.scale, "zero_point": kind.zero_point}
    if quant is not None:
        found["channel_quant"] = {"dim": quant.dim, "scales": list(quant.scales)}
    if operand.value is not None:
        found["bytes"] = operand.value.nbytes
        if operand.value.size <= SHOWN:
            found["value"] = operand.value.tolist()
    if operand.model is not None:
        found["model"] = document(operand.model)
    return found


def text(model: Model, names: Mapping[int, str] | None = None, places: Sequence[Device | None] = ()) -> str:
    """One line for each operand that is not a temporary, and one for each operation."""
    return "\n".join(_lines(model, "", names or {}, places))


def _lines(model: Model, indent: str, names: Mapping[int, str], places: Sequence[Device | None]) -> Iterator[str]:
    relaxed = ", relaxed" if model.relaxed else ""
    yield f"{indent}model: {len(model.operands)} operands, {len(model.operations)} operations, level {model.level}{relaxed}"
    for index, operand in enumerate(model.operands):
        if operand.lifetime is Lifetime.TEMPORARY:
            continue
        yield f"{indent}  %{index} {operand.lifetime.name.lower()} {operand.kind}{_value(operand)}{_name(names, index)}"
        if operand.model is not None:
            yield from _lines(operand.model, indent + "    ", {}, ())
    for one, device in zip_longest(model.operations, places):
        where = "" if device is None else f" on {device.name}"
        results = ", ".join(f"%{index} {model.operands[index].kind}" for index in one.outputs)
        inputs = ", ".join(f"%{index}" for index in one.inputs)
        yield f"{indent}  {results} = {one.code.name}({inputs}){where}{_name(names, *one.outputs)}"


def _value(operand: ModelOperand) -> str:
    if operand.value is None:
        return ""
    if operand.value.size > SHOWN:
        return f" = {operand.value.nbytes} bytes"
    return f" = {operand.value.tolist()}"


def _name(names: Mapping[int, str], *operands: int) -> str:
    found = ", ".join(names[index] for index in operands if index in names)
    return f"  # {found}" if found else ""
