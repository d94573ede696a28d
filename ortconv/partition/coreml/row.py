"""One row of the table of support rules, and its check of a unit."""

from __future__ import annotations

from dataclasses import dataclass

from ortconv.choices import COREML_FORMATS
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import Check, no_objection, version
from ortconv.partition.coreml.checks import floats, readable
from ortconv.partition.policy import Objection, Objections, Target

NEURAL_NETWORK, ML_PROGRAM = COREML_FORMATS[:1], COREML_FORMATS[1:]


@dataclass(frozen=True, slots=True)
class CoremlRow:
    """The requirements of an operator.

    `since` is the least since_version, `formats` are the model formats that have the operator, `types` checks element types, and
    `check` everything else. `empty` permits inputs without elements.
    """

    op: str
    since: int = 1
    formats: tuple[str, ...] = COREML_FORMATS
    types: Check = floats
    check: Check = no_objection
    domains: tuple[str, ...] = ("",)
    empty: bool = False


def judge(row: CoremlRow, unit: NodeUnit, target: Target) -> Objections:
    """All objections of a row to a unit."""
    wanted = "MLProgram" if target.is_mlprogram else "NeuralNetwork"
    if wanted not in row.formats:
        other = row.formats[0]
        advice = f"choose the format that has it: --coreml-format {other}"
        if target.coreml_format == other:
            advice = "ask for iOS 15 or macOS 12 at least: --coreml-version 5"
        yield Objection("format", f"{target.name} has no operation for {unit.op}: {other} has", advice)
        return
    yield from version(unit, row.since, target)
    yield from readable(unit, target, row.empty)
    yield from row.types(unit, target)
    yield from row.check(unit, target)
