"""Checks that the support rules of all providers share. Each one yields objections; no objection means support.

A check that needs a rank or shape that is unknown yields nothing: the shape check reports the unknown shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import producer_of
from ortconv.ir.schema import attribute
from ortconv.ir.symbols import is_stated, open_dims
from ortconv.ir.types import DType, Shape
from ortconv.ir.units import NodeUnit
from ortconv.partition.policy import Objection, Objections, Target
from ortconv.wording import fix_dim_options

Check = Callable[[NodeUnit, Target], Objections]

MAX_SINCE_VERSION = 27
"""Newest supported version of a schema: 15, 17 and 19 in ONNX Runtime of 2023 and 2024 (CoreML 20 in 2024), 27 in 2026."""

_TYPE_NAMES = {DType.FLOAT: "float32", DType.DOUBLE: "float64"}


def type_name(dtype: DType | None) -> str:
    return "unknown" if dtype is None else _TYPE_NAMES.get(dtype, dtype.name.lower())


def role(unit: NodeUnit, slot: int) -> str:
    """An input as messages call it: its slot and its name."""
    value = unit.input(slot)
    return f"input {slot}" if value is None else f"input {slot} '{value.name}'"


def dynamic(value: Value, name: str, what: str) -> Objection:
    """The objection to a tensor with an unknown dimension or rank. `name` is the target, and `what` its requirement."""
    if value.shape is None:
        found = f"the shape of '{value.name}' is unknown"
    else:
        dims = ",".join(str(d) if is_stated(d) else "?" for d in value.shape)
        found = f"'{value.name}' has shape [{dims}]"
    if _inputs_are_fixed(value.graph):
        advice = "the inputs have fixed shapes, and what they hold decides this size: only the CPU can do it"
    else:
        advice = f"give the graph inputs fixed shapes: {_fix_dims(value.graph)}"
    return Objection("static-shape", f"{found}: {name} needs {what}", advice)


def _fix_dims(graph: Graph | None) -> str:
    """The --fix-dim options for the open dimensions of the outermost graph's inputs, or other advice if a rank is unknown."""
    inputs = () if (outer := _outermost(graph)) is None else outer.inputs
    names = open_dims(inputs)
    if not names or any(value.shape is None for value in inputs):
        return "export it with sizes for them"
    return f"convert {fix_dim_options(names)}"


def _outermost(graph: Graph | None) -> Graph | None:
    while graph is not None and graph.owner is not None:
        graph = graph.owner.graph
    return graph


def _inputs_are_fixed(graph: Graph | None) -> bool:
    """True if all inputs of the outermost graph have static shapes."""
    outer = _outermost(graph)
    return outer is not None and all(v.static_shape is not None for v in outer.inputs)


def all_of(*checks: Check) -> Check:
    """Combine checks into one that yields the objections of all."""

    def check(unit: NodeUnit, target: Target) -> Objections:
        for part in checks:
            yield from part(unit, target)

    return check


def no_objection(unit: NodeUnit, target: Target) -> Objections:
    return iter(())


# ---------------------------------------------------------------------- shapes


def rank(low: int, high: int, *slots: int, fewer: str | None = None, more: str | None = None) -> Check:
    """Require ranks from `low` to `high` for the inputs `slots`, by default the first.

    `more` is the advice for too few dimensions, `fewer` for too many. The default advice is to put Reshapes around the node.
    """
    wanted = str(low) if low == high else f"at most {high}" if low == 0 else f"{low} to {high}"
    part = f"merge dimensions with a Reshape before and part them after it, to {high} at most"

    def check(unit: NodeUnit, target: Target) -> Objections:
        for slot in slots or (0,):
            found = unit.rank(slot)
            if found is not None and not low <= found <= high:
                message = f"{role(unit, slot)} has rank {found}: {target.name} accepts {wanted} here"
                yield Objection("rank", message, to_higher(found) if found < low else part if fewer is None else fewer)

    def to_higher(found: int) -> str:
        if more is not None:
            return more
        if found == 0:
            return "give the tensor the shape [1] where it is made"
        return f"add dimensions of 1 with a Reshape before and remove them after it, to {low} at least"

    return check


