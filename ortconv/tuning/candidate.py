"""A candidate during the measurement: its row, and the numbers behind the row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ortconv.tuning.intervals import interval, log_ratio
from ortconv.tuning.measuring import Entrant, Times
from ortconv.tuning.result import Measured, Row


@dataclass(eq=False)
class Candidate:
    """An entrant and its row. `digest` is that of the file. If `holds_fusions`, the file has saved fusions.

    `logs` and `loads` have a number for each block with the candidate: the logarithms of the ratios to the base.
    """

    row: Row
    entrant: Entrant
    digest: str
    bytes: int
    holds_fusions: bool = False
    peak: int | None = None
    times: list[Times] = field(default_factory=list)
    logs: dict[int, float] = field(default_factory=dict)
    loads: dict[int, float] = field(default_factory=dict)
    is_stopped: bool = False

    def note(self, block: int, own: Times, base: Times) -> None:
        """Add the measurements of the candidate and of the base in a block."""
        if own.error is not None:
            self.row.error = own.error
            return
        self.times.append(own)
        self.logs[block] = log_ratio(own.turns, base.turns)
        self.loads[block] = log_ratio([own.load], [base.load])

    def update_row(self) -> None:
        """Write the present figures into the row."""
        if self.logs and self.row.error is None:
            self.row.measured = Measured(
                interval(list(self.logs.values())),
                1e3 * median_turn(self.times),
                interval(list(self.loads.values())),
                1e3 * median_load(self.times),
                self.bytes,
                self.peak,
                len(self.logs),
                self.is_stopped,
            )


def median_turn(times: Sequence[Times]) -> float:
    """The median of all turns, in seconds."""
    return statistics.median(seconds for block in times for seconds in block.turns)


def median_load(times: Sequence[Times]) -> float:
    """The median time to open the file, in seconds."""
    return statistics.median(block.load for block in times)
