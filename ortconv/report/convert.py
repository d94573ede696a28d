"""What `ortconv convert` shows, without its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ortconv.files import size
from ortconv.report.sections import Fact, Section, Toned
from ortconv.wording import counted, tally

if TYPE_CHECKING:
    from ortconv.pipeline import Result
    from ortconv.pipeline.float16 import Float16
    from ortconv.pipeline.offload_gain import Gain
    from ortconv.validation.validate import Validation

SHOWN_REFUSALS = 3
"""Number of refusal reasons that a summary names."""


def document(results: Sequence[Result]) -> dict[str, Any]:
    """Conversions of one model as JSON values."""
    return {"version": 1, "models": [result.to_dict() for result in results], "failures": []}


def sections(result: Result) -> list[Section]:
    """The summary, with every rule that applied."""
    return [
        Section(f"{result.source} -> {result.files[0]}", header=("", "conversion"), rows=list(facts(result))),
        Section("Rewrites", header=("rule", ">times"), rows=list(result.rewrites.items())),
    ]


def facts(result: Result) -> Iterator[Fact]:
    yield from (("warning", Toned(text, text, "yellow")) for text in result.warnings)
    yield "nodes", f"{result.nodes_before} -> {result.nodes_after}   {tally(result.operators)}"
    if result.rewrites:
        yield "rewrites", tally(result.rewrites)
    if result.saved_fusions:
        yield "saved", f"{counted(result.saved_fusions, 'fusion')} for onnxruntime to make when it loads the model"
    if result.float16 is not None:
        yield from _float16(result.float16, result.operators.get("Cast", 0))
    yield from _offloaded(result)
    yield from _refused(result)
    if result.oldest_onnxruntime.release:
        yield "loads in", f"onnxruntime {result.oldest_onnxruntime}"
    yield "size", f"{size(result.bytes_before)} -> {size(result.bytes_after)}"
    if result.bytes_after > result.bytes_before:
        yield "", f"larger since {_why_larger(result)}"
    yield from proof(result.validation)
    if len(result.files) > 1:
        yield "also wrote", ", ".join(result.files[1:])
    yield "time", ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in result.seconds.items())


def _float16(found: Float16, casts_in_all: int) -> Iterator[Fact]:
    """Facts about a conversion to float16. `casts_in_all` also counts the Casts around nodes without a float16 kernel."""
    error = f"error {found.error:.1e} of {found.budget:g} allowed by simulated rounding"
    casts = counted(found.casts, "Cast")
    yield "float16", f"{found.nodes} of {found.nodes + found.kept} nodes, {casts}; {error}"
    if found.reasons:
        yield "", f"{found.kept} in float32: {', '.join(f'{n} {why}' for why, n in found.reasons.items())}"
    if casts_in_all > found.casts:
        yield "", f"{casts_in_all} Casts in all: onnxruntime's CPU provider computes many operators in float32 only"
    if found.advice is not None:
        yield "", found.advice


def _offloaded(result: Result) -> Iterator[Fact]:
    """Facts about the nodes on accelerators, if the conversion was for any."""
    if result.partitions is None:
        return
    sizes: dict[str, list[int]] = {}
    for p in result.partitions:
        sizes.setdefault(p.provider, []).append(len(p.nodes))
    for provider, own in sizes.items():
        share = f"{sum(own)} of {result.nodes_divided} nodes"
        yield provider, f"{counted(len(own), 'partition')}, {share} before the fusions for the CPU"
    if not result.partitions:
        yield "partition", f"none, 0 of {result.nodes_divided} nodes"
    if result.without_fallback:
        count = f"{result.without_fallback} of these have no CPU kernel"
        yield "", f"{count}: the file loads only with their providers"
    for i, text in enumerate(gained(result.offload) if result.offload is not None else ()):
        yield "" if i else "offload", text


def _refused(result: Result) -> Iterator[Fact]:
    """Facts about the nodes that accelerators do not support."""
    if result.refusals:
        counts = ", ".join(f"{row.nodes} by {row.rule}" for row in result.refusals)
        yield "", f"{sum(row.nodes for row in result.refusals)} left to the CPU: {counts}"
    for row in result.refusals[:SHOWN_REFUSALS]:
        advice = f" ({row.advice})" if row.advice else ""
        yield "", f"{row.rule}: such as {row.example}{advice}"


def proof(check: Validation | None) -> list[Fact]:
    if check is None or check.skipped:
        text = "not checked" if check is None else f"not checked: {check.skipped}"
        return [("numbers", Toned(text, text, "yellow")), *(("", note) for note in (check.notes if check else ()))]
    loads = [f"loads in {e.name} {e.version}" for e in check.engines if e.name != "numpy" and e.loads]
    numbers, tone, more = _compared(check)
    text = "; ".join([*loads, f"{numbers} on {check.backend}{more}"])
    return [("numbers", Toned(text, numbers, tone)), *(("", note) for note in (*_of_engines(check), *check.notes))]


def _of_engines(check: Validation) -> Iterator[str]:
    """Notes on the engines: onnxruntime's own deviation, and the reasons why an engine was skipped."""
    own = max((e.own or 0.0 for e in check.engines), default=0.0)
    if own and check.max_abs:
        yield f"onnxruntime's own result differs by {own:.1e}"
    yield from (e.skipped for e in check.engines if e.skipped is not None)


def _compared(check: Validation) -> tuple[str, str, str]:
    """The difference between the outputs of source and result, its color, and what excuses it."""
    if check.max_abs == 0:
        return "numbers equal", "green", ""
    numbers = f"max abs {check.max_abs:.1e}, scaled {check.scaled:.1e} of {check.limit:.1e} allowed"
    excuse = f", expected with {', '.join(check.excused)}" if check.excused else ""
    return numbers, "green" if check.scaled <= check.limit else "yellow", excuse


def gained(gain: Gain) -> list[str]:
    """The effect of --maximize-offload, in a line or two."""
    before, after = gain.before, gain.after
    if gain.rewrites:
        what = f"{counted(before.refused - after.refused, 'node')} fewer on the CPU by {tally(gain.rewrites)}"
    else:
        what = "no rewrite adds nodes"
    counts = [f"{counted(n.partitions, 'partition')} of {n.taken} of {n.nodes} nodes" for n in (before, after)]
    lines = [f"{' -> '.join(counts if gain.rewrites else counts[:1])}: {what}"]
    return lines + ([gain.advice] if gain.advice else [])


WIDENING = ("Float16ToFloat32", "FuseFp16InitializerToFp32NodeTransformer")
"""The rewrites that make float32 of float16 constants."""


def _why_larger(result: Result) -> str:
    if result.constants_before > result.bytes_before:
        return "the source stores constants in less room, shared or as varints"
    growth = result.constants_after - result.constants_before
    if growth > 0 and (widening := [name for name in WIDENING if name in result.rewrites]):
        return f"constants grew by {size(growth)}, as float16 became float32 in {widening[0]}"
    if 2 * result.folded_bytes > growth > 0:
        most = ", ".join(f"{fold.node} {size(fold.bytes)}" for fold in result.folds)
        why = f"constant folding added {size(result.folded_bytes)}, most of it {most}"
        return f"{why}; --fold-limit SIZE bounds that, 0 prevents it"
    if growth > 0:
        return f"constants grew by {size(growth)}; -v names the rewrites"
    return f"the graph takes more room in ORT format; constants are {size(result.constants_after)} of it"
