"""The search for the smallest model on which a check still fails, within limits on steps and time."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from ortconv.documents import Document
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import read_bytes, temporary_folder, write_bytes
from ortconv.ir.graph import Node
from ortconv.ir.model import Model
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.pipeline.result import operator_counts
from ortconv.public import public
from ortconv.reduction import edits
from ortconv.reduction.command import LATE, Command, CommandResult
from ortconv.reduction.journal import KnownResults
from ortconv.reduction.models import captured, check_valid, model_bytes
from ortconv.wording import counted

SLOWER = 10
LEAST_SECONDS = 30.0
"""Default time limit of a run of the command: a multiple of the first run's time, and at least a number of seconds."""

Check = Callable[[Path], bool]
"""Whether the model at a path has the fault."""

Stopped = Literal["steps", "time", "interrupted"]


@dataclass
class Reduction(Document):
    """The result of a reduction. `stopped` is the limit that ended it; None if no smaller model was found."""

    source: str
    output: str
    nodes_before: int
    bytes_before: int
    nodes_after: int = 0
    bytes_after: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    """Number of remaining nodes by operator."""
    steps: int = 0
    """Number of runs of the check."""
    known: int = 0
    """Number of results from the journal of an earlier run."""
    seconds: float = 0.0
    stopped: Stopped | None = None
    command: str | None = None
    exit_code: int | None = None
    """The exit code of the command on the whole model."""


class _Stop(Exception):  # noqa: N818
    """A limit is reached. The argument is its name, one of Stopped."""


