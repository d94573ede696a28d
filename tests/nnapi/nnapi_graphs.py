"""Random NNAPI models, and random devices that fail in every way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from nnapi_models import Builder, condition, tensor

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.nnapi.simulated import SimulatedDevice

UNARY = (
    Operation.RELU, Operation.RELU1, Operation.RELU6, Operation.TANH, Operation.FLOOR, Operation.ABS, Operation.NEG,
    Operation.LOGISTIC, Operation.SIN,
)  # fmt: skip
BINARY = (Operation.ADD, Operation.SUB, Operation.MUL, Operation.MAXIMUM, Operation.MINIMUM)
QUANTIZED = OperandType(Operand.TENSOR_QUANT8_ASYMM, (), 0.05, 128)
RESULTS = ("OP_FAILED", "RESOURCE_EXHAUSTED_TRANSIENT", "DEAD_OBJECT", "UNAVAILABLE_DEVICE", "OUT_OF_MEMORY")

Value = tuple[int, tuple[int, ...]]
"""An operand and its dimensions."""


class Graph(Builder):
    """A model under construction, of float32 tensors."""

    def __init__(self, rng: np.random.Generator, depth: int = 0) -> None:
        super().__init__()
        self.rng = rng
        self.depth = depth
        self.inputs: list[Value] = []
        self.made: list[Value] = []

    def input(self, dims: tuple[int, ...]) -> None:
        self.inputs.append((self.operand(tensor(*dims)), dims))

    def any_value(self) -> Value:
        values = [*self.inputs, *self.made]
        return values[int(self.rng.integers(len(values)))]

    def make(self, code: Operation, inputs: Sequence[int], dims: tuple[int, ...]) -> None:
        """An operation whose output may leave its dimensions open."""
        said = dims if self.depth or self.rng.random() < 0.8 else (0,) * len(dims)
        self.made.append((self.operation(code, inputs, tensor(*said)), dims))

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.unary, self.unary, self.binary, self.binary, self.move, self.product]
        steps += [self.round_trip] + ([self.choice, self.loop] if self.depth < 2 else [])
        steps[int(self.rng.integers(len(steps)))]()

    def unary(self) -> None:
        x, dims = self.any_value()
        self.make(UNARY[int(self.rng.integers(len(UNARY)))], [x], dims)

    def binary(self) -> None:
        (a, dims), (b, other) = self.any_value(), self.any_value()
        code = BINARY[int(self.rng.integers(len(BINARY)))]
        b = b if other == dims else self.constant(self.rng.standard_normal(dims), tensor(*dims))
        self.make(code, [a, b] if code in BINARY[3:] else [a, b, self.int32(int(self.rng.integers(4)))], dims)

    def move(self) -> None:
        x, dims = self.any_value()
        order = [int(axis) for axis in self.rng.permutation(len(dims))]
        kind = tensor(len(dims), type=Operand.TENSOR_INT32)
        self.make(Operation.TRANSPOSE, [x, self.constant(order, kind)], tuple(dims[axis] for axis in order))

    def product(self) -> None:
        x, dims = self.any_value()
        if len(dims) < 2:
            return self.unary()
        units = int(self.rng.integers(1, 5))
        weights = self.constant(self.rng.standard_normal((units, dims[-1])), tensor(units, dims[-1]))
        bias = self.constant(self.rng.standard_normal(units), tensor(units))
        rows = int(np.prod(dims[:-1]))
        return self.make(Operation.FULLY_CONNECTED, [x, weights, bias, self.int32(0)], (rows, units))

    def round_trip(self) -> None:
        x, dims = self.any_value()
        q = self.operation(Operation.QUANTIZE, [x], QUANTIZED.with_dims(dims))
        q = self.operation(Operation.RELU, [q], QUANTIZED.with_dims(dims))
        self.make(Operation.DEQUANTIZE, [q], dims)

    def choice(self) -> None:
        """if x < y: one model of both, else another one"""
        (x, dims), (y, _) = self.any_value(), self.any_value()
        test = self.operand(condition(1))
        first = self.operation(Operation.MEAN, [x, self.axes(dims), self.int32(0)], tensor(1))
        self.model.add_operation(Operation.LESS, [first, self.constant([0.1], tensor(1))], [test])
        models, other = [], self.dims_of(y)
        for _ in range(2):
            inner = Graph(self.rng, self.depth + 1)
            inner.input(dims)
            inner.input(other)
            for _ in range(int(self.rng.integers(3))):
                inner.step()
            a, found = inner.any_value()
            zero = inner.constant(np.zeros(dims), tensor(*dims))
            base = a if found == dims else inner.inputs[0][0]
            out = inner.operation(Operation.ADD, [base, zero, inner.int32(0)], tensor(*dims))
            models.append(self.model_of(inner, [out]))
        self.make(Operation.IF, [test, *models, x, y], dims)

    def loop(self) -> None:
        """while x < limit: x += 0.7 or more, over all of x"""
        x, dims = self.any_value()
        test, body = Graph(self.rng, self.depth + 1), Graph(self.rng, self.depth + 1)
        for one in (test, body):
            one.input(dims)
        (a, _), (b, _) = test.inputs[0], body.inputs[0]
        top = test.operation(Operation.MEAN, [a, test.axes(dims), test.int32(0)], tensor(1))
        test.made.append((top, (1,)))
        less = test.operation(Operation.LESS, [top, test.constant([1.5], tensor(1))], condition(1))
        step = body.constant(np.full(dims, 0.7), tensor(*dims))
        more = body.operation(Operation.ADD, [b, step, body.int32(0)], tensor(*dims))
        lifted = body.operation(
            Operation.MAXIMUM, [more, body.constant(np.full(dims, -1.0), tensor(*dims))], tensor(*dims)
        )
        models = [self.model_of(test, [less]), self.model_of(body, [lifted])]
        self.make(Operation.WHILE, [*models, x], dims)

    def axes(self, dims: tuple[int, ...]) -> int:
        return self.constant(range(len(dims)), tensor(len(dims), type=Operand.TENSOR_INT32))

    def dims_of(self, index: int) -> tuple[int, ...]:
        return dict([*self.inputs, *self.made])[index]

    def model_of(self, inner: Graph, outputs: list[int]) -> int:
        """An operand that holds a model, in which there may be operations that nothing reads."""
        index = self.operand(OperandType(Operand.MODEL))
        finished = inner.finish([one for one, _ in inner.inputs], outputs)
        self.model.set_operand_value_from_model(index, finished)
        return index


def random_model(seed: int) -> tuple[nnapi.Model, list[Array], list[tuple[int, ...]]]:
    """A model, its inputs, and the dimensions of its outputs; later steps may read outputs."""
    rng = np.random.default_rng(seed)
    graph = Graph(rng)
    for _ in range(int(rng.integers(1, 4))):
        graph.input(tuple(int(dim) for dim in rng.integers(1, 4, int(rng.integers(1, 4)))))
    while len(graph.made) < rng.integers(1, 12):
        graph.step()
    last = len(graph.made) - 1
    chosen = sorted({last, *(int(one) for one in rng.integers(len(graph.made), size=2))})
    outputs = [graph.made[at] for at in chosen]
    model = graph.finish([one for one, _ in graph.inputs], [one for one, _ in outputs], bool(rng.random() < 0.2))
    feeds = [rng.standard_normal(dims).astype(np.float32) for _, dims in graph.inputs]
    return model, feeds, [dims for _, dims in outputs]


class Driver(nnapi.Device):
    """Somebody's driver: it computes as the CPU does, if it does not raise or answer nonsense."""

    type, level = nnapi.DeviceType.ACCELERATOR, nnapi.FeatureLevel.LEVEL_8
    version = "0.1"
    capabilities = nnapi.Capabilities.uniform(nnapi.Performance(0.4, 0.4))

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        self.name = name
        self.rng = rng
        self.operations = frozenset(one for one in Operation if rng.random() < 0.6)
        self.odds = float(rng.choice([0.0, 0.1, 0.5]))

    def fails(self) -> bool:
        return bool(self.rng.random() < self.odds)

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        if self.fails():
            raise RuntimeError("cannot say")
        answer = [one.code in self.operations for one in model.operations]
        return answer[1:] if self.fails() else answer

    def prepare(self, model: nnapi.Model, options: nnapi.PrepareOptions) -> nnapi.PreparedModel:
        if self.fails():
            raise KeyError("no model")
        return _Prepared(self, nnapi.get_device("nnapi-reference").prepare(model, nnapi.PrepareOptions()))


