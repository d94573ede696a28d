"""Checks one conformance record on one device, in each mode of execution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.burst import Burst
from ortconv.nnapi.codes import MISSED_DEADLINE, Operand, Operation
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.conformance.specs import GraphSpec, OperandSpec, Record, Spec, tolerance
from ortconv.nnapi.device import Device
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.execution import Execution
from ortconv.nnapi.manager import get_supported_operations_for_devices
from ortconv.nnapi.memory import Memory
from ortconv.nnapi.model import Model
from ortconv.nnapi.operand import ChannelQuant, OperandType

ALIGNMENT = 4
"""In bytes. Constants in a memory begin at multiples of this."""


class Mode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"
    BURST = "burst"
    FENCED = "fenced"
    DYNAMIC = "dynamic"
    """Like sync, with a model that leaves the dimensions of its outputs unknown."""


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The device does not support an operation of the model, or the mode does not suit the record."""


class RecordVerdict(NamedTuple):
    """The result of a record in a mode, and the reason for it."""

    outcome: Outcome
    reason: str = ""


_failed = partial(RecordVerdict, Outcome.FAILED)
PASSED = RecordVerdict(Outcome.PASSED)
UNSUITED = RecordVerdict(Outcome.SKIPPED, "the record says nothing of dynamic outputs")


def check(device: Device, spec: Spec, record: Record, modes: Iterable[Mode]) -> Iterator[tuple[Mode, RecordVerdict]]:
    """The verdicts on a record, mode by mode. The model is compiled once for all modes except DYNAMIC, which has its own."""
    modes = tuple(modes)
    plain = tuple(mode for mode in modes if mode is not Mode.DYNAMIC)
    if plain:
        yield from _checked(device, spec, record, record["model"], plain)
    if Mode.DYNAMIC in modes and _has_dynamic_form(record):
        yield from _checked(device, spec, record, _without_dims_of_outputs(record["model"]), (Mode.DYNAMIC,))
    elif Mode.DYNAMIC in modes:
        yield Mode.DYNAMIC, UNSUITED


def _checked(
    device: Device, spec: Spec, record: Record, graph: GraphSpec, modes: Sequence[Mode]
) -> Iterator[tuple[Mode, RecordVerdict]]:
    try:
        model = _model(spec, graph, record)
        if not all(get_supported_operations_for_devices(model, [device])):
            verdict = RecordVerdict(Outcome.SKIPPED, f"{device.name} does not support all of it")
            yield from ((mode, verdict) for mode in modes)
            return
        compilation = Compilation(model, [device])
        compilation.finish()
    except Exception as error:
        yield from ((mode, _of_error(record, error)) for mode in modes)
        return
    with model, compilation:
        for mode in modes:
            try:
                yield mode, _executed(compilation, spec, record, mode)
            except Exception as error:
                yield mode, _of_error(record, error)


def _of_error(record: Record, error: Exception) -> RecordVerdict:
    """The verdict on a record that ended with an error. Any exception other than NnapiError is a fault of the runtime."""
    if not isinstance(error, NnapiError):
        return _failed(f"{type(error).__name__}: {error}")
    if record.get("timeout_test"):
        return PASSED if error.code in MISSED_DEADLINE else _failed(f"{error.code.name} is not a missed deadline")
    return PASSED if record["expect_failure"] else _failed(str(error))


def _executed(compilation: Compilation, spec: Spec, record: Record, mode: Mode) -> RecordVerdict:
    graph = record["model"]
    for example in record["examples"]:
        given = zip(example["inputs"], graph["inputs"], strict=True)
        inputs = [None if index is None else spec.shaped(index, graph["operands"][at]["dims"]) for index, at in given]
        results, dims = _execute(compilation, graph, inputs, mode)
        if record["expect_failure"] or record.get("timeout_test"):
            return _failed("it must be refused, and was executed")
        outputs = zip(graph["outputs"], results, dims, example["outputs"], strict=True)
        for k, (at, result, found, index) in enumerate(outputs):
            want = None if index is None else spec.array(index)
            fault = _fault(record, graph["operands"][at], result, found, want, inputs)
            if fault:
                return _failed(f"output {k} {fault}")
    return PASSED


def _execute(
    compilation: Compilation, graph: GraphSpec, inputs: Sequence[Array | None], mode: Mode
) -> tuple[list[Array], list[tuple[int, ...]]]:
    """The outputs, flat, and their dimensions."""
    operands = [graph["operands"][at] for at in graph["outputs"]]
    results = [np.zeros(max(1, int(np.prod(one["dims"]))), _kind(one).type.dtype) for one in operands]
    with Execution(compilation) as execution:
        for k, data in enumerate(inputs):
            execution.set_input(k, None if data is None else np.ascontiguousarray(data))
        for k, result in enumerate(results):
            execution.set_output(k, result)
        _compute(execution, compilation, mode)
        return results, [execution.get_output_operand_dimensions(k) for k in range(len(results))]


