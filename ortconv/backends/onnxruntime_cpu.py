"""The backend "onnxruntime": the real runtime's CPU provider, its graph optimizations off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ortconv.errors import BackendError
from ortconv.executor.backend import Program, Region
from ortconv.ir.graph import Node


class OnnxRuntime:
    name = "onnxruntime"

    def available(self) -> str | None:
        try:
            import onnxruntime  # noqa: F401
        except ImportError as error:
            return f"onnxruntime cannot be imported: {error}"
        return None

    def objections(self, node: Node) -> Iterator[str]:
        """None: what onnxruntime cannot run it says itself, when a session is made."""
        return iter(())

    def compile(self, region: Region) -> Program:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            if region.custom_op_library is not None:
                options.register_custom_ops_library(str(region.custom_op_library))
            session = onnxruntime.InferenceSession(
                str(region.file) if region.file is not None else _serialized(region),
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:
            raise BackendError(_first_line(error), backend=self.name) from error
        return _Program(session, [v.name for v in region.inputs], [v.name for v in region.outputs])


class _Program:
    def __init__(self, session: Any, inputs: list[str], outputs: list[str]) -> None:
        self._session = session
        self._inputs = inputs
        self._outputs = outputs

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        known = {i.name for i in (*self._session.get_inputs(), *self._session.get_overridable_initializers())}
        feeds = {name: value for name, value in zip(self._inputs, inputs, strict=True) if name in known}
        try:
            return list(self._session.run(self._outputs, feeds))
        except Exception as error:
            raise BackendError(_first_line(error), backend="onnxruntime") from error


def _serialized(region: Region) -> bytes:
    from ortconv.onnxio.proto import region_proto

    return region_proto(region.graph, region.nodes, region.inputs, region.outputs).SerializeToString()  # type: ignore[no-any-return]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
