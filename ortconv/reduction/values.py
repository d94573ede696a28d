"""Computed inner values of a model, for constants that replace nodes."""

from __future__ import annotations

import math

from ortconv.errors import OrtconvError
from ortconv.ir.graph import Value
from ortconv.ir.model import Model
from ortconv.reduction.edits import Values
from ortconv.runtime.deadline import within

LARGEST_VALUE = 1 << 16
"""Limit on the elements of a captured value; unknown dimensions count as 1."""

SECONDS = 60.0
"""Time limit of the run, in seconds."""


def captured(model: Model) -> Values:
    """The smaller values of the main graph, computed on generated inputs; none if the model does not run on numpy."""
    from ortconv.compare.candidates import first_run
    from ortconv.runtime.session import Session

    names = [v.name for node in model.graph for v in node.present_outputs if _is_small(v)]
    try:
        with within(SECONDS), Session(model, keep=names) as session:
            _, found = first_run(session, names)
    except OrtconvError:
        return {}
    return {name: value for name, value in zip(names, found, strict=True) if value is not None}


def _is_small(value: Value) -> bool:
    return value.shape is not None and math.prod(d if isinstance(d, int) else 1 for d in value.shape) <= LARGEST_VALUE
