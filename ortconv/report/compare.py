"""What `ortconv compare` shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ortconv.compare.comparison import WORST, Comparison, Output, Subject
from ortconv.compare.layers import ComparedLayer
from ortconv.compare.measure import Measure
from ortconv.models import is_ort
from ortconv.report.run import finite
from ortconv.report.sections import Section, first_rows
from ortconv.wording import counted

NUMBERS = (">max abs", ">scaled", ">ulp", ">cosine", ">snr dB", ">allowed")
FORMATS = (".3g", ".3g", ".3g", ".7g", ".1f")

MOST_LAYERS = 20
"""Rows of inner values that differ; -v shows all."""


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
    numbers = {name: finite(getattr(found, name)) for name in WORST}
    return {"dtype": found.dtype, "shape": list(found.shape), **numbers, "mismatch": found.mismatch}


def sections(reference: Subject, found: Sequence[Comparison], *, everything: bool = False) -> list[Section]:
    """One section for each comparison, and one for the inner values. By default it lists only the values that differ."""
    shown = [
        Section(
            f"{reference.label} on {', '.join(reference.backends)}", ["the model that the others are compared with"]
        )
    ]
    for one in found:
        verdict = "the same" if one.same else "different"
        title = f"{one.subject.label} on {', '.join(one.subject.backends)}: {verdict}"
        rows = [(o.name, _type(o.found), *_numbers(o.found, o.limit), _remark(o)) for o in one.outputs]
        shown.append(Section(title, header=("output", "type", *NUMBERS, ""), rows=rows, is_good=one.same))
        if one.layers is not None:
            shown.append(_layers(one, one.layers, everything))
    return shown


def _remark(output: Output) -> str:
    return "random numbers" if output.same and not output.is_near else _verdict(output.same, output.found)


def _layers(one: Comparison, layers: Sequence[ComparedLayer], everything: bool) -> Section:
    differing = [layer for layer in layers if not layer.same]
    count = f"{counted(len(layers), 'value')} inside both graphs, {len(differing)} of them differ"
    header = ("value", "node", ">max abs", ">scaled", ">snr dB", ">allowed", "")
    listed, most = (layers, None) if everything else (differing, MOST_LAYERS)
    title, shown = first_rows("Values inside", listed, most, " that differ")
    found = [count, *_unmatched(one, len(layers)), *_findings(one, len(differing))]
    return Section(title, found, header, list(map(_layer_row, shown)))


def _unmatched(one: Comparison, compared: int) -> Iterator[str]:
    file = one.subject.file
    if one.subject.origin is None and file is not None and is_ort(file) and 2 * compared < len(one.subject.model.graph):
        yield "the others have other names or forms there; A --convert-with LEVEL follows them through the rewrites"


def _findings(one: Comparison, differing: int) -> Iterator[str]:
    first = one.first
    if first is not None:
        renamed = "" if first.other == first.name else f", '{first.other}' there"
        yield f"first to differ: '{first.name}'{renamed}, made by {first.node.label}"
        yield from (f"rewritten by {rewrite}" for rewrite in one.suspects)
    loss = one.loss
    if loss is not None and differing > 1:
        scaled = loss.layer.found.mismatch or f"{loss.layer.found.scaled:.3g}"
        grown = f"from scaled {loss.before:.3g} to {scaled}"
        yield f"largest loss: '{loss.layer.name}', made by {loss.layer.node.label}: {grown}"


def _layer_row(layer: ComparedLayer) -> tuple[str, ...]:
    verdict = "other order" if layer.permuted else _verdict(layer.same, layer.found)
    max_abs, scaled, _, _, *others = _numbers(layer.found, layer.limit)
    return layer.name, layer.node.label, max_abs, scaled, *others, verdict


def _type(found: Measure) -> str:
    return f"{found.dtype}{list(found.shape)}" if found.dtype else ""


def _numbers(found: Measure, limit: float) -> tuple[str, ...]:
    values = (found.max_abs, found.scaled, found.ulp, found.cosine, found.snr)
    shown = ("" if math.isnan(v) else f"{v:{form}}" for v, form in zip(values, FORMATS, strict=True))
    return *shown, f"{limit:.1e}"


def _verdict(same: bool, found: Measure) -> str:
    return found.mismatch or ("" if same else "differs")
