"""What `ortconv compare` shows people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ortconv.cli import printable
from ortconv.cli.run_view import fill, stdout, table

if TYPE_CHECKING:
    from ortconv.compare.layers import ComparedLayer
    from ortconv.compare.measure import Measure
    from ortconv.compare.models import Comparison, Subject

NUMBERS = (">max abs", ">scaled", ">ulp", ">cosine", ">snr dB", ">allowed")


def show(reference: Subject, found: Sequence[Comparison], verbose: bool) -> None:
    """Print comparisons to stdout."""
    console = stdout()
    console.print(Text.assemble((printable(reference.label), "bold"), f" on {', '.join(reference.backends)}"))
    for one in found:
        style, verdict = ("green", "the same") if one.same else ("red", "different")
        on = f" on {', '.join(one.subject.backends)}: "
        console.print(Text.assemble((printable(one.subject.label), "bold"), on, (verdict, style)))
        rows = table("output", "type", *NUMBERS, "")
        fill(
            rows,
            [(o.name, _type(o.found), *_numbers(o.found, o.limit), _verdict(o.same, o.found)) for o in one.outputs],
        )
        console.print(rows)
        if one.layers is not None:
            _show_layers(one, verbose)


def _show_layers(one: Comparison, verbose: bool) -> None:
    console = stdout()
    layers = one.layers or []
    differing = [layer for layer in layers if not layer.same]
    console.print(Text(f"{len(layers)} values inside both graphs, {len(differing)} of them differ"))
    first = one.first
    if first is not None:
        renamed = "" if first.other == first.name else f", '{printable(first.other)}' there"
        console.print(
            Text(f"first to differ: '{printable(first.name)}'{renamed}, made by {printable(first.node.label)}")
        )
        for rewrite in one.suspects:
            console.print(Text(f"  rewritten by {printable(rewrite)}"))
    loss = one.loss
    if loss is not None and len(differing) > 1:
        name, node = printable(loss.layer.name), printable(loss.layer.node.label)
        grown = f"from scaled {loss.before:.3g} to {loss.layer.found.scaled:.3g}"
        console.print(Text(f"largest loss: '{name}', made by {node}: {grown}"))
    shown = layers if verbose else differing
    if shown:
        rows = table("value", "node", ">max abs", ">scaled", ">snr dB", ">allowed", "")
        fill(rows, [_layer(layer) for layer in shown])
        console.print(rows)


def _layer(layer: ComparedLayer) -> tuple[str, ...]:
    verdict = "other order" if layer.permuted else _verdict(layer.same, layer.found)
    max_abs, scaled, _, _, *others = _numbers(layer.found, layer.limit)
    return layer.name, layer.node.label, max_abs, scaled, *others, verdict


def _type(found: Measure) -> str:
    return f"{found.dtype}{list(found.shape)}" if found.dtype else ""


def _numbers(found: Measure, limit: float) -> tuple[str, ...]:
    values = (found.max_abs, found.scaled, found.ulp)
    small = [f"{v:.3g}" if not math.isnan(v) else "" for v in values]
    cosine = "" if math.isnan(found.cosine) else f"{found.cosine:.7g}"
    snr = "" if math.isnan(found.snr) else f"{found.snr:.1f}"
    return *small, cosine, snr, f"{limit:.1e}"


def _verdict(same: bool, found: Measure) -> str:
    return found.mismatch or ("" if same else "differs")
