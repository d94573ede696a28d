"""What `ortconv tune` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.files import size
from ortconv.report.sections import Section, first_rows
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.backends.onnxruntime_app import SessionSettings
    from ortconv.report.pareto import Point
    from ortconv.tuning.making import Estimated
    from ortconv.tuning.result import Measured, Row, Tuning

MOST_ROWS = 15

NAMES = {"nnapi": "NNAPI", "coreml": "CoreML"}


WIDE_ONLY = (">ms", ">load ms", ">CPU, estimated")
"""Columns that a narrow table leaves out."""


def sections(found: Tuning, *, everything: bool = False, is_wide: bool = True) -> list[Section]:
    """The tuning as tables. Each table is cut after its first rows unless `everything` is set, and has fewer columns unless
    `is_wide`.
    """
    from ortconv.tuning.ranking import GOALS

    good = [row for row in found.rows if row.measured is not None]
    title, shown = first_rows("Candidates", good, None if everything else MOST_ROWS)
    header = ("", "candidate", ">latency", "95 % interval", ">ms", ">load ms", ">size", ">peak",
              f">{NAMES[found.target]}, estimated", ">CPU, estimated", ">partitions")  # fmt: skip
    narrowed = _narrowed([header, *map(_row, shown)], is_wide)
    refused = [(row.label, row.error) for row in found.rows if row.error is not None]
    same = [(row.label, ", ".join(row.same)) for row in good if row.same] if everything else []
    return [
        Section(f"{found.model}, best by {GOALS[found.goal].what}", list(_head(found))),
        Section(title, list(_legend(found)), narrowed[0], narrowed[1:]),
        Section("Without a rank", header=("candidate", "reason"), rows=refused),
        Section("The same file", header=("candidate", "also made by"), rows=same),
    ]


def _narrowed(rows: Sequence[Sequence[Any]], is_wide: bool) -> list[list[Any]]:
    """The columns of a table for which there is room. The first row is the header."""
    kept = [is_wide or name not in WIDE_ONLY for name in rows[0]]
    return [list(compress(row, kept)) for row in rows]


def _recommendation(found: Tuning) -> Iterator[str]:
    if found.recommended is not None:
        yield found.recommended.command
        hint = "; --snippet prints the code" if found.snippet is None else ""
        yield opened_with(found.recommended.settings, found.recommended.provider) + hint
        best = found.best
        if best is not None and best.oldest_onnxruntime is not None:
            yield f"loads in onnxruntime {best.oldest_onnxruntime} and later"


def _head(found: Tuning) -> Iterator[str]:
    yield from _recommendation(found)
    if {row.estimated.taken for row in found.rows if row.estimated is not None} == {0}:
        yield f"{NAMES[found.target]} supports no node of any candidate: ortconv partition gives the reasons"
    minutes = f"{found.seconds:.0f} s" if found.seconds < 120 else f"{found.seconds / 60:.1f} min"
    yield f"{counted(found.candidates, 'candidate')}, {counted(found.files, 'different file')}, in {minutes}"
    if not found.is_complete:
        why = "it was interrupted" if found.is_interrupted else "the time was up"
        yield f"not complete: {'; '.join(found.notes) or why}"


def opened_with(settings: SessionSettings, provider: str) -> str:
    """The session options of a candidate, as a sentence."""
    parts = [counted(settings.threads, "thread")]
    parts += ["direct initializers"] if settings.direct else []
    parts += [f"the {NAMES[provider]} provider"] if provider in NAMES else []
    return f"open it with {', '.join(parts)}"


def _legend(found: Tuning) -> Iterator[str]:
    if found.base is not None:
        base = found.base
        yield f"latency is relative to {base.what}: {base.latency_ms:.3g} ms"
    machine = found.machine
    load = "" if machine.load_average is None else f", load average {machine.load_average:.1f}"
    yield f"measured on {machine.cpu}, {machine.cores} cores, onnxruntime {machine.onnxruntime}{load}"
    if machine.load_average is not None and machine.load_average > machine.cores:
        yield "other programs keep the cores busy: the latency of several threads is that on such a machine"
    yield f"estimated for {found.device}; docs/cost.md has the formula and its assumptions"
    if any(row.measured is not None and row.measured.is_stopped for row in found.rows):
        yield "* measured in fewer blocks: it cannot win"


def _row(row: Row) -> tuple[object, ...]:
    assert row.measured is not None
    return (row.rank or "", row.label, *_measured(row.measured), *_estimated(row.estimated))


def _measured(found: Measured) -> tuple[str, ...]:
    latency = found.latency
    known = latency.low is not None and latency.high is not None
    between = f"{latency.low:.3f} to {latency.high:.3f}" if known else "one block only"
    peak = "" if found.peak_bytes is None else size(found.peak_bytes)
    dropped = " *" if found.is_stopped else ""
    return (
        f"{latency.ratio:.3f}",
        between + dropped,
        f"{found.latency_ms:.3g}",
        f"{found.load_ms:.3g}",
        size(found.bytes),
        peak,
    )


def _estimated(found: Estimated | None) -> tuple[str, ...]:
    if found is None:
        return "", "", ""
    partitions = f"{found.partitions}, {found.taken} of {found.nodes} nodes"
    return f"{1e3 * found.seconds:.3g} ms", f"{1e3 * found.cpu_seconds:.3g} ms", partitions


def page_of(found: Tuning, options: Mapping[str, object]) -> str:
    """The tuning as a page, with plots of the candidates' costs. `options` are those of the command."""
    from ortconv.report.page import about, page

    head, *tables = sections(found, everything=True)
    name = Path(found.model).name
    return page(
        name, head.title, [Section("Recommended", head.lines), *_plots(found), *tables, about(options)], kind="tuning"
    )


