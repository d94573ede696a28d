"""Sessions: a model made ready once on one or more backends, run many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.errors import UsageError
from ortconv.executor.backend import Backend, Program, Region, get_backend, with_fallbacks
from ortconv.executor.regions import split
from ortconv.ir.graph import Value
from ortconv.ir.model import Model
from ortconv.ir.types import DType, TensorType
from ortconv.models import load


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: name, type in ONNX's notation ("tensor(float)"), shape with None or a symbol for what varies."""

    name: str
    type: str
    shape: list[int | str | None] | None


class Session:
    """Runs a model. The interface is that of onnxruntime's InferenceSession.

    `model` is a path (.onnx or .ort) or a loaded Model, `backends` are names, or backends themselves, in order of preference: a
    node runs on the first one that has no objection to it. UnsupportedError names the node that none takes. A
    `custom_op_library` holds operators of the user's own for onnxruntime.
    """

    def __init__(
        self,
        model: str | Path | Model,
        backends: Sequence[str | Backend] = ("numpy",),
        *,
        custom_op_library: Path | None = None,
    ) -> None:
        self._file = None if isinstance(model, Model) else Path(model)
        self.model = model if isinstance(model, Model) else load(Path(model))
        self._graph = self.model.graph
        self.backends = with_fallbacks([get_backend(b) if isinstance(b, str) else b for b in backends])
        if not self.backends:
            raise UsageError("a session needs at least one backend")
        regions = split(self._graph, self.backends, self._file, custom_op_library)
        self.regions = tuple((backend.name, region) for backend, region in regions)
        self._programs: list[tuple[Program, Region]] = [(b.compile(r), r) for b, r in regions]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return [_node_arg(v) for v in self._graph.inputs if v.const is None]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default."""
        return [_node_arg(v) for v in self._graph.inputs if v.const is not None]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(v) for v in self._graph.outputs]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names (None: all). UsageError if an input is missing, unknown, or of the wrong type or shape."""
        wanted = self._graph.outputs if output_names is None else [self._output(name) for name in output_names]
        values = self._feed(input_feed)
        fed = list(values.values())
        with np.errstate(all="ignore"):
            for program, region in self._programs:
                results = program.run([values[v] for v in region.inputs])
                values.update(zip(region.outputs, results, strict=True))
        return [_result(values[v] if v in values else _default(v), fed) for v in wanted]

    def _output(self, name: str) -> Value:
        for value in self._graph.outputs:
            if value.name == name:
                return value
        raise UsageError(
            f"there is no output '{name}'", hint=f"outputs: {', '.join(v.name for v in self._graph.outputs)}"
        )

    def _feed(self, feeds: Mapping[str, Any]) -> dict[Value, Any]:
        inputs = {v.name: v for v in self._graph.inputs}
        unknown = [name for name in feeds if name not in inputs]
        if unknown:
            raise UsageError(f"there is no input '{unknown[0]}'", hint=f"inputs: {', '.join(inputs)}")
        values: dict[Value, Any] = {}
        for name, value in inputs.items():
            if name in feeds:
                values[value] = check_feed(value, feeds[name])
            elif value.const is None:
                raise UsageError(f"input '{name}' is missing", hint=f"feed {value.type}")
            else:
                values[value] = _default(value)
        return values


def check_feed(value: Value, fed: Any) -> Any:
    """What is fed for an input, as an array where the input is a tensor. UsageError if type or shape do not fit."""
    if not isinstance(value.type, TensorType):
        return fed
    array = np.asarray(fed)
    try:
        dtype = DType.of(array.dtype)
    except KeyError:
        raise UsageError(f"input '{value.name}': numpy type {array.dtype} does not exist in ONNX") from None
    if dtype is not value.type.dtype:
        raise UsageError(f"input '{value.name}' wants {value.type}, got {TensorType(dtype, array.shape)}")
    shape = value.type.shape
    if shape is not None and (
        len(shape) != array.ndim or any(isinstance(d, int) and d != n for d, n in zip(shape, array.shape, strict=True))
    ):
        raise UsageError(f"input '{value.name}' wants {value.type}, got {TensorType(dtype, array.shape)}")
    return array.astype(object) if dtype is DType.STRING and array.dtype != object else array


def _default(value: Value) -> Any:
    const = value.const
    assert const is not None
    return const.dense().numpy() if hasattr(const, "dense") else const.numpy()


def _result(value: Any, fed: list[Any]) -> Any:
    """An output as an array of its own: never a view of a weight, of an input, or of another output's memory."""
    if value is None or isinstance(value, (list, dict)):
        return value
    array = np.asarray(value)
    if not array.flags.writeable or array.base is not None or any(array is f for f in fed):
        return array.copy()
    return array


def _node_arg(value: Value) -> NodeArg:
    type = value.type
    if isinstance(type, TensorType):
        name = {DType.FLOAT: "float", DType.DOUBLE: "double"}.get(type.dtype, type.dtype.name.lower())
        shape = (
            None
            if type.shape is None
            else [None if isinstance(d, str) and d.startswith("?") else d for d in type.shape]
        )
        return NodeArg(value.name, f"tensor({name})", shape)
    return NodeArg(value.name, str(type), None)
