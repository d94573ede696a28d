"""Facts about a model that another export would avoid. `inspect` lists them, and `convert` warns of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ortconv.ir.graph import Graph
from ortconv.ir.schema import trains
from ortconv.wording import and_others, counted


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that stands out, and the advice."""

    kind: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


def export_notes(graph: Graph) -> Iterator[Note]:
    overridable = [v.name for v in graph.overridable]
    if overridable:
        message = f"{and_others(overridable)}: a constant that is also an input is never folded"
        yield Note("overridable", message, "ortconv convert --freeze-initializers")
    training = [node.label for node in graph.walk() if trains(node)]
    if training:
        count = f"{counted(len(training), 'node')} in training mode, such as {training[0]}"
        yield Note("training", count, "export the model in inference mode: model.eval() in PyTorch")
