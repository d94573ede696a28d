"""The page of two graphs side by side: before and after a conversion or another change, and the rewrites between them as steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ortconv.ir.graph import Node
from ortconv.report.page import clean, page, text
from ortconv.report.picture import picture, stage
from ortconv.report.scene import Scene, all_nodes
from ortconv.report.sections import Markup, Section

SHOWN_NODES = 8
"""Number of nodes of each side that a step names."""

WALK = Markup(
    '<div id="walk"><div class="buttons"><button id="step-first">start</button><button id="step-back">◀ back</button>'
    '<button id="step-next">next ▶</button><button id="step-last">end</button></div>'
    '<input id="step" type="range" min="0" value="0" aria-label="step"><div id="step-text" role="status"></div></div>'
)
CHANGED = {"changed": "changed"}


class RewriteStep(NamedTuple):
    """A rewrite: its rule, the node where it applied, the labels of the removed and the added nodes, and a note."""

    rule: str
    root: str
    removed: Sequence[str]
    made: Sequence[str]
    note: str = ""


def story_page(
    title: str,
    headline: str,
    scenes: tuple[Scene, Scene],
    sections: Sequence[Section],
    *,
    kind: str,
    steps: Sequence[RewriteStep] = (),
    changed: tuple[Iterable[str], Iterable[str]] = ((), ()),
    titles: tuple[str, str] = ("before", "after"),
) -> str:
    """The page. `changed` has the labels of nodes of each side to mark."""
    pictures = [picture(scene, name) for scene, name in zip(scenes, titles, strict=True)]
    before, after = map(all_nodes, scenes)
    more: dict[str, Any] = {"steps": step_data(before, after, steps)} if steps else {}
    marks = [_numbers(nodes, labels) for nodes, labels in zip((before, after), changed, strict=True)]
    is_marked = any(marks)
    more |= {"changed": marks} if is_marked else {}
    walk = [Section("Rewrites, step by step", figure=WALK)] if steps else []
    return page(
        title,
        headline,
        [*walk, *sections],
        kind=kind,
        stage=stage(*pictures, scripts=("steps.js",), more=more, keys=CHANGED if is_marked else None),
    )


def step_data(before: Sequence[Node], after: Sequence[Node], steps: Iterable[RewriteStep]) -> list[dict[str, Any]]:
    """The steps as JSON values.

    `from` and `to` are the nodes of the first and of the last graph that the step removed and added. `after` are the steps that
    added the nodes it removed.
    """
    sources = {node.label: i for i, node in reversed(list(enumerate(before)))}
    maker: dict[str, int] = {}
    found: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        earlier = sorted({maker.pop(label) for label in step.removed if label in maker})
        taken = [sources.pop(label) for label in step.removed if label in sources]
        maker.update((label, number) for label in step.made)
        found.append({**_step_texts(step), "from": taken, "to": [], "after": earlier})
    for i, node in enumerate(after):
        if node.label in maker:
            found[maker[node.label]]["to"].append(i)
    return found


def _step_texts(step: RewriteStep) -> dict[str, Any]:
    sides = step.removed, step.made
    removed, made = (list(map(clean, labels[:SHOWN_NODES])) for labels in sides)
    more = [max(len(labels) - SHOWN_NODES, 0) for labels in sides]
    texts = {"rule": step.rule, "root": clean(step.root), "removed": removed, "made": made, "more": more}
    return {**texts, "note": clean(step.note)}


def _numbers(nodes: Sequence[Node], labels: Iterable[str]) -> list[int]:
    wanted = set(labels)
    return [i for i, node in enumerate(nodes) if node.label in wanted]


def rule_rows(rewrites: Mapping[str, int]) -> list[tuple[object, ...]]:
    """Number of applications by rule, as links to the rule's first step."""
    return [
        (Markup(f'<button class="link" data-rule="{text(rule)}">{text(rule)}</button>'), count)
        for rule, count in rewrites.items()
    ]