def not_empty(unit: NodeUnit, target: Target) -> Objections:
    """Require that no dimension of the first input is 0."""
    shape = unit.shape(0)
    if shape is not None and 0 in shape:
        yield Objection("empty", f"{role(unit, 0)} has shape {list(shape)}: no dimension may be 0")


# ---------------------------------------------------------------------- types and constants


TYPE_ADVICE: dict[str, dict[DType | None, str]] = {
    "nnapi": {
        DType.FLOAT16: "export the model in float32: NNAPI computes it in half precision with USE_FP16",
        DType.DOUBLE: "export the model in float32",
        DType.INT8: "quantize activations to uint8",
        DType.INT32: "compute it in float32",
        DType.INT64: "compute it in float32, or leave it to the CPU: NNAPI has no 64-bit integers",
        DType.BOOL: "write masks as float32 factors or summands",
    },
    "coreml": {
        DType.FLOAT16: "choose the format that has it: --coreml-format MLProgram",
        DType.DOUBLE: "export the model in float32",
        DType.UINT8: "leave the operator unquantized: CoreML computes in floats",
        DType.INT8: "leave the operator unquantized: CoreML computes in floats",
        DType.INT64: "compute it in float32, or leave it to the CPU",
        DType.BOOL: "write masks as float32 factors or summands",
    },
}
"""Advice for an unsupported element type, by provider."""


def _type_advice(unit: NodeUnit, found: DType | None, target: Target) -> str:
    if found is DType.INT64 and not _inputs_are_fixed(unit.target.graph):
        return f"fold what computes shapes and indices: {_fix_dims(unit.target.graph)}"
    return TYPE_ADVICE.get(target.ep, {}).get(found, "")


def dtype(*allowed: DType, slots: tuple[int, ...] = (0,)) -> Check:
    """Require one of these element types for the inputs `slots`."""
    wanted = " or ".join(map(type_name, allowed))

    def check(unit: NodeUnit, target: Target) -> Objections:
        for slot in slots:
            if unit.dtype(slot) not in allowed:
                found = unit.dtype(slot)
                message = f"{role(unit, slot)} is {type_name(found)}: {target.name} accepts {wanted} here"
                advice = _type_advice(unit, found, target) if DType.FLOAT in allowed else ""
                yield Objection("dtype", message, advice)

    return check


def constant(*slots: int) -> Check:
    """Require that the inputs `slots` are constants if they are present."""

    def check(unit: NodeUnit, target: Target) -> Objections:
        for slot in slots:
            value = unit.input(slot)
            if value is not None and value.constant is None:
                message = f"{role(unit, slot)} is computed or fed: {target.name} needs a constant"
                yield Objection("constant", message, _constant_advice(value, target))

    return check


def _constant_advice(value: Value, target: Target) -> str:
    if value.const is not None:
        return "it is a graph input with a default value: convert --freeze-initializers"
    if target.ep == "nnapi" and producer_of(value, "DequantizeLinear") is not None:
        return "quantize data, weights, bias and result; convert --use-nnapi quantizes a float bias"
    return "fold the nodes that compute it into an initializer"


CHANGED = "which changes the numbers"
"""End of advice that changes the model's results."""


def attribute_is(name: str, *allowed: Any, instead: str | None = None) -> Check:
    """Require one of the `allowed` values for an attribute, whether stated or the default, if the operator's version has it.

    `instead` is advice that keeps the results.
    """
    wanted = " or ".join(map(str, allowed))
    advice = f"export with {name} {wanted}, {CHANGED}" if instead is None else instead

    def check(unit: NodeUnit, target: Target) -> Objections:
        value = attribute(unit.target, name)
        if value is not None and value not in allowed:
            yield Objection("attribute", f"{name} is {value}: {target.name} accepts {wanted}", advice)

    return check


def ones(name: str) -> Check:
    """Require that the elements of a list attribute are all 1, if it is stated."""

    def check(unit: NodeUnit, target: Target) -> Objections:
        values: tuple[int, ...] = unit.target.attr(name, ())
        if any(v != 1 for v in values):
            yield Objection("attribute", f"{name} is {list(values)}: {target.name} accepts 1 here")

    return check


