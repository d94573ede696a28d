"""Comparisons as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ortconv.compare.comparison import WORST, Comparison, Subject
from ortconv.compare.layers import ComparedLayer
from ortconv.compare.measure import Measure


def document(reference: Subject, found: Sequence[Comparison]) -> dict[str, Any]:
    """The comparison as one JSON document. An infinite number, or one that is not defined, is null, such as the snr of equal
    outputs.
    """
    return {
        "version": 1,
        "reference": _subject(reference),
        "models": [_comparison(one) for one in found],
        "same": all(one.same for one in found),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    return {"model": subject.label, "backends": list(subject.backends)}


def _comparison(one: Comparison) -> dict[str, Any]:
    outputs = [{"name": o.name, **_measure(o.found), "limit": o.limit, "same": o.same} for o in one.outputs]
    described = {**_subject(one.subject), "outputs": outputs, "same": one.same}
    if one.layers is not None:
        described["layers"] = [_layer(layer) for layer in one.layers]
        loss = one.loss
        described["largest_loss"] = None if loss is None else {**_layer(loss.layer), "scaled_before": loss.before}
        described["first_divergence"] = None if one.first is None else {**_layer(one.first), "rewrites": one.suspects}
    return described


def _layer(layer: ComparedLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "other": layer.other,
        "node": layer.node.label,
        **_measure(layer.found),
        "limit": layer.limit,
        "permuted": layer.permuted,
        "same": layer.same,
    }


def _measure(found: Measure) -> dict[str, Any]:
    numbers = {name: (v if math.isfinite(v := getattr(found, name)) else None) for name in WORST}
    return {"dtype": found.dtype, "shape": list(found.shape), **numbers, "mismatch": found.mismatch}
