"""The results of a device on conformance records, as sections for a terminal and a page."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.nnapi.conformance.run import Conformance, FailedRecord, OperationCount
from ortconv.report.page import about, page
from ortconv.report.sections import Section

SHOWN_FAILURES = 50
"""Number of failures that are listed; the JSON document has all of them."""


def headline(found: Conformance) -> str:
    """The number of records that failed in some mode, in one line."""
    failed = len({(one.spec, one.record) for one in found.failures})
    verdict = f"{failed} of {found.records} records fail" if failed else f"none of {found.records} records fails"
    return f"{found.device}: {verdict}, in {', '.join(one.mode for one in found.modes)}"


def sections(found: Conformance) -> list[Section]:
    """Records by mode, by operation and feature level, and the failures."""
    modes = [(one.mode, one.passed, one.failed, one.skipped) for one in found.modes]
    cells = {(one.operation, one.feature_level): _cell(one) for one in found.operations}
    levels = sorted({level for _, level in cells}, key=lambda level: (level is None, level or 0))
    names = dict.fromkeys(name for name, _ in cells)
    header = (f">{'experimental' if level is None else f'level {level}'}" for level in levels)
    rows = [(name, *(cells.get((name, level), "") for level in levels)) for name in names]
    return [
        Section("Modes", header=("mode", ">passed", ">failed", ">skipped"), rows=modes),
        Section("Operations", [EXPLANATION], ("operation", *header), rows),
        _failures(found.failures),
    ]


def _failures(failures: Sequence[FailedRecord]) -> Section:
    rows = [(one.spec, one.record, one.mode, one.reason) for one in failures[:SHOWN_FAILURES]]
    more = len(failures) - len(rows)
    left_out = [f"{more} more are in the JSON document"] if more else []
    return Section("Failures", left_out, ("file", "record", "mode", "why"), rows)


EXPLANATION = (
    "executions that passed, of those that the device supports; a record counts for each operation of its model"
)


def _cell(one: OperationCount) -> str:
    if not one.passed + one.failed:
        return "-"
    return f"{one.passed}/{one.passed + one.failed}" if one.failed else str(one.passed)


def page_of(found: Conformance) -> str:
    return page(found.device, headline(found), [*sections(found), about({})], kind="NNAPI conformance")
