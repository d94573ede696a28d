"""The facts about a model that a check compares without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortconv.gates import release_number
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.ortformat.opconfig import NOT_LISTED, Missing, RequiredOperators
from ortconv.ortformat.releases import oldest_release
from ortconv.partition import Target
from ortconv.partition.refusals import refusals
from ortconv.pipeline.analysis import analyze
from ortconv.pipeline.config import lines_of, require
from ortconv.pipeline.result import operator_counts
from ortconv.wording import listed

MOST_NAMES = 4
"""Number of names in a note."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a model that need no run. An .onnx model is partitioned after the passes of level basic."""

    target: list[str]
    """The accelerator of the partitions, as NAME=VALUE."""
    metrics: dict[str, float]
    """Numbers by the metric's name in conditions."""
    onnxruntime: str
    """The oldest release that loads the model."""
    onnxruntime_reason: str
    operators: dict[str, int]
    required: list[str]
    """The lines of an operator config: operators and their types."""
    refusals: dict[str, int]
    """Number of nodes that the accelerator refuses, by operator and rule."""

    def __post_init__(self) -> None:
        release_number(self.onnxruntime)  # raises ValueError for an invalid release

    def values(self) -> dict[str, float]:
        """All metrics that need no run, as numbers."""
        return {**self.metrics, "onnxruntime": release_number(self.onnxruntime)}


def facts_of(path: Path, target: Target) -> tuple[Facts, tuple[str, ...]]:
    """Collect the facts about a model, and the files with its weights."""
    model = load(path, only_to_run=True)
    oldest = oldest_release(model)
    operators = operator_counts(model)
    metrics: dict[str, float] = {
        "nodes": sum(operators.values()),
        "size": model.file_bytes,
        "constants": model.graph.constant_bytes,
        "operators": len(operators),
    }
    external = model.external
    required = _required(model)
    divided = analyze(path, target).partitioning
    metrics |= {
        "partitions": len(divided.partitions),
        "coverage": divided.coverage,
        "refused": divided.total - divided.taken,
    }
    refused = {f"{row.op} by {row.rule}": row.nodes for row in refusals(divided)}
    return Facts(_described(target), metrics, oldest.name, oldest.reason, operators, required, refused), external


def _required(model: Model) -> list[str]:
    """The lines of the operator config. Saved fusions of the model are applied first, in place."""
    required = RequiredOperators(types=True)
    require(required, model)
    return lines_of(required.text())


def _described(target: Target) -> list[str]:
    values = {"ep": target.ep, **target.options}
    return [f"{name}={','.join(v) if isinstance(v, list) else v}" for name, v in values.items()]


def lacking(facts: Facts, config: RequiredOperators) -> list[Missing]:
    """The operators and types that a model needs and a build with this config lacks."""
    return config.missing(RequiredOperators.parse("\n".join(facts.required)))


def notes_on(now: Facts, then: Facts, missing: list[Missing]) -> dict[str, str]:
    """The causes of changed metrics, one phrase for each."""
    operators = _moved(now.operators, then.operators)
    refused = _moved(now.refusals, then.refusals)
    new = [name for name in now.operators if name not in then.operators]
    return {
        "nodes": operators,
        "operators": f"new: {listed(new, MOST_NAMES)}" if new else "",
        "onnxruntime": now.onnxruntime_reason,
        "missing": listed([str(one).removesuffix(f": {NOT_LISTED}") for one in missing], MOST_NAMES),
        **dict.fromkeys(("partitions", "coverage", "refused"), f"refused: {refused}" if refused else ""),
    }


def _moved(now: Mapping[str, int], then: Mapping[str, int]) -> str:
    """The counts that differ, the largest difference first, such as: Conv 20 -> 21."""
    names = [name for name in {**now, **then} if now.get(name, 0) != then.get(name, 0)]
    names.sort(key=lambda name: (-abs(now.get(name, 0) - then.get(name, 0)), name))
    return listed([f"{name} {then.get(name, 0)} -> {now.get(name, 0)}" for name in names], MOST_NAMES)
