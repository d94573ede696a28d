"""Checks used by CoreML rules only: model formats, versions, and limits of inputs."""

from __future__ import annotations

from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import Check, dtype, dynamic
from ortconv.partition.policy import Objection, Objections, Target

MAX_RANK = 5

OTHER_FORMAT = "choose another format: --coreml-format MLProgram"

SYSTEMS = {5: "iOS 15 or macOS 12", 6: "iOS 16 or macOS 13", 7: "iOS 17 or macOS 14"}


def needs_version(what: str, version: int, target: Target) -> Objections:
    if target.coreml_version < version:
        message = f"{what} needs CoreML version {version}: the target has {target.coreml_version}"
        yield Objection("coreml-version", message, f"ask for {SYSTEMS[version]} at least: --coreml-version {version}")


def by_format(neural_network: Check, ml_program: Check) -> Check:
    """A check that applies `neural_network` or `ml_program`, depending on the target's model format."""

    def check(unit: NodeUnit, target: Target) -> Objections:
        yield from (ml_program if target.is_mlprogram else neural_network)(unit, target)

    return check


def readable(unit: NodeUnit, target: Target, empty: bool) -> Objections:
    """Require known ranks of all inputs, constants too, and sizes within the limits. `empty` permits inputs without elements."""
    for value in dict.fromkeys(operand.value for operand in unit.inputs if operand is not None):
        if value.shape is None:
            yield dynamic(value, target.name, "the rank")
            continue
        if target.coreml_static_inputs and value.static_shape is None:
            yield dynamic(value, target.name, "every dimension here")
        yield from rank_within_limit(f"'{value.name}'", value.rank, target)
        if 0 in value.shape and not empty:
            yield Objection("empty", f"'{value.name}' has shape {list(value.shape)}: no dimension may be 0")


def static(unit: NodeUnit, target: Target) -> Objections:
    """Require a static shape of the first input."""
    value = unit.input(0)
    if value is not None and value.shape is not None and value.static_shape is None and not target.coreml_static_inputs:
        yield dynamic(value, target.name, "every dimension here")


def rank_within_limit(what: str, found: int | None, target: Target) -> Objections:
    if found is not None and found > MAX_RANK:
        message = f"{what} has rank {found}: {target.name} accepts {MAX_RANK} at most"
        yield Objection("rank", message, f"merge dimensions, to {MAX_RANK} at most")


def typed(*allowed: DType) -> Check:
    """Require one of these element types for the first input; MLProgram accepts float16 as well."""
    return by_format(dtype(*allowed), dtype(*allowed, DType.FLOAT16))


floats = by_format(dtype(DType.FLOAT), dtype(DType.FLOAT, DType.FLOAT16, DType.INT64))
"""Check of element types for most operators: float32; in MLProgram also float16 and int64, which it stores as int32."""


def float16_version(unit: NodeUnit, target: Target) -> Objections:
    """Require CoreML version 6 for float16 in operators that select or repeat elements."""
    if unit.dtype(0) is DType.FLOAT16 and target.is_mlprogram:
        yield from needs_version(f"{unit.op} of float16", 6, target)
