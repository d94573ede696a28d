"""The backend "numpy": our own kernels on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.executor.backend import Program, Region
from ortconv.executor.memory import keep_freed_memory
from ortconv.executor.plan import Plan, objection
from ortconv.ir.graph import Node


class Numpy:
    name = "numpy"

    def available(self) -> str | None:
        return None

    def objections(self, node: Node) -> Iterator[str]:
        reason = objection(node)
        if reason is not None:
            yield reason

    def compile(self, region: Region) -> Program:
        keep_freed_memory()
        return Plan(region.nodes, region.inputs, region.outputs)
