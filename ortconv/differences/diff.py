"""The changes from one model to another, and for a conversion the rewrites that made them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Unpack

from ortconv.differences.changes import Change, between
from ortconv.differences.replay import Replay, replayed
from ortconv.documents import Document
from ortconv.errors import UsageError
from ortconv.ir.model import Model
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.pipeline import Options
from ortconv.pipeline.conversion import options_of
from ortconv.pipeline.settings import Settings
from ortconv.public import public
from ortconv.wording import counted


@dataclass
class ModelDiff(Document):
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

    def __repr__(self) -> str:
        return f"<ModelDiff {self.a} -> {self.b}: {counted(len(self.changes), 'change')}>"


@public
def diff(a: ModelSource, b: ModelSource, *, options: Options | None = None, **settings: Unpack[Settings]) -> ModelDiff:
    """The changes from one model to another: interface, nodes, attributes, constants by content, operator sets, metadata.

    Each is an .onnx or .ort model. If `a` is an ONNX model and `b` an .ort file, `a` is converted again, and the rewrites
    explain the changes. `options` or `settings`, the fields of Options, are those of the conversion; by default the file's
    stamp gives them. Without a stamp, the file shows accelerators, style, float16 and fixed dimensions, and the level is the
    highest one that ends at `b`. Raises UsageError for options without such a pair of models.
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
            found.replay = replayed(path_a, *models, chosen if asked else None)
    return found


def compared(a: Model, b: Model, labels: tuple[str, str]) -> ModelDiff:
    """The changes from one model in memory to another."""
    found, changes = between(a, b)
    counts = dict(Counter(str(change.kind) for change in changes))
    return ModelDiff(*labels, not changes, counts, changes, len(found.pairs), found.renamed)
