"""The view of `ortconv compare`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortconv.report.sections import Section
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.compare.comparison import Comparison, Output, Subject
    from ortconv.compare.layers import ComparedLayer
    from ortconv.compare.measure import Measure

NUMBERS = (">max abs", ">scaled", ">ulp", ">cosine", ">snr dB", ">allowed")
FORMATS = (".3g", ".3g", ".3g", ".7g", ".1f")


MOST_LAYERS = 20
"""Rows of inner values that differ; -v shows all."""


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
    is_within = output.is_near
    return "random numbers" if output.same and not is_within else _verdict(output.same, output.found)


def _layers(one: Comparison, layers: Sequence[ComparedLayer], everything: bool) -> Section:
    differing = [layer for layer in layers if not layer.same]
    count = f"{counted(len(layers), 'value')} inside both graphs, {len(differing)} of them differ"
    rows = [_layer(layer) for layer in (layers if everything else differing[:MOST_LAYERS])]
    header = ("value", "node", ">max abs", ">scaled", ">snr dB", ">allowed", "")
    is_cut = len(differing) > MOST_LAYERS and not everything
    title = f"Values inside, the first {MOST_LAYERS} of {len(differing)} that differ" if is_cut else "Values inside"
    return Section(title, [count, *_findings(one, len(differing))], header, rows)


def _findings(one: Comparison, differing: int) -> Iterator[str]:
    first = one.first
    if first is not None:
        renamed = "" if first.other == first.name else f", '{first.other}' there"
        yield f"first to differ: '{first.name}'{renamed}, made by {first.node.label}"
        yield from (f"rewritten by {rewrite}" for rewrite in one.suspects)
    loss = one.loss
    if loss is not None and differing > 1:
        grown = f"from scaled {loss.before:.3g} to {loss.layer.found.scaled:.3g}"
        yield f"largest loss: '{loss.layer.name}', made by {loss.layer.node.label}: {grown}"


def _layer(layer: ComparedLayer) -> tuple[str, ...]:
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
