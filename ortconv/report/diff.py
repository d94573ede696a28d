"""What `ortconv diff` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.differences.changes import ABSENT
from ortconv.report.sections import Section
from ortconv.wording import counted, listed

if TYPE_CHECKING:
    from ortconv.differences.changes import Change
    from ortconv.differences.diff import ModelDiff
    from ortconv.differences.replay import Replay, Step

MOST_CHANGES = 8
MOST_STEPS = 12
MOST_LABELS = 4

UNMARKED = ("provider", "type")
"""Kinds of changes that do not change a node's computation."""

CALLED = {
    "operator": ("operator changed", "operators changed"),
    "attribute": ("attribute changed", "attributes changed"),
    "rewired": ("input or output rewired", "inputs or outputs rewired"),
    "provider": ("node for another execution provider", "nodes for another execution provider"),
    "constant": ("constant changed", "constants changed"),
    "type": ("type changed", "types changed"),
    "order": ("other order of inputs or outputs", "other orders of inputs and outputs"),
    "opset": ("operator set changed", "operator sets changed"),
    "metadata": ("metadata entry changed", "metadata entries changed"),
    "saved fusion": ("saved fusion changed", "saved fusions changed"),
}
"""The name of one change of a kind, and its plural. Other kinds, such as node added, are their own names."""


def sections(found: ModelDiff, *, everything: bool = False) -> list[Section]:
    """The difference as lists. Each list is cut after its first entries unless `everything` is set."""
    head = Section(f"{found.a} -> {found.b}", list(_head(found)))
    replay = found.replay
    explained = [] if replay is None else list(_replay(replay, everything))
    return [head, *explained, *_by_kind(_shown(found, everything), everything)]


def page_of(found: ModelDiff, a: Path, b: Path, options: Mapping[str, object]) -> str:
    """Both graphs with the changed nodes marked, and for a conversion its rewrites as steps; `options` are those of the command."""
    from ortconv.models import load
    from ortconv.report.page import about
    from ortconv.report.picture import drawn
    from ortconv.report.story import RewriteStep, story_page

    scenes = [drawn(load(path, only_to_run=True).graph) for path in (a, b)]
    replayed = found.replay.steps if found.replay is not None else ()
    changes = [change for change in found.changes if change.kind not in UNMARKED]
    gone = [change.subject for change in changes if change.kind != "node added"]
    come = [change.subject for change in changes if change.kind != "node removed"]
    head, *shown = sections(found, everything=True)
    return story_page(
        f"{a.name} and {b.name}",
        "no change" if found.equal else counted(len(found.changes), "change"),
        (scenes[0], scenes[1]),
        [head._replace(title="What changed"), *shown, about(options)],
        kind="difference",
        steps=[RewriteStep(s.rule, s.root, s.removed, s.made) for s in replayed],
        changed=(gone, come),
        titles=(a.name, b.name),
    )


def _shown(found: ModelDiff, everything: bool) -> list[Change]:
    """The changes to list. After a repeated conversion, only those that its rewrites do not explain."""
    replay = found.replay
    if everything or replay is None or replay.failure is not None:
        return found.changes
    return [c for c in found.changes if c.kind not in OF_REWRITES] if replay.ends_at_b else replay.left


OF_REWRITES = ("node added", "node removed", "operator", "attribute", "rewired", "constant", "type", "saved fusion")
"""Kinds of changes that rewrites make."""


def _head(found: ModelDiff) -> Iterator[str]:
    if found.equal:
        yield f"no change; {counted(found.nodes_in_both, 'node')}"
    else:
        yield ", ".join(_counted(kind, count) for kind, count in found.counts.items())
        yield f"{counted(found.nodes_in_both, 'node')} in both"
    if found.renamed:
        yield f"{counted(len(found.renamed), 'value')} inside with another name only"


def _counted(kind: str, count: int) -> str:
    return counted(count, *CALLED.get(kind, (kind, kind.replace(" ", "s "))))


def _by_kind(changes: Iterable[Change], everything: bool) -> Iterator[Section]:
    groups: dict[str, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.kind, []).append(change)
    for kind, group in groups.items():
        yield Section(_counted(kind, len(group)), _cut([_line(change) for change in group], MOST_CHANGES, everything))


def _line(change: Change) -> str:
    place = f"{change.place}: " if change.place else ""
    if ABSENT in (change.before, change.after) and change.kind.startswith("node"):
        return f"{place}{change.subject}: {change.before if change.after == ABSENT else change.after}; {change.detail}"
    is_part = change.kind in ("attribute", "rewired", "type")
    part = f" {change.detail}" if change.detail and is_part else ""
    note = f" ({change.detail})" if change.detail and not is_part else ""
    return f"{place}{change.subject}{part}: {change.before} -> {change.after}{note}"


def _replay(replay: Replay, everything: bool) -> Iterator[Section]:
    if replay.failure is not None:
        yield Section("The conversion cannot be replayed", [replay.failure])
        return
    count = len(replay.steps)
    options = f" with {' '.join(replay.options)}" if replay.options else ""
    rewrites = f"{counted(count, 'rewrite')} at level {replay.level}{options}"
    if replay.ends_at_b:
        yield Section("The conversion, replayed", [f"{rewrites} lead to this file"])
    else:
        hint = "state the options of the conversion: see ortconv diff --help"
        left = f"{rewrites} do not lead to this file: {counted(len(replay.left), 'change is', 'changes are')} left, listed below"
        yield Section("The conversion, replayed", [left, hint])
    yield Section("Rules", header=("rule", ">rewrites"), rows=list(replay.rewrites.items()))
    steps = [f"{i} {_step(step)}" for i, step in enumerate(replay.steps, 1)]
    yield Section("Rewrites", _cut(steps, MOST_STEPS, everything))


def _step(step: Step) -> str:
    nodes = f": {_labels(step.removed)} -> {_labels(step.made)}" if step.removed or step.made else ""
    return f"{step.rule} at {step.root}{nodes}"


def _labels(labels: Sequence[str]) -> str:
    return listed(labels, MOST_LABELS) or "nothing"


def _cut(lines: list[str], most: int, everything: bool) -> list[str]:
    if everything or len(lines) <= most:
        return lines
    return [*lines[:most], f"and {len(lines) - most} more (-v lists them)"]