@public
def reduce(
    source: ModelSource,
    output: str | Path,
    check: str | Command | Check,
    *,
    expect_exit: int | None = None,
    expect_output: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    journal: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Reduction:
    """Shrink a model while a check still fails on it, and write the smallest one to `output`, which must not exist.

    The check is a command of the shell, in which {} is the model's path, or a function that returns True if the model at a path
    has the fault. A command fails if it ends with `expect_exit`, by default its exit code on the whole model, and prints
    `expect_output`, if that is given. `steps` and `seconds` bound the search. With a `journal`, a search continues where an earlier
    one was stopped. `progress` is called with a line about each smaller model. Every candidate is a valid model of the same format.
    Fusions that an .ort file of Runtime style leaves to onnxruntime are dropped.

    UsageError if the check does not fail on the whole model, or no longer does when ortconv writes the model anew.
    """
    target = Path(output)
    with as_file(source) as (path, label), temporary_folder() as folder:
        if journal is None or not Path(journal).exists():
            _refuse_existing(target)
        suffix = ".ort" if is_ort(path) else ".onnx"
        if target.suffix.lower() != suffix:
            raise UsageError(f"reduce writes a model of the same format, {suffix}", file=target)
        model = load(path, only_to_run=True)
        model.saved = []
        found = Reduction(label, str(target), _node_count(model), model.file_bytes)
        has_fault = _tried(check, expect_exit, expect_output, path, found)
        name = _name_of(path, found.command, found.exit_code, expect_output)
        known = KnownResults(None if journal is None else Path(journal), name)
        if not known.continues:
            _refuse_existing(target)
        search = _Search(folder, target, has_fault, found, known, steps, seconds, progress)
        search.begin(model)
        _shrink_until_stopped(search)
        search.finish()
    return found


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise UsageError("exists already, and reduce writes over no model", file=target, hint="choose another name")


def _name_of(path: Path, *failure: object) -> str:
    """The identity of this search: the model, and the failure."""
    digest = blake2b(read_bytes(path), digest_size=16)
    digest.update(repr((Reduction.VERSION, *failure)).encode())
    return digest.hexdigest()


# ------------------------------------------------------------------ the check


def _tried(
    check: str | Command | Check, expect_exit: int | None, expect_output: str | None, path: Path, found: Reduction
) -> Check:
    """The check as a function. It runs on the whole model first: UsageError if that does not fail."""
    if not isinstance(check, str | Command):
        if not check(path):
            raise UsageError("the check finds no fault in the whole model", file=path)
        return check
    command = Command(check) if isinstance(check, str) else check
    began = time.monotonic()
    first = command.run(path)
    found.command, found.exit_code = command.text, first.exit_code
    wanted = first.exit_code if expect_exit is None else expect_exit
    _refuse_unless(first, wanted, expect_output, command.line(path), path)
    if command.seconds is None and wanted != LATE:
        command = replace(command, seconds=max(LEAST_SECONDS, SLOWER * (time.monotonic() - began)))
    return lambda candidate: _fails(command.run(candidate), wanted, expect_output)


def _fails(outcome: CommandResult, wanted: int, text: str | None) -> bool:
    return outcome.exit_code == wanted and (text is None or text in outcome.output)


def _refuse_unless(first: CommandResult, wanted: int, text: str | None, line: str, path: Path) -> None:
    """UsageError if a command does not fail on the whole model as it should."""
    if _fails(first, wanted, text) and wanted != 0:
        return
    last = first.output.strip().splitlines()[-1:]
    why = f"it ends with {first.exit_code}" + (f" and not {wanted}" if first.exit_code != wanted else "")
    if first.exit_code == wanted != 0:
        why = f"it does not print '{text}'"
    raise UsageError(
        f"the command does not fail on the whole model as it should: {why}{f': {last[0]}' if last else ''}",
        file=path,
        hint=f"try it by itself: {line}",
    )


# ------------------------------------------------------------------ the search


@dataclass
class _Search:
    """The smallest model so far, and the test of candidates that may replace it. `folder` is for temporary files."""

    folder: Path
    target: Path
    has_fault: Check
    found: Reduction
    journal: KnownResults
    steps: int | None
    seconds: float | None
    progress: Callable[[str], None] | None
    _rank: tuple[int, int] | None = None
    _packed: int | None = None
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.best = self.folder / f"best{self.target.suffix}"
        self._ort = self.target.suffix.lower() == ".ort"

    def begin(self, model: Model) -> None:
        """Begin with the whole model, serialized again. UsageError if the check does not fail on it."""
        edits.drop_unused_inputs(model)
        if not self._accept(model):
            hint = "the fault lies in what is not kept, such as functions, or fusions that are left to onnxruntime"
            raise UsageError(
                "the check does not fail when the model is written anew", file=self.found.source, hint=hint
            )

    def model(self) -> Model:
        """A copy of the smallest model, to be edited."""
        return load(self.best, only_to_run=True)

    def try_edit(self, edit: edits.Edit) -> bool:
        """Edit the smallest model. A result that is valid and has the fault replaces it."""
        self._check_bounds()
        model = self.model()
        try:
            if not edit(model):
                return False
            edits.drop_unused_inputs(model)
            return self._accept(model)
        except OrtconvError:
            return False

    def finish(self) -> None:
        model = self.model()
        self.found.nodes_after = _node_count(model)
        self.found.bytes_after = self.target.stat().st_size
        self.found.operators = operator_counts(model)
        self.found.seconds = time.monotonic() - self._began

    def _check_bounds(self) -> None:
        if self.steps is not None and self.found.steps >= self.steps:
            raise _Stop("steps")
        if self.seconds is not None and time.monotonic() > self._began + self.seconds:
            raise _Stop("time")

    def _accept(self, model: Model) -> bool:
        """Whether a model is valid, has the fault, and is smaller than the smallest so far. If so, it is written to the output."""
        data = model_bytes(model, ort=self._ort)
        if not self._is_smaller(model, data):
            return False
        digest = blake2b(data, digest_size=16).hexdigest()
        fails = self.journal.known.get(digest)
        if fails is False:
            self.found.known += 1
            return False
        check_valid(model, data, ort=self._ort)
        candidate = self.folder / f"candidate{self.target.suffix}"
        candidate.write_bytes(data)
        if fails is None:
            self.found.steps += 1
            fails = self.has_fault(candidate)
            self.journal.note(digest, fails)
        else:
            self.found.known += 1
        if fails:
            self._rank, self._packed = _rank(model), None
            candidate.replace(self.best)
            write_bytes(self.target, data)
            self._report(model, len(data))
        return fails

    def _is_smaller(self, model: Model, data: bytes) -> bool:
        """Whether a model is smaller than the smallest so far: in nodes, then in inputs and outputs, then in packed size."""
        rank = _rank(model)
        if self._rank is None or rank != self._rank:
            return self._rank is None or rank < self._rank
        if self._packed is None:
            self._packed = _packed(self.best.read_bytes())
        return _packed(data) < self._packed

    def _report(self, model: Model, size: int) -> None:
        if self.progress is not None:
            amounts = ((_node_count(model), "node"), (size, "byte"), (self.found.steps, "run"))
            self.progress(", ".join(counted(*amount) for amount in amounts))


def _rank(model: Model) -> tuple[int, int]:
    """The sizes that are compared before that of the file: nodes, then inputs and outputs."""
    return _node_count(model), len(model.graph.inputs) + len(model.graph.outputs)


def _node_count(model: Model) -> int:
    return sum(1 for _ in model.graph.walk())


def _packed(data: bytes) -> int:
    return len(zlib.compress(data, 1))


def _shrink_until_stopped(search: _Search) -> None:
    """Shrink the smallest model until no edit makes it smaller, a bound is reached, or Ctrl-C."""
    try:
        _shrink(search)
        search.journal.done()
    except _Stop as stop:
        search.found.stopped = stop.args[0]
    except KeyboardInterrupt:
        search.found.stopped = "interrupted"


def _shrink(search: _Search) -> None:
    """Shrink the smallest model until no edit makes it smaller: first nodes, then all else."""
    values = captured(search.model())
    while True:
        _shrink_nodes(search, values, constants=False)
        changed = any([_shrink_nodes(search, values, constants=True), _any(search, _around_nodes)])
        if not changed:
            break
    while any(_any(search, family) for family in (_outputs, _inputs, _operands, _sizes, _constants)):
        pass


def _shrink_nodes(search: _Search, values: edits.Values, *, constants: bool) -> bool:
    """Keep as few nodes as the check needs: try halves, then smaller and smaller pieces (delta debugging)."""

    def keep(kept: Iterable[int]) -> bool:
        return search.try_edit(partial(edits.keep_nodes, kept=frozenset(kept), values=values, constants=constants))

    before = total = _node_count(search.model())
    while total > 1 and any(keep(part) for part in _halves(total)):
        total = _node_count(search.model())
    size = total // 2
    while size >= 1:
        start = total - size
        while start > -size:
            if keep(i for i in range(total) if not start <= i < start + size):
                total = _node_count(search.model())
                start = min(start, total)
            start -= size
        size = min(size // 2, total)
    return total < before


def _halves(total: int) -> list[range]:
    """The first, last and middle half of the nodes."""
    half = (total + 1) // 2
    return [range(half), range(total - half, total), range(total // 4, total // 4 + half)]


Family = Callable[[Model], list[edits.Edit]]
"""The possible edits of one kind, the last position first."""


def _any(search: _Search, family: Family) -> bool:
    """Try all edits of a family, again after each that works. Return whether one did."""
    changed, place = False, 0
    while True:
        candidates = family(search.model())
        if place >= len(candidates):
            return changed
        if search.try_edit(candidates[place]):
            changed = True
        else:
            place += 1


def _around_nodes(model: Model) -> list[edits.Edit]:
    found: list[edits.Edit] = []
    for place, node in _backward(model):
        present = [slot for slot, value in enumerate(node.inputs) if value is not None]
        found += [partial(edits.bypass, place=place, slot=slot) for slot in present]
        branches = ("then_branch", "else_branch") if node.op == "If" else ()
        found += [partial(edits.inline, place=place, branch=branch) for branch in branches]
    return found


def _backward(model: Model) -> Iterator[tuple[int, Node]]:
    return reversed(list(enumerate(model.graph.walk())))


def _outputs(model: Model) -> list[edits.Edit]:
    return [partial(edits.drop_output, place=place) for place in reversed(range(len(model.graph.outputs)))]


def _inputs(model: Model) -> list[edits.Edit]:
    return [partial(edits.zeros_for_input, place=place) for place in reversed(range(len(model.graph.inputs)))]


def _operands(model: Model) -> list[edits.Edit]:
    found: list[edits.Edit] = []
    for place, node in _backward(model):
        found += [partial(edits.drop_input, place=place, slot=slot) for slot in reversed(range(len(node.inputs)))]
        found += [partial(edits.drop_attribute, place=place, name=name) for name in sorted(node.attrs)]
    return found


def _sizes(model: Model) -> list[edits.Edit]:
    return [
        partial(edits.resize, old=size, new=new)
        for size in edits.sizes(model)
        for new in (1, 2, 4, 8, 16)
        if isinstance(size, str) or new < size
    ]


def _constants(model: Model) -> list[edits.Edit]:
    return [partial(edits.clear, name=name) for graph in model.graph.graphs() for name in graph.initializers]
