"""Small models, each of which some optimizer of ONNX Runtime rewrites, in onnx's text form; one module for each family.

Inputs whose names begin with a capital become constants with random elements, those that begin with V positive ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from rewriting import parse, random_feeds

OPSETS = (9, 11, 13, 17, 20, 23)


@dataclass(frozen=True)
class Row:
    """One model and the level at which both optimizers are let loose on it."""

    name: str
    text: str
    level: str = "basic"
    opset: int = 13
    atol: float = 1e-4
    wrong: bool = False
    """ONNX Runtime's rewrite fails or changes the numbers."""
    dearer: str = ""
    """Why ONNX Runtime's graph, though smaller, is not worth having."""
    until: str = ""
    """The version of ONNX Runtime that was the last to be wrong, or dearer."""
    same: bool = False
    """The rewrite does not make the graph smaller."""
    ml: int = 0
    """The version of ai.onnx.ml, where it is imported."""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.level}-{self.opset}"

    def proto(self) -> onnx.ModelProto:
        """The model, its constants filled in."""
        proto = parse(self.text, self.opset)
        proto.ir_version = 10
        if self.ml:
            proto.opset_import.add(domain="ai.onnx.ml", version=self.ml)
        numbers = random_feeds(proto, seed=1)
        for value in [i for i in proto.graph.input if i.name[0].isupper()]:
            proto.graph.input.remove(value)
            array = numbers[value.name]
            array = abs(array) + 1 if value.name.startswith("V") else array
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), value.name))
        return proto


def over(opsets: Iterable[int], name: str, text: str, level: str = "basic", **options: object) -> Iterator[Row]:
    """The same row for several operator sets."""
    return (Row(name, text, level, opset, **options) for opset in opsets)  # type: ignore[arg-type]
