"""What every sample model shares: a small graph builder, seeded numbers and deterministic bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Dims = Sequence[int | str]


def half(array: Array) -> Array:
    """float32 values that float16 represents: last-bit differences between machines round away."""
    return array.astype(np.float16).astype(np.float32)


class Numbers:
    """Seeded uniform numbers. NumPy keeps RandomState's stream frozen (NEP 19), and uniform draws need no libm."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def uniform(self, shape: Sequence[int], low: float, high: float) -> Array:
        return half(self._state.random_sample(tuple(shape)) * (high - low) + low)

    def weight(self, shape: Sequence[int], fan_in: int, gain: float = 1.0) -> Array:
        """Zero mean and variance gain / fan_in: unit variance in gives variance `gain` out."""
        bound = (3.0 * gain / fan_in) ** 0.5
        return self.uniform(shape, -bound, bound)

    def integers(self, shape: Sequence[int], high: int) -> Array:
        return self._state.randint(0, high, tuple(shape)).astype(np.int64)


class GraphBuilder:
    """Appends nodes in order. Every method returns the name of the value that it defines.

    A subgraph needs a prefix: its names share one scope with the graph around it.
    """

    def __init__(self, name: str, prefix: str = "") -> None:
        self.name = name
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._counts: dict[str, int] = {}

    def weight(self, name: str, array: Array) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def op(self, op_type: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        number = self._counts[op_type] = self._counts.get(op_type, -1) + 1
        name = f"{self.prefix}{op_type}_{number}"
        output = output or f"{name}_output"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, value: Any, dtype: Any) -> str:
        """A Constant node, as exporters write scalars and shapes."""
        number = self._counts.get("Constant", -1) + 1
        tensor = numpy_helper.from_array(np.asarray(value, dtype=dtype), f"{self.prefix}Constant_{number}_value")
        return self.op("Constant", value=tensor)

    def graph(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, self.name, list(inputs), list(outputs), self.initializers)


def floats(name: str, dims: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def ints(name: str, dims: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, dims)


def bools(name: str, dims: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, dims)


def model_bytes(graph: onnx.GraphProto, *, opset: int, ir_version: int = 7) -> bytes:
    """The checked model. The versions are fixed, so the bytes do not depend on the installed onnx."""
    model = helper.make_model(
        graph, producer_name="ortconv-samples", ir_version=ir_version, opset_imports=[helper.make_opsetid("", opset)]
    )
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def weights_of(path: Path) -> dict[str, Array]:
    """The initializers of a model file by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
