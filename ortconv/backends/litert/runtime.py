"""Google's LiteRT in the package ai-edge-litert. Only this module imports it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.errors import BackendError
from ortconv.ir.tensor import Array
from ortconv.tflite.model import TfliteModel

KERNELS = {"": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF", "default": "BUILTIN"}
"""Sets of kernels by setting: LiteRT's optimized kernels, its reference kernels, and the default of an app, which adds XNNPACK."""


def interpreter() -> Any:
    """The module of LiteRT's interpreter, with its messages on stderr switched off."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from ai_edge_litert import interpreter as module

    return module


def version() -> str:
    """The release of ai-edge-litert, such as 2.3.0."""
    from importlib.metadata import version as release

    return release("ai-edge-litert")


class LiteRtModel:
    """A loaded .tflite model. Raises BackendError with LiteRT's message if LiteRT cannot load or run it."""

    def __init__(self, model: TfliteModel, content: bytes, settings: str = "") -> None:
        module = interpreter()
        self._ends = [n for _, n in model.inputs], [n for _, n in model.outputs]
        self._is_dynamic = any(0 in model.tensors[n].shape for n in self._ends[0])
        self._shapes: list[tuple[int, ...]] = []
        try:
            kernels = getattr(module.OpResolverType, KERNELS[settings])
            self._interpreter = module.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
            if not self._is_dynamic:
                self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise _said("does not load the model", error) from error

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for inputs given in the order of the signature."""
        try:
            self._resize([array.shape for array in inputs])
            for number, array in zip(self._ends[0], inputs, strict=True):
                self._interpreter.set_tensor(number, np.ascontiguousarray(array))
            self._interpreter.invoke()
            return [self._interpreter.get_tensor(number) for number in self._ends[1]]
        except (RuntimeError, ValueError) as error:
            raise _said("does not run the model", error) from error

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if not self._is_dynamic or shapes == self._shapes:
            return
        for number, shape in zip(self._ends[0], shapes, strict=True):
            self._interpreter.resize_tensor_input(number, shape)
        self._interpreter.allocate_tensors()
        self._shapes = shapes


def _said(what: str, error: Exception) -> BackendError:
    return BackendError(f"LiteRT {what}: {' '.join(str(error).split())}", backend="litert")