PLOT_NOTE = "Less is better on both axes. The line joins candidates that no other beats in both; a ring marks the recommended one."


def _point(row: Row, measured: Measured, cost: float) -> Point:
    from ortconv.report.pareto import Point

    latency = measured.latency
    return Point(row.label, latency.ratio, cost, latency.low, latency.high, row.rank == 1)


def _plots(found: Tuning) -> Iterator[Section]:
    """The measured latency over other costs, measured or estimated."""
    from ortconv.report.pareto import AxisTitle, pareto

    rows = [(row, row.measured) for row in found.rows if row.measured is not None]
    peaks = [None if m.peak_bytes is None else m.peak_bytes / 1e6 for _, m in rows]
    times = [None if row.estimated is None else 1e3 * row.estimated.seconds for row, _ in rows]
    for title, axis, costs in (
        ("Latency and peak memory, both measured", "peak memory, MB", peaks),
        ("Latency and size, both measured", "size, MB", [m.bytes / 1e6 for _, m in rows]),
        (
            f"Latency, measured, and time with {NAMES[found.target]}, estimated",
            f"estimated for {found.device}, ms",
            times,
        ),
    ):
        points = [_point(*row, cost) for row, cost in zip(rows, costs, strict=True) if cost is not None]
        figure = pareto(points, AxisTitle("latency, relative to the base"), AxisTitle(axis, "{:.4g}"))
        yield Section(title, [PLOT_NOTE], figure=figure)


def axes_section(only: Mapping[str, Sequence[str]], target: str) -> Section:
    """The axes with their values, and the number of candidates."""
    from ortconv.process import usable_cores
    from ortconv.tuning.axes import AXES, NONE, chosen, forms

    values = chosen({"aware": (NONE, target), **only}, usable_cores())
    rows = [(name, ", ".join(values[name]), axis.help) for name, axis in AXES.items()]
    count = counted(len(forms(values)), "conversion")
    return Section(count, header=("axis", "tried", "what it is"), rows=rows)