class _Prepared(nnapi.PreparedModel):
    def __init__(self, driver: Driver, inner: nnapi.PreparedModel) -> None:
        self.driver = driver
        self.inner = inner

    def execute(self, *given: Any) -> tuple[list[nnapi.Tensor], nnapi.Timing]:
        if self.driver.fails():
            raise ZeroDivisionError("no result")
        results, timing = self.inner.execute(*given)
        if self.driver.fails():
            return results[1:], timing
        if self.driver.fails():
            return None, timing  # type: ignore[return-value]
        return results, timing


def random_devices(seed: int) -> list[nnapi.Device]:
    rng = np.random.default_rng([seed, 1])
    found: list[nnapi.Device] = []
    for at in range(int(rng.integers(1, 4))):
        if rng.random() < 0.3:
            found.append(Driver(f"driver{at}", rng))
            continue
        faults: dict[str, Any] = {}
        if rng.random() < 0.3:
            faults["compile"] = str(rng.choice(RESULTS))
        if rng.random() < 0.5:
            faults |= {"execute": str(rng.choice(RESULTS)), "good_executions": int(rng.integers(4))}
        if rng.random() < 0.3:
            faults["dies_after"] = int(rng.integers(5))
        accepted = [one.name for one in Operation if rng.random() < 0.7 and one is not Operation.OEM_OPERATION]
        time = float(rng.choice([0.2, 0.5, 0.9]))
        profile = {
            "name": f"simulated{at}",
            "feature_level": int(rng.choice([1, 3, 4, 8, 8])),
            "accept": {"operations": accepted},
            "performance": {"default": {"exec_time": time, "power_usage": 1 - time}},
            "faults": faults,
        }
        found.append(SimulatedDevice(profile))
    return found
