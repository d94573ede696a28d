"""The changes from one model to another, and for a conversion the rewrites that made them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from ortconv.differences.alignment import Alignment
from ortconv.differences.changes import Change, Comparison, of_fusions, of_models
from ortconv.differences.colors import Palette
from ortconv.errors import OrtconvError, UsageError
from ortconv.ir.model import Model
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.pipeline import Options, convert
from ortconv.pipeline.conversion import options_of
from ortconv.pipeline.settings import Settings

VERSION = 1
"""Version of the JSON document."""

LEVELS = ("all", "extended", "basic", "disable")
"""The levels at which a conversion is replayed if none is given, until one ends at the .ort file."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite of a conversion: its rule, the node where it applied, and the nodes that it removed and added."""

    rule: str
    root: str
    removed: list[str]
    made: list[str]


@dataclass
class Replay:
    """The repeated conversion of `a`. `ends_at_b` says whether its result is the given .ort file."""

    level: str
    ends_at_b: bool
    rewrites: dict[str, int]
    """Number of applications by rule."""
    steps: list[Step]
    left: list[Change]
    """The changes from the result of the replay to `b`."""
    failure: str | None = None
    """The reason why the conversion could not be repeated."""


@dataclass
class Difference:
    """The changes from model `a` to model `b`. Names of nodes and of values inside the graphs do not count as changes."""

    a: str
    b: str
    equal: bool
    counts: dict[str, int]
    """Number of changes by kind."""
    changes: list[Change]
    nodes_in_both: int
    """Number of nodes that both models have, including changed ones and those of subgraphs."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Values inside the graphs that differ only in name: the name in `a`, and the name in `b`."""
    replay: Replay | None = None
    """The conversion from `a` to `b`, if `a` is an ONNX model and `b` an .ort file."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"version": VERSION, **asdict(self)}


def diff(a: ModelSource, b: ModelSource, *, options: Options | None = None, **settings: Unpack[Settings]) -> Difference:
    """What changed from one model to another: interface, nodes, attributes, constants by content, operator sets, metadata.

    Each is an .onnx or .ort model. If `a` is an ONNX model and `b` an .ort file, `a` is converted again, and the rewrites of that
    explain the changes. `options` or `settings`, the fields of Options, say how; by default the .ort file tells the accelerators
    and the style, and the highest level that ends at `b` is taken. UsageError for options without such a pair of models.
    """
    asked = options is not None or bool(settings)
    chosen = options_of(options, settings)
    with as_file(a) as (path_a, label_a), as_file(b) as (path_b, label_b):
        is_conversion = not is_ort(path_a) and is_ort(path_b)
        if asked and not is_conversion:
            hint = "give an .onnx model and the .ort file made of it, or no such options"
            raise UsageError("options of a conversion explain an .ort file", file=label_b, hint=hint)
        models = load(path_a, only_to_run=True), load(path_b, only_to_run=True)
        found = compared(*models, (label_a, label_b))
        if is_conversion and not found.equal:
            found.replay = _explained(path_a, models[1], [chosen] if asked else _likely(models[1]))
    return found


def compared(a: Model, b: Model, labels: tuple[str, str]) -> Difference:
    """The changes from one model in memory to another."""
    found = Comparison(Alignment(a.graph, b.graph, Palette()))
    changes = [*of_models(a, b), *found.changes, *of_fusions(found.pairs, a.saved, b.saved)]
    counts = dict(Counter(str(change.kind) for change in changes))
    return Difference(*labels, not changes, counts, changes, len(found.pairs), found.renamed)


# ------------------------------------------------------------------ conversions


def _likely(target: Model) -> list[Options]:
    """The options that an .ort file may have been made with, the likeliest first."""
    providers = {node.ep for node in target.graph.walk()}
    style = "Runtime" if target.saved else "Fixed"
    return [
        Options(
            optimization_level=level,
            optimization_style=style,
            use_nnapi="NnapiExecutionProvider" in providers,
            use_coreml="CoreMLExecutionProvider" in providers,
        )
        for level in LEVELS
    ]


def _explained(source: Path, target: Model, choices: list[Options]) -> Replay:
    """The first replay whose result is the target, else the one with the fewest changes to it."""
    best: Replay | None = None
    for options in choices:
        found = _replayed(source, target, options)
        if best is None or best.failure is not None or len(found.left) < len(best.left):
            best = found
        if best.ends_at_b:
            break
    assert best is not None
    return best


def _replayed(source: Path, target: Model, options: Options) -> Replay:
    again = replace(options, details=True, validate=False, write_config=False, save_optimized_onnx_model=False)
    with TemporaryDirectory(prefix="ortconv-") as folder:
        try:
            done = convert(source, Path(folder) / "replay.ort", options=again)
        except OrtconvError as error:
            return Replay(options.optimization_level, False, {}, [], [], error.message)
        left = compared(load(Path(folder) / "replay.ort", only_to_run=True), target, ("", "")).changes
    steps = [
        Step(r.rule, r.root, list(r.change.consumed), list(r.change.made)) for r in done.trace if r.change is not None
    ]
    return Replay(options.optimization_level, not left, done.rewrites, steps, left)