def _compute(execution: Execution, compilation: Compilation, mode: Mode) -> None:
    if mode is Mode.ASYNC:
        with execution.start_compute() as event:
            event.wait()
    elif mode is Mode.FENCED:
        with execution.start_compute_with_dependencies([]) as event:
            event.wait()
    elif mode is Mode.BURST:
        with Burst(compilation) as burst:
            burst.compute(execution)
    else:
        execution.compute()


def _fault(
    record: Record,
    operand: OperandSpec,
    result: Array,
    dims: tuple[int, ...],
    want: Array | None,
    inputs: Sequence[Array | None],
) -> str:
    """A description of the fault of an output; empty if it is correct. An output without expected elements is always correct."""
    limit = record.get("multinomial_tolerance")
    if limit:
        return _frequency_fault(result, inputs[0], limit)
    if operand.get("ignored"):
        return ""
    if list(dims) != operand["dims"]:
        return f"has dimensions {list(dims)}, not {operand['dims']}"
    if want is None:
        return ""
    allowed = tolerance(record, operand["type"])
    got, expected = result.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    off = ~(np.abs(got - expected) <= allowed["absolute"] + allowed["relative"] * np.abs(expected))
    count = int(np.count_nonzero(off))
    if not count:
        return ""
    first = int(np.argmax(off))
    return f"is off in {count} of {got.size} elements: {got[first]:g}, not {expected[first]:g}, at {first}"


def _frequency_fault(classes: Array, logits: Array | None, limit: float) -> str:
    """A description of the fault of random classes, whose frequencies must be near the softmax of the logits; empty if they are."""
    assert logits is not None
    weights = np.exp(logits.astype(np.float64).ravel() - float(logits.max()))
    frequencies = np.bincount(classes.ravel().astype(np.int64), minlength=weights.size) / classes.size
    most = float(np.abs(frequencies - weights / weights.sum()).max())
    return f"has a class whose frequency is off by {most:g}, more than {limit:g}" if most > limit else ""


def _model(spec: Spec, graph: GraphSpec, record: Record) -> Model:
    """The finished model of a graph."""
    model = Model()
    in_memory: list[tuple[int, bytes]] = []
    for operand in graph["operands"]:
        index = model.add_operand(_kind(operand))
        data, lifetime = operand.get("data"), operand["lifetime"]
        if lifetime == "NO_VALUE":
            model.set_operand_value(index, None)
        elif lifetime == "CONSTANT_COPY" and data is not None:
            model.set_operand_value(index, spec.shaped(data, operand["dims"]))
        elif lifetime == "CONSTANT_REFERENCE" and data is not None:
            in_memory.append((index, spec.array(data).tobytes()))
        elif lifetime == "SUBGRAPH":
            subgraph = record["subgraphs"][operand["subgraph"]]
            model.set_operand_value_from_model(index, _model(spec, subgraph, record))
    if in_memory:
        _refer(model, in_memory)
    for operation in graph["operations"]:
        model.add_operation(Operation[operation["type"]], operation["inputs"], operation["outputs"])
    model.identify_inputs_and_outputs(graph["inputs"], graph["outputs"])
    model.relax_computation_float32_to_float16(record["relaxed"])
    model.finish()
    return model


def _refer(model: Model, constants: Sequence[tuple[int, bytes]]) -> None:
    """Set constants to regions of one memory."""
    padded = [data + bytes(-len(data) % ALIGNMENT) for _, data in constants]
    memory, offset = Memory.from_array(np.frombuffer(b"".join(padded), np.uint8)), 0
    for (index, data), region in zip(constants, padded, strict=True):
        model.set_operand_value_from_memory(index, memory, offset, len(data))
        offset += len(region)


def _kind(operand: OperandSpec) -> OperandType:
    found = operand.get("channelQuant")
    channels = None if not found else ChannelQuant(found["channelDim"], tuple(found["scales"]))
    code = Operand["MODEL" if operand["type"] == "SUBGRAPH" else operand["type"]]
    return OperandType(code, operand["dims"], operand["scale"], operand["zeroPoint"], channels)


def _has_dynamic_form(record: Record) -> bool:
    """True if an output has dimensions that can be left unknown: scalars have none."""
    scalar = any(not record["model"]["operands"][at]["dims"] for at in record["model"]["outputs"])
    return not (record["expect_failure"] or record.get("timeout_test") or scalar)


def _without_dims_of_outputs(graph: GraphSpec) -> GraphSpec:
    operands = list(graph["operands"])
    for at in graph["outputs"]:
        operands[at] = {**operands[at], "dims": [0] * len(operands[at]["dims"])}
    return {**graph, "operands": operands}