def shrinks_evenly(shape: Shape, scales: Mapping[int, float], target: Target) -> Objections:
    """Require that if one axis of an image shrinks, all of `scales` do, by 1/n, where n divides the size. See
    ReciprocalIsAFactorOfN in ONNX Runtime's core/providers/utils.cc.
    """
    if all(scale >= 1 for scale in scales.values()):
        return
    for axis, scale in scales.items():
        size, parts = shape[axis], 1 / float(np.float32(scale)) if scale > 0 else 0.0
        if not isinstance(size, int) or not parts > 1 or abs(parts - round(parts)) >= 1e-4 or size % round(parts):
            message = f"axis {axis} of size {size} is scaled by {scale:g}"
            exact = isinstance(size, int) and (size * scale).is_integer()
            advice = "state sizes instead of scales" + ("" if exact else f", {CHANGED}")
            yield Objection("shape", f"{message}: {target.name} shrinks all by 1 over a divisor of the size", advice)


def sampling_mode(unit: NodeUnit, target: Target, advice: str) -> Objections:
    """Require mode linear, or mode nearest with asymmetric coordinates rounded down. `advice` is for other coordinates."""
    mode = attribute(unit.target, "mode")
    if mode == "nearest":
        transform = attribute(unit.target, "coordinate_transformation_mode")
        rounding = attribute(unit.target, "nearest_mode")
        if transform != "asymmetric" or rounding != "floor":
            message = f"mode nearest has coordinate_transformation_mode {transform} and nearest_mode {rounding}"
            yield Objection("attribute", f"{message}: {target.name} accepts asymmetric and floor", advice)
    elif mode != "linear":
        message = f"mode is {mode}: {target.name} accepts linear or nearest"
        yield Objection("attribute", message, f"resize with mode linear, {CHANGED}")


def single_output(unit: NodeUnit, target: Target) -> Objections:
    count = sum(v is not None for v in unit.target.outputs)
    if count > 1:
        message = f"the node has {count} outputs: {target.name} makes 1"
        yield Objection("outputs", message, "drop the outputs that the model can do without")


def kernel_rank(unit: NodeUnit, target: Target) -> Objections:
    kernel = unit.target.attr("kernel_shape", ())
    if len(kernel) != 2:
        yield Objection("attribute", f"kernel_shape is {list(kernel)}: {target.name} pools over 2 dimensions")


def version(unit: NodeUnit, since: int, target: Target) -> Objections:
    """Require a version of the operator's schema from `since` to the newest supported one."""
    if not since <= unit.since <= MAX_SINCE_VERSION:
        message = f"{unit.op} has version {unit.since}: {target.provider.name} accepts {since} to {MAX_SINCE_VERSION}"
        advice = f"convert the model to opset {since} or newer" if unit.since < since else "use an older opset"
        yield Objection("since-version", message, advice)


def not_of_domains(unit: NodeUnit, domains: Sequence[str]) -> Objection:
    known = " or ".join(domain or "ai.onnx" for domain in domains)
    return Objection("domain", f"{unit.target.label} is not of domain {known}")


def no_operation(node: Node, target: Target, instead: Mapping[str, str], unnest: str) -> Objection:
    """The objection to an operator that the target lacks. `instead` is advice by operator, `unnest` for nodes with subgraphs."""
    if node.subgraphs:
        inside = sum(1 for sub in node.subgraphs for _ in sub.walk())
        if target.takes_subgraphs:
            those = f"{target.provider.name} runs those of its {inside} nodes that it supports"
            return Objection("control-flow", f"{node.op} runs on the CPU; {those}")
        return Objection("control-flow", f"{node.op} and the {inside} nodes in its subgraphs run on the CPU", unnest)
    message = f"{target.provider.name} has no operation for {node.operator}"
    return Objection("operator", message, instead.get(node.operator, ""))


PLAIN_RESIZE = all_of(
    attribute_is("exclude_outside", 0),
    attribute_is("antialias", 0),
    attribute_is("keep_aspect_ratio_policy", "stretch"),
)
"""Refuses forms of Resize that no provider has."""

INFERENCE = all_of(constant(1, 2, 3, 4), single_output, attribute_is("spatial", 1), attribute_is("training_mode", 0))
"""Requires a BatchNormalization by constants, without training."""
