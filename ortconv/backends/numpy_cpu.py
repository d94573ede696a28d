"""The backend "numpy": ortconv's own kernels on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortconv.errors import UsageError
from ortconv.executor.guard import guarded
from ortconv.executor.kernels.evaluate import objection
from ortconv.executor.plan import Plan, Watch
from ortconv.ir.graph import Node
from ortconv.ir.tensor import RuntimeValue
from ortconv.process import keep_freed_memory, products_in
from ortconv.runtime.backend import Program, Region, TimedStep


class Numpy:
    """The numpy executor. `numpy:reference` runs the plain kernel of each node, one by one; `watch` may replace kernels."""

    name = "numpy"

    def __init__(self, *, reference: bool = False, watch: Watch | None = None) -> None:
        self._reference, self._watch = reference, watch

    def configured(self, settings: str) -> Numpy:
        if settings != "reference":
            raise UsageError(f"the backend 'numpy' has no setting '{settings}'", hint="its only setting is 'reference'")
        return self.reference()

    def reference(self) -> Numpy:
        return Numpy(reference=True, watch=self._watch)

    def available(self) -> str | None:
        return None

    def objections(self, node: Node) -> Iterator[str]:
        reason = objection(node)
        if reason is not None:
            yield reason

    def compile(self, region: Region) -> Program:
        keep_freed_memory()
        with guarded(region.nodes, "preparing the model for numpy"):
            plan = Plan(region.nodes, region.inputs, region.outputs, reference=self._reference, watch=self._watch)
        return plan if region.threads == 1 else _InThreads(plan, region.threads)


class _InThreads:
    """A plan whose matrix products use several threads."""

    def __init__(self, plan: Plan, count: int) -> None:
        self._plan, self._count = plan, count

    def run(self, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        with products_in(self._count):
            return self._plan.run(inputs)

    def profile(self, inputs: Sequence[RuntimeValue]) -> tuple[list[RuntimeValue], list[TimedStep]]:
        steps: list[TimedStep] = []
        with products_in(self._count):
            return self._plan.run(inputs, steps), steps
