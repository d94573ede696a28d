"""Checks a device against a folder of conformance records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ortconv.documents import Document
from ortconv.errors import UsageError, nearest
from ortconv.nnapi.codes import FeatureLevel, Operation
from ortconv.nnapi.conformance.check import Mode, Outcome, check
from ortconv.nnapi.conformance.specs import Record, Spec, operations_of, specs
from ortconv.nnapi.device import Device
from ortconv.nnapi.manager import registered

LEVELS = {int(level): level.ordinal for level in FeatureLevel}
"""Feature levels by the numbers in records; None is the level of experimental operations."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ModeCount:
    mode: str
    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True)
class OperationCount:
    """Executions of records with an operation and feature level, over all modes. Experimental operations have level None."""

    operation: str
    feature_level: int | None
    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True)
class FailedRecord:
    """A record that failed in a mode. `operations` lists those of its model."""

    spec: str
    record: str
    mode: str
    operations: list[str]
    reason: str


@dataclass
class Conformance(Document):
    """The results of a device. A record counts for each operation of its model."""

    device: str
    specs: str
    records: int
    modes: list[ModeCount]
    operations: list[OperationCount]
    failures: list[FailedRecord]


def check_device(
    device: Device,
    folder: Path,
    *,
    modes: Sequence[Mode] = tuple(Mode),
    operations: Collection[str] = (),
    variations: bool = True,
    progress: Progress | None = None,
) -> Conformance:
    """Execute the records below a folder on a device, and compare the outputs with the expected ones.

    `operations` restricts the records and the table to these operations. Without `variations`, records are skipped that
    repeat another one with constants as inputs, or inputs as temporaries. `progress` is called with each file's name.
    Raises UsageError for an operation that is unknown or that no selected record has, and for a folder without records.
    """
    _check_known(operations)
    records, failures = 0, []
    by_mode: Counter[tuple[Mode, Outcome]] = Counter()
    by_operation: Counter[tuple[str, int | None, Outcome]] = Counter()
    with nullcontext() if device.is_reference else registered(device):
        for spec, record in _selected(folder, set(operations), variations, progress):
            records += 1
            names, level = operations_of(record), _level(record)
            counted = [name for name in names if not operations or name in operations]
            for mode, verdict in check(device, spec, record, modes):
                by_mode[mode, verdict.outcome] += 1
                by_operation.update((name, level, verdict.outcome) for name in counted)
                if verdict.outcome is Outcome.FAILED:
                    failures.append(FailedRecord(spec.name, record["name"], mode.value, names, verdict.reason))
    _check_found(folder, records, operations, by_operation)
    rows = sorted({row[:2] for row in by_operation}, key=lambda row: (row[0], row[1] or len(LEVELS)))
    by_row = [OperationCount(*row, *(by_operation[*row, outcome] for outcome in Outcome)) for row in rows]
    by_mode_row = [ModeCount(mode.value, *(by_mode[mode, outcome] for outcome in Outcome)) for mode in modes]
    return Conformance(device.name, str(folder), records, by_mode_row, by_row, failures)


def _check_known(operations: Iterable[str]) -> None:
    for name in operations:
        if name not in Operation.__members__:
            hint = nearest(name, Operation.__members__) or "docs/nnapi_operations.md lists the operations"
            raise UsageError(f"there is no operation '{name}'", hint=hint)


def _check_found(
    folder: Path, records: int, operations: Iterable[str], found: Iterable[tuple[str, int | None, Outcome]]
) -> None:
    known = {name for name, _, _ in found}
    missing = [name for name in operations if name not in known]
    if missing or not records:
        of_operation = f" with operation {missing[0]}" if missing else ""
        hint = "without --core and --op, all records of the folder are tested"
        raise UsageError(f"no record{of_operation} is selected", file=folder, hint=hint)


def _selected(
    folder: Path, operations: set[str], variations: bool, progress: Progress | None
) -> Iterator[tuple[Spec, Record]]:
    for spec in specs(folder):
        if progress is not None:
            progress(spec.name)
        for record in spec.records:
            if operations and operations.isdisjoint(operations_of(record)):
                continue
            if variations or not record.get("lifetime_variation"):
                yield spec, record


def _level(record: Record) -> int | None:
    number = record["feature_level"]
    return None if number is None else LEVELS.get(number, number)
