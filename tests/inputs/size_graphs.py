"""Small graphs with free dimensions, and the first inputs that are found for them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx.parser
from onnx import numpy_helper

from ortconv.inputs.budget import Budget, Clock
from ortconv.inputs.size_search import choices
from ortconv.inputs.trials import Run, Trial, trials
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session


def graph(body: str, x: str = "float[N,C,H,W] x", opset: int = 17, **weights: tuple[int, ...] | np.ndarray) -> Graph:
    """A model of these inputs and constants: of the given shape, or of the given elements."""
    text = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g ({x}) => (y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, given in weights.items():
        array = given if isinstance(given, np.ndarray) else rng.standard_normal(given).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return from_proto(model).graph


def ints(*numbers: int) -> np.ndarray:
    """An int64 tensor of one dimension."""
    return np.array(numbers, np.int64)


def all_trials(given: Graph, run: Run | None = None, clock: Clock | None = None) -> Iterator[Trial]:
    """The inputs that a function, by default numpy, computes. Raises BackendError if the search ends without any."""
    clock = clock or Clock(Budget())
    run = run or partial(Session(Model(given), ["numpy"]).run, None)
    return (trial for trial, _ in trials(given, run, (), clock, [], choices(given, clock)))


def first_trial(given: Graph, clock: Clock) -> Trial:
    return next(all_trials(given, clock=clock))
