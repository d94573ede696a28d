"""A backend for ortconv in a package of its own: elementwise float operators, computed in double precision.

What is between them is kept in double, too, so a chain is rounded to float once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.types import DType
from ortconv.runtime.backend import Region

OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Neg": np.negative,
    "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


class Double:
    name = "double"

    def available(self) -> str | None:
        return None

    def objections(self, node: Node) -> Iterator[str]:
        if node.domain or node.op not in OPERATORS:
            yield f"{node.op} is none of {', '.join(OPERATORS)}"
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype is not DType.FLOAT:
                yield f"'{value.name}' is not float"

    def compile(self, region: Region) -> Program:
        return Program(region)


class Program:
    def __init__(self, region: Region) -> None:
        self._inputs, self._outputs = region.inputs, region.outputs
        self._steps = [(OPERATORS[node.op], node.inputs, node.out) for node in region.nodes]
        self._constants: dict[Value | None, Any] = {
            v: v.constant.numpy().astype(np.float64)
            for node in region.nodes
            for v in node.inputs
            if v is not None and v.constant is not None
        }

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        values = dict(self._constants)
        values.update(
            (v, x.astype(np.float64)) for v, x in zip(self._inputs, inputs, strict=True) if v.dtype is DType.FLOAT
        )
        for function, reads, made in self._steps:
            values[made] = function(*[values[v] for v in reads])
        return [np.asarray(values[v]).astype(np.float32) for v in self._outputs]
