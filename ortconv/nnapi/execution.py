"""Executions."""

from __future__ import annotations

from ortconv.ir.tensor import Array
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.cpu import Program
from ortconv.nnapi.operand import Tensor


class Execution:
    """One run of a compilation."""

    def __init__(self, compilation: Compilation) -> None:
        self.model = compilation.model
        self.inputs: dict[int, Array | None] = {}
        self.outputs: dict[int, Array] = {}
        self.results: list[Tensor] = []

    def set_input(self, index: int, array: Array | None) -> None:
        self.inputs[index] = array

    def set_output(self, index: int, array: Array) -> None:
        self.outputs[index] = array

    def compute(self) -> None:
        kinds = [self.model.operands[index].kind for index in self.model.inputs]
        arrays = [self.inputs[index] for index in range(len(kinds))]
        self.results = Program(self.model).run(
            [None if a is None else Tensor(kind, a) for kind, a in zip(kinds, arrays)]
        )
        for index, result in enumerate(self.results):
            if result.array.size:
                self.outputs[index].reshape(-1)[:] = result.array.reshape(-1)

    def get_output_operand_dimensions(self, index: int) -> tuple[int, ...]:
        return self.results[index].dims
