"""Which releases of ONNX Runtime load a model."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.kernels import first_release_of, first_release_of_action, first_release_of_imports, releases
from ortconv.ir.model import Model


class Oldest(NamedTuple):
    """The oldest release that loads a model, by position and by name, and what it has that older ones lack."""

    position: int
    name: str
    reason: str


def oldest_release(model: Model) -> Oldest:
    """The oldest release of ONNX Runtime that loads a model and runs it on the CPU; the oldest known one if those before may, too.

    Nodes that none has a kernel for do not count, nor do operators of libraries.
    """
    needs = [(0, ""), (first_release_of_imports(model.graph), "the version of its operator set")]
    needs += [(first_release_of(node), node.label) for node in model.graph.walk()]
    needs += [(first_release_of_action(f.action), f"saved action '{f.action}'") for f in model.saved]
    position, reason = max(needs, key=lambda need: need[0])
    return Oldest(position, releases()[position], reason)
