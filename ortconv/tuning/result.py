"""The result of a tuning: a row for each candidate, ranked for a goal, and the recommended one."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortconv.backends.onnxruntime_app import SessionSettings
from ortconv.documents import Document
from ortconv.tuning.axes import Form
from ortconv.tuning.intervals import Interval
from ortconv.tuning.making import Estimated
from ortconv.wording import counted


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements on this machine, with onnxruntime's CPU provider.

    `latency` and `load` are ratios to the base. `peak_bytes` is the memory that opening the file and two runs add to a process;
    None if the system does not report it. With `is_stopped`, the candidate was measured in fewer blocks: it cannot win.
    """

    latency: Interval
    latency_ms: float
    load: Interval
    load_ms: float
    bytes: int
    peak_bytes: int | None
    blocks: int
    is_stopped: bool = False


@dataclass
class Row:
    """A candidate: a file and its session options. `same` are the other candidates with the same file.

    `error` is the reason why the rest is missing. `rank` counts from 1, by `score`, of which lower is better. `scaled` is the
    difference of the outputs that validation found, relative to the largest element, and `limit` the largest allowed one.
    """

    label: str
    form: Form
    settings: SessionSettings
    command: str
    same: list[str] = field(default_factory=list)
    error: str | None = None
    rank: int | None = None
    score: float | None = None
    measured: Measured | None = None
    estimated: Estimated | None = None
    nodes: int | None = None
    oldest_onnxruntime: str | None = None
    scaled: float | None = None
    limit: float | None = None
    unchecked: str | None = None
    file: str | None = None
    """The path of the candidate's file, if a folder for the files was given."""


@dataclass(frozen=True, slots=True)
class ReferenceFigures:
    """The reference of all ratios: in words, and its figures."""

    what: str
    latency_ms: float
    load_ms: float
    bytes: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the measurements."""

    cpu: str
    cores: int
    onnxruntime: str
    load_average: float | None
    """Load average of the last minute, at the end of the measurement; None if the system does not report it."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended candidate: the form and name of its file, and its session options.

    `provider` is the execution provider to register, with its options; "cpu" for none. If `holds_fusions`, the file has saved
    fusions.
    """

    label: str
    command: str
    file: str
    settings: SessionSettings
    holds_fusions: bool
    provider: str
    provider_options: dict[str, str]
    reason: str


@dataclass
class Tuning(Document):
    """The result of `tune`. Rows are in the order of their ranks, those without a rank last.

    `device` and `assumptions` belong to the estimates. `stages` has the seconds of each stage. A tuning `is_complete` unless it was
    interrupted or its time was up. `snippet` is the code of --snippet.
    """

    model: str
    goal: str
    target: str
    base: ReferenceFigures | None
    machine: Machine
    device: str
    assumptions: list[str]
    rows: list[Row]
    recommended: Recommendation | None
    candidates: int
    files: int
    seconds: float
    stages: dict[str, float] = field(default_factory=dict)
    is_complete: bool = True
    is_interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    snippet: str | None = None

    def __repr__(self) -> str:
        best = "none" if self.recommended is None else self.recommended.label
        return f"<Tuning of {self.model} for {self.goal}: {counted(self.candidates, 'candidate')}, recommended: {best}>"

    @property
    def best(self) -> Row | None:
        """The row of the recommended candidate."""
        return next((row for row in self.rows if row.rank == 1), None)

    def metrics(self) -> dict[str, float]:
        """The metrics of the recommended candidate that conditions can name, as far as they are known."""
        best = None if self.best is None else self.best.measured
        if best is None or self.base is None:
            return {}
        base = self.base_metrics()
        times = {"latency": base["latency"] * best.latency.ratio, "load": base["load"] * best.load.ratio}
        return {**times, "size": best.bytes, **_known(memory=best.peak_bytes)}

    def base_metrics(self) -> dict[str, float]:
        """The same metrics of the base."""
        if self.base is None:
            return {}
        times = {"latency": self.base.latency_ms / 1e3, "load": self.base.load_ms / 1e3}
        return {**times, "size": self.base.bytes, **_known(memory=self.base.peak_bytes)}


def _known(**values: int | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
