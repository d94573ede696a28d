"""What `ortconv check` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.checking.check import Check, CheckedMetric
from ortconv.gates import METRICS, PERCENT, RELEASE
from ortconv.report.sections import Section


def sections(found: Check) -> Iterator[Section]:
    title = f"{found.model}: {found.verdict}" if found.conditions else found.model
    lines = [one.message for one in found.failed] + found.notes
    lines += [f"{found.baseline} was written: the model is accepted"] if found.updated else []
    yield Section(title, lines, is_good=not found.failed if found.conditions else None)
    rows = [(m.name, m.shown_baseline, m.shown, _change(m), m.note) for m in found.metrics if m.moved]
    yield Section("Changed", (), ("metric", ">baseline", ">now", ">change", ""), rows)
    same = ", ".join(f"{m.name} {m.shown}" for m in found.metrics if not m.moved)
    if same:
        yield Section("Unchanged", [same])


def _change(metric: CheckedMetric) -> str:
    """The change in percent, that of a percentage in points; empty if it has no meaning, as for a release."""
    value, baseline, notation = metric.value, metric.baseline, METRICS[metric.name].notation
    if value is None or baseline is None or notation is RELEASE:
        return ""
    if notation is PERCENT:
        return f"{value - baseline:+.2f} points"
    return f"{100 * (value / baseline - 1):+.1f}%" if baseline else ""
