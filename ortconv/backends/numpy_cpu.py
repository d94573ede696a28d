"""The backend "numpy": our own kernels on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ortconv.executor.backend import Event, Program, Region
from ortconv.executor.memory import keep_freed_memory
from ortconv.executor.plan import Plan, objection
from ortconv.executor.threads import in_threads
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
        plan = in_threads(region.threads, Plan, region.nodes, region.inputs, region.outputs)
        return plan if region.threads == 1 else _InThreads(plan, region.threads)


class _InThreads:
    """A plan whose runs may use several threads."""

    def __init__(self, plan: Plan, count: int) -> None:
        self._plan, self._count = plan, count

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return in_threads(self._count, self._plan.run, inputs)

    def profile(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Event]]:
        return in_threads(self._count, self._plan.profile, inputs)
