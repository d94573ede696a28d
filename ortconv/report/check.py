"""What `ortconv check` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.checking.check import Check
from ortconv.report.sections import Section
from ortconv.wording import counted


def sections(found: Check) -> Iterator[Section]:
    """The result of a check, as tables."""
    title = f"{found.model}: {_verdict(found)}" if found.conditions else found.model
    lines = [one.message for one in found.failed] + found.notes
    lines += [f"{found.baseline} was written: the model is accepted"] if found.updated else []
    yield Section(title, lines, is_good=not found.failed if found.conditions else None)
    rows = [(m.name, m.shown_baseline, m.shown, _change(m.value, m.baseline), m.note) for m in found.metrics if m.moved]
    yield Section("Changed", (), ("metric", ">baseline", ">now", ">change", ""), rows)
    same = ", ".join(f"{m.name} {m.shown}" for m in found.metrics if not m.moved)
    if same:
        yield Section("Unchanged", [same])


def _verdict(found: Check) -> str:
    total, failed = len(found.conditions), len(found.failed)
    gates = f"of {total} gates"
    return counted(failed, f"{gates} fails", f"{gates} fail") if failed else f"all {total} gates pass"


def _change(value: float | None, baseline: float | None) -> str:
    """The change in percent; empty if a percentage has no meaning."""
    if value is None or not baseline:
        return ""
    return f"{100 * (value / baseline - 1):+.1f}%"
