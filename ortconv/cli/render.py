"""Results as text for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill, wrap
from typing import TYPE_CHECKING

import click

from ortconv.cli import printable
from ortconv.files import size
from ortconv.report.sections import Section
from ortconv.wording import counted, tally

if TYPE_CHECKING:
    from ortconv.compare.validate import Validation
    from ortconv.pipeline import Result
    from ortconv.pipeline.float16 import Float16


SHOWN_REFUSALS = 3
"""Number of refusal reasons that a summary names."""


Fact = tuple[str, str]
"""A label and its value, such as nodes and their number. An empty label continues the fact before."""


def summary(source: str, output: str, facts: Iterable[Fact]) -> str:
    """What was made of a file, and facts about it, in a few lines."""
    title = " -> ".join(click.style(printable(name), bold=True) for name in (source, output))
    return "\n".join([title, *(labeled(*fact) for fact in facts)])


def convert_summary(result: Result) -> str:
    """The summary of a conversion."""
    return summary(result.source, result.files[0], _facts(result))


def convert_sections(result: Result) -> list[Section]:
    """The summary for Markdown, with every rule that applied."""
    facts = [(label, click.unstyle(text)) for label, text in _facts(result)]
    return [
        Section(f"{result.source} -> {result.files[0]}", header=("", "conversion"), rows=facts),
        Section("Rewrites", header=("rule", ">times"), rows=list(result.rewrites.items())),
    ]


def _facts(result: Result) -> Iterator[Fact]:
    yield from (("warning", click.style(printable(text), fg="yellow")) for text in result.warnings)
    yield "nodes", f"{result.nodes_before} -> {result.nodes_after}   {tally(result.operators)}"
    if result.rewrites:
        yield "rewrites", tally(result.rewrites)
    if result.saved_fusions:
        yield "saved", f"{result.saved_fusions} fusions for onnxruntime to make when it loads the model"
    if result.float16 is not None:
        yield from _float16(result.float16)
    yield from _offloaded(result)
    yield from _refused(result)
    if result.oldest_onnxruntime.release:
        yield "loads in", f"onnxruntime {printable(str(result.oldest_onnxruntime))}"
    yield "size", f"{size(result.bytes_before)} -> {size(result.bytes_after)}"
    if result.bytes_after > result.bytes_before:
        yield "", f"larger since {_why_larger(result)}"
    yield from proof(result.validation)
    if len(result.files) > 1:
        yield "also wrote", ", ".join(result.files[1:])
    yield "time", ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in result.seconds.items())


def convert_line(result: Result) -> str:
    """The summary of a conversion in one line."""
    check = result.validation
    if result.unchanged:
        numbers = click.style("unchanged", dim=True)
    elif check is None or check.skipped:
        numbers = click.style("not checked", fg="yellow")
    else:
        equal = check.max_abs == 0
        numbers = click.style("numbers equal" if equal else f"max abs {check.max_abs:.1e}", fg="green")
    counts = f"{result.nodes_before} -> {result.nodes_after} nodes, {size(result.bytes_after)}"
    count = len(result.warnings)
    warned = click.style(f", {counted(count, 'warning')}", fg="yellow") if count else ""
    return f"{click.style(printable(result.source), bold=True)} -> {printable(result.files[0])}: {counts}, {numbers}{warned}"


def _float16(found: Float16) -> Iterator[Fact]:
    """Facts about a conversion to float16."""
    error = f"error {found.error:.1e} of {found.budget:g} allowed by simulated rounding"
    casts = counted(found.casts, "Cast")
    yield "float16", f"{found.nodes} of {found.nodes + found.kept} nodes, {casts}; {error}"
    if found.reasons:
        yield "", f"{found.kept} in float32: {', '.join(f'{n} {why}' for why, n in found.reasons.items())}"
    if found.advice is not None:
        yield "", printable(found.advice)


def _offloaded(result: Result) -> Iterator[Fact]:
    """Facts about the nodes on accelerators, if the conversion was for any."""
    if result.partitions is None:
        return
    from ortconv.report.partition import gained

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
        yield "" if i else "offload", printable(text)


def _refused(result: Result) -> Iterator[Fact]:
    """Facts about the nodes that accelerators do not support."""
    if result.refusals:
        counts = ", ".join(f"{row.nodes} by {row.rule}" for row in result.refusals)
        yield "", f"{sum(row.nodes for row in result.refusals)} left to the CPU: {counts}"
    for row in result.refusals[:SHOWN_REFUSALS]:
        advice = f" ({row.advice})" if row.advice else ""
        yield "", f"{row.rule}: such as {printable(row.example)}{advice}"


def proof(check: Validation | None) -> list[Fact]:
    """The result of validation."""
    if check is None:
        return _numbers(click.style("not checked", fg="yellow"), ())
    if check.skipped:
        return _numbers(click.style(f"not checked: {check.skipped}", fg="yellow"), check.notes)
    loads = [f"loads in {e.name} {e.version}" for e in check.engines if e.name != "numpy" and e.loads]
    return _numbers("; ".join([*loads, _compared(check)]), (*_of_engines(check), *check.notes))


def _of_engines(check: Validation) -> Iterator[str]:
    """Notes on the engines: onnxruntime's own deviation, and the reasons why an engine was skipped."""
    own = max((e.own or 0.0 for e in check.engines), default=0.0)
    if own and check.max_abs:
        yield f"onnxruntime's own result differs by {own:.1e}"
    yield from (e.skipped for e in check.engines if e.skipped is not None)


