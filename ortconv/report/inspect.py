"""What `ortconv inspect` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ortconv.files import size
from ortconv.report.sections import Section, first_rows
from ortconv.wording import count_as_one, counted, shortened, tally

if TYPE_CHECKING:
    from ortconv.inspection.inspect import Inspection, Port
    from ortconv.inspection.quantization import GroupVerdict, Range

MOST_OPERATORS = 15
MOST_PORTS = 12
MOST_REASONS = 12


def sections(found: Inspection, *, everything: bool = False) -> list[Section]:
    """The inspection as tables. Each table is cut after its first rows unless `everything` is set."""
    ports = [*_ports("in", found.inputs, everything), *_ports("out", found.outputs, everything)]
    return [
        Section(found.model, list(_head(found))),
        Section("Inputs and outputs", header=("", "name", "type"), rows=ports),
        _operators(found, everything),
        Section("Largest constants", header=("name", "type", ">bytes", ">share"), rows=_constants(found)),
        Section("Quantization", list(_quantization(found))),
        *_lint(found, everything),
        Section("What stands out", [str(note) for note in found.notes]),
    ]


def page_of(found: Inspection, model: Path, fix_dims: Mapping[str, int], options: Mapping[str, object]) -> str:
    """The inspection as a page with the graph of the file as it is; `options` are those of the command."""
    from ortconv.models import load
    from ortconv.report.page import about, page
    from ortconv.report.picture import drawn, picture, stage

    graph = load(model, fix_dims, only_to_run=True).graph
    head, *shown = sections(found, everything=True)
    return page(
        model.name,
        f"{counted(found.nodes, 'node')}, {found.format.upper()}",
        [head._replace(title="Model"), *shown, about(options)],
        kind="inspection",
        stage=stage(picture(drawn(graph), model.name)),
    )


def _head(found: Inspection) -> Iterator[str]:
    opsets = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in found.opsets.items() if _is_used(domain, found)
    )
    format = f"ORT format version {found.format_version}" if found.format == "ort" else "ONNX"
    yield f"{format}, IR version {found.ir_version}, operator sets {opsets}"
    if found.producer:
        yield f"made by {found.producer}"
    reason = f" ({found.oldest_reason})" if found.oldest_reason else ""
    yield f"loads in onnxruntime {found.oldest_onnxruntime} and later{reason}"
    graphs = f" in {found.graphs} graphs" if found.graphs > 1 else ""
    yield f"{counted(found.nodes, 'node')}{graphs}, {shortened(found.multiply_adds)} multiply-adds"
    yield f"{size(found.file_bytes)}, of which {size(found.constant_bytes)} in {counted(found.constants, 'constant')}"
    yield f"{shortened(found.parameters)} parameters"
    memory = found.memory
    at = f", at {memory.peak_node}" if memory.peak_node else ""
    yield f"{size(memory.peak_bytes)} of activations at most{at}; {size(memory.total_bytes)} without reuse"
    yield from count_as_one(found.symbols)
    if found.saved_fusions:
        yield f"{counted(found.saved_fusions, 'fusion')} saved for onnxruntime"


def _is_used(domain: str, found: Inspection) -> bool:
    return not domain or any(row.operator.startswith(f"{domain}:") for row in found.operators)


def _ports(side: str, ports: Sequence[Port], everything: bool) -> Iterator[tuple[object, ...]]:
    for port in ports if everything else ports[:MOST_PORTS]:
        yield side, port.name, port.type + (" with a default" if port.has_default else "")
    if len(ports) > MOST_PORTS and not everything:
        yield side, f"and {len(ports) - MOST_PORTS} more", ""


def _operators(found: Inspection, everything: bool) -> Section:
    title, shown = first_rows("Operators", found.operators, None if everything else MOST_OPERATORS)
    rows = [
        (r.operator, r.count, ", ".join(r.types), shortened(r.multiply_adds), size(r.bytes_touched), f"{r.time_share:.1%}")
        for r in shown
    ]  # fmt: skip
    return Section(title, (), ("operator", ">count", "types", ">MACs", ">touches", ">time"), rows)


def _constants(found: Inspection) -> list[tuple[object, ...]]:
    return [(c.name, c.type, size(c.bytes), f"{c.share:.0%}") for c in found.largest_constants if c.share >= 0.01]


def _quantization(found: Inspection) -> Iterator[str]:
    q = found.quantization
    if q.form == "none":
        return
    types = "; ".join(
        f"{what} {', '.join(t)}" for what, t in (("activations", q.activation_types), ("weights", q.weight_types)) if t
    )
    yield f"{q.form}, {counted(q.quantized_nodes, 'operator')}" + (f"; {types}" if types else "")
    if q.per_channel or q.per_tensor:
        yield f"{q.per_channel} weights per channel, {q.per_tensor} per tensor"
    if q.narrowest is not None and q.widest is not None:
        yield f"narrowest range {_range(q.narrowest)}"
        yield f"widest range {_range(q.widest)}"
    if q.float_nodes:
        nodes = counted(q.float_nodes, "node")
        yield f"left in float: {nodes}, {q.float_share:.0%} of the multiply-adds: {tally(q.float_operators)}"


def _range(found: Range) -> str:
    return f"{found.low:.3g} to {found.high:.3g} of {found.name}"


def _lint(found: Inspection, everything: bool) -> Iterator[Section]:
    if found.lint is None:
        return
    lines = []
    for target in ("NNAPI", "CoreML"):
        own = [v for v in found.lint if v.target == target]
        lines.append(f"{target} supports {sum(v.taken for v in own)} of {len(own)} groups")
    reasons = _reasons(found.lint)
    title, shown = first_rows("Lint of the quantization", reasons, None if everything else MOST_REASONS, " reasons")
    yield Section(title, lines)
    for row in shown:
        what = f"{row.target}, {row.rule}: {len(row.operators)} x {', '.join(dict.fromkeys(row.operators))}"
        yield Section(what, [f"for example: {row.message}", *([f"advice: {row.advice}"] if row.advice else [])])


class _LintReason(NamedTuple):
    """A reason against groups on a target: the operator of each group, message and advice for the first."""

    target: str
    rule: str
    operators: list[str]
    message: str
    advice: str


def _reasons(verdicts: Sequence[GroupVerdict]) -> list[_LintReason]:
    """Reasons by target and rule. The reasons for most groups come first."""
    found: dict[tuple[str, str], _LintReason] = {}
    for verdict in verdicts:
        for rule in dict.fromkeys(reason.rule for reason in verdict.reasons):
            reason = next(r for r in verdict.reasons if r.rule == rule)
            target = "any target" if verdict.target == "both" else verdict.target
            row = found.setdefault((target, rule), _LintReason(target, rule, [], reason.message, reason.advice))
            row.operators.append(verdict.operator)
    return sorted(found.values(), key=lambda row: (-len(row.operators), row.target, row.rule))
