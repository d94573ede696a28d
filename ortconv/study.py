"""How a target divides the model of a file, at one level of optimization or another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortconv.errors import UsageError
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.offload import Gain
from ortconv.optimizer.recipe import make
from ortconv.partition import Partitioning, Target, partition
from ortconv.partition.advice import Merge, advise
from ortconv.partition.cost import Estimate, estimate
from ortconv.partition.limits import Limits, limit
from ortconv.partition.profile import Device
from ortconv.pipeline import optimize

STUDIED = ("disable", "basic", "extended", "aware")
"""How a model can be prepared before it is divided: by a level, or as conversion for the target prepares it."""

MAXIMIZED = ("basic", "aware")
"""Those after which refused nodes can be rewritten."""


@dataclass(frozen=True)
class Study:
    """A model as prepared, what a target takes of it, and what that costs."""

    model: Model
    level: str
    partitioning: Partitioning
    estimate: Estimate
    gain: Gain | None = None
    """What rewrites for the target made of it, where they were asked for."""

    def advice(self) -> list[Merge]:
        """What keeps the partitions apart."""
        return advise(self.model.graph, self.partitioning.target)


def study(
    source: str | Path,
    target: Target,
    level: str | None = None,
    *,
    limits: Limits | None = None,
    device: Device | None = None,
    fix_dims: Mapping[str, int] | None = None,
    maximize: bool = False,
) -> Study:
    """Divide the model of an .onnx or .ort file for a target, with `maximize` after rewriting it for that.

    `level` is one of STUDIED; None is basic for an .onnx file, and disable, the only one there is, for an .ort file.
    """
    source = Path(source)
    ready = source.suffix.lower() == ".ort"
    level = level or ("disable" if ready else "basic")
    if level not in STUDIED or (ready and level != "disable"):
        raise UsageError(f"level {level} is not one of {', '.join(STUDIED[:1] if ready else STUDIED)}", file=source)
    if maximize and level not in MAXIMIZED:
        raise UsageError(f"level {level} cannot be rewritten for a target", hint=f"choose {' or '.join(MAXIMIZED)}")
    model = load(source, fix_dims)
    gains: list[Gain] = []
    told = gains.append if maximize else None
    if level in MAXIMIZED and (maximize or level == "aware"):
        passes = make("extended" if level == "aware" else "basic", offload=maximize)
        optimize(model, target=target, recipe=passes, limits=limits, told=told)
    else:
        optimize(model, level)
    for node in model.graph:
        node.ep = ""  # ONNX Runtime divides a model anew when it loads it
    partitioning = limit(partition(model.graph, target), limits or Limits())
    return Study(model, level, partitioning, estimate(partitioning, device), gains[0] if gains else None)