def _numbers(text: str, notes: Iterable[str]) -> list[Fact]:
    return [("numbers", text), *(("", printable(note)) for note in notes)]


def _compared(check: Validation) -> str:
    """The difference between the outputs of source and result."""
    if check.max_abs == 0:
        return click.style("numbers equal", fg="green") + f" on {check.backend}"
    tone = "green" if check.scaled <= check.limit else "yellow"
    numbers = f"max abs {check.max_abs:.1e}, scaled {check.scaled:.1e} of {check.limit:.1e} allowed"
    excuse = f", expected with {', '.join(check.excused)}" if check.excused else ""
    return click.style(numbers, fg=tone) + f" on {check.backend}{excuse}"


def _why_larger(result: Result) -> str:
    if result.constants_before > result.bytes_before:
        return "the source stores constants in less room, shared or as varints"
    if result.folded_bytes > 0 and result.constants_after > result.constants_before:
        most = ", ".join(f"{printable(fold.node)} {size(fold.bytes)}" for fold in result.folds)
        why = f"constant folding added {size(result.folded_bytes)}, most of it {most}"
        return f"{why}; --fold-limit SIZE bounds that, 0 prevents it"
    if result.constants_after > result.constants_before:
        return f"constants grew by {size(result.constants_after - result.constants_before)}; -v names the rewrites"
    return f"the graph takes more room in ORT format; constants are {size(result.constants_after)} of it"


def labeled(label: str, text: str) -> str:
    """One fact of a summary after its label, wrapped at the terminal's width beside it."""
    width = room()
    lines = [text] if width is None else wrap(text, max(width - 13, 20), break_long_words=False, break_on_hyphens=False)
    return f"  {click.style(f'{label:10}', dim=True)} " + f"\n{' ' * 13}".join(lines)


def columns(header: Sequence[str], rows: Iterable[Sequence[object]], indent: int = 0) -> str:
    """A table as text with a dim header. A column whose name begins with > is aligned to the right."""
    width = room()
    head, body = grid(header, rows, None if width is None else width - indent)
    return "\n".join(" " * indent + line for line in [click.style(line, dim=True) for line in head] + body)


def wrapped(text: str, indent: int = 0) -> str:
    """A sentence wrapped at the terminal's width, with a hanging indent."""
    width = room()
    if width is None:
        return " " * indent + text
    return fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_on_hyphens=False)


def room() -> int | None:
    """The width of the terminal in columns; None if stdout is not a terminal, which means no limit."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def grid(header: Sequence[str], rows: Iterable[Sequence[object]], width: int | None) -> tuple[list[str], list[str]]:
    """The lines of a table's header and of its rows. Nothing is cut.

    If a row needs more than `width` columns, its leading names are on a line of their own.
    """
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    names = [name.removeprefix(">") for name in header]
    right = [name.startswith(">") for name in header]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]

    leading = _leading(widths, right, width)

    def line(cells: Sequence[str], start: int, end: int) -> str:
        padded = ((c.rjust(w) if r else c.ljust(w)) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(list(padded)[start:end]).rstrip()

    def lines(cells: Sequence[str]) -> list[str]:
        rest = line(cells, leading, len(names))
        return [line(cells, 0, leading), *([f"  {rest}"] if rest else [])] if leading else [rest]

    return lines(names), [text for row in texts for text in lines(row)]


def _leading(widths: Sequence[int], right: Sequence[bool], width: int | None) -> int:
    """How many leading columns a table has on lines of their own: none if all columns fit into `width`."""
    if width is None or sum(widths) + 2 * len(widths) - 2 <= width:
        return 0
    last = right.index(True) if True in right else len(widths) - 1
    needed = (sum(n + 2 for n in widths[start:]) for start in range(1, last))
    return next((start for start, room in enumerate(needed, 1) if room <= width), last)
