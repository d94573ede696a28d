"""The page of `ortconv convert`: the graph before and after, the rewrites as steps, partitions, numbers, size and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.partition import Target, partition
from ortconv.partition.cost import Estimate, estimate
from ortconv.report.labels import byte_text
from ortconv.report.page import about
from ortconv.report.partition import compared_times
from ortconv.report.picture import drawn
from ortconv.report.scene import Scene, headline
from ortconv.report.sections import Link, Section
from ortconv.report.story import RewriteStep, rule_rows, story_page
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.optimizer.engine import Rewrite
    from ortconv.pipeline import Options, Result
    from ortconv.validation.validate import Validation


def page_of(result: Result, model: Path, settings: Options, options: Mapping[str, object]) -> str:
    """The page of a conversion, with details of the source and of the written file; `options` are those of the command.

    Both graphs are colored for the first target, if there is one.
    """
    targets = settings.targets()
    before = load(model, settings.fix_dims, freeze_initializers=settings.freeze_initializers)
    after = load(Path(result.files[0]))
    scenes, estimates = zip(*(_scene(model, targets) for model in (before, after)), strict=True)
    size = f"{byte_text(result.bytes_before)} → {byte_text(result.bytes_after)}"
    return story_page(
        model.name,
        f"{result.nodes_before} → {result.nodes_after} nodes, {size}",
        scenes,
        [*_sections(result, scenes, estimates), about(options)],
        kind="conversion",
        steps=list(map(_step, result.trace)),
        titles=(f"source: {result.nodes_before} nodes", f"result: {result.nodes_after} nodes"),
    )


def _scene(model: Model, targets: Sequence[Target]) -> tuple[Scene, Estimate | None]:
    """The graph with the partitions that ONNX Runtime makes when it loads the file, and its estimated time."""
    if not targets:
        return drawn(model.graph), None
    found = partition(model.graph, targets[0], anew=True)
    cost = estimate(found)
    return drawn(model.graph, found, cost), cost


def _step(rewrite: Rewrite) -> RewriteStep:
    change = rewrite.change
    if change is None:
        return RewriteStep(rewrite.rule, rewrite.root, (), ())
    grown = change.bytes_after - change.bytes_before
    note = f"{change.nodes_before} → {change.nodes_after} nodes"
    note += f", {'+' if grown > 0 else '−'}{byte_text(abs(grown))} of constants" if grown else ""
    return RewriteStep(rewrite.rule, rewrite.root, change.consumed, change.made, note)


def _sections(result: Result, scenes: Sequence[Scene], estimates: Sequence[Estimate | None]) -> Iterator[Section]:
    yield Section("Numbers", list(_proof(result.validation)))
    yield Section("Partitions", list(_partitions(scenes, estimates)))
    reasons = [((Link(row.rule, f"{row.rule}:"), row.example, row.advice), row.nodes) for row in result.refusals]
    yield Section("Why nodes stay on the CPU", (), ("reason", ">nodes"), reasons)
    yield Section("Rewrites by rule", (), ("rule", ">rewrites"), rule_rows(result.rewrites))
    yield Section("Size", (), ("", ">before", ">after"), list(_sizes(result)))
    yield Section("Operators", (), ("operator", ">before", ">after"), _operators(scenes))
    yield Section("Time", (), ("stage", ">time"), [(stage, f"{s * 1e3:.0f} ms") for stage, s in result.seconds.items()])
    yield Section("Files", list(_files(result)))
    yield Section("Warnings", result.warnings)


def _proof(check: Validation | None) -> Iterator[str]:
    if check is None or check.skipped is not None:
        yield "not checked" + ("" if check is None else f": {check.skipped}")
        return
    for engine in check.engines:
        equal = "equal" if engine.max_abs == 0 else f"largest difference {engine.max_abs:.2e}"
        yield f"{engine.name} {engine.version}".rstrip() + f": {engine.skipped or equal}"
    yield f"limit {check.limit:.2g} of the largest magnitude of an output"
    yield from check.inputs
    yield from check.notes


def _partitions(scenes: Sequence[Scene], estimates: Sequence[Estimate | None]) -> Iterator[str]:
    for side, scene, cost in zip(("source", "result"), scenes, estimates, strict=True):
        if scene.partitioning is not None and cost is not None:
            yield f"{side}: {headline(scene.partitioning)}"
            yield f"estimated on {cost.device.name}: {compared_times(cost)}"


def _sizes(result: Result) -> Iterator[tuple[object, ...]]:
    yield "file", byte_text(result.bytes_before), byte_text(result.bytes_after)
    yield "constants", byte_text(result.constants_before), byte_text(result.constants_after)
    yield "nodes", result.nodes_before, result.nodes_after


def _operators(scenes: Sequence[Scene]) -> list[tuple[object, ...]]:
    """The number of nodes by operator on both sides. The largest changes come first."""
    counts: dict[str, list[int]] = {}
    for side, scene in enumerate(scenes):
        for node in scene.root.nodes:
            counts.setdefault(node.operator, [0, 0])[side] += 1
    rows = sorted(counts.items(), key=lambda row: (-abs(row[1][1] - row[1][0]), row[0]))
    return [(Link(op, op.rpartition(":")[2]), *numbers) for op, numbers in rows]


def _files(result: Result) -> Iterator[str]:
    yield from (Path(file).name for file in result.files)
    if result.oldest_onnxruntime.release:
        yield f"loads in onnxruntime {result.oldest_onnxruntime}"
    if result.saved_fusions:
        yield f"{counted(result.saved_fusions, 'fusion')} saved for onnxruntime"
