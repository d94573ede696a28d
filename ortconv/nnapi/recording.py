"""Recorded runs of a program: calls to numpy over memory that stays, repeated for inputs of the same types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Lock

import numpy as np

from ortconv.executor.replay.recorder import Recorder, copy_same
from ortconv.executor.replay.work import Call, ChangedError
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.operand import ChangingTensor, OperandType, Tensor
from ortconv.nnapi.running import Admit, OperandValue, Room, is_recordable, rounded_to_half, run_operation
from ortconv.nnapi.validation import LARGEST

Watch = Callable[[ModelOperation, Callable[[], None]], None]
"""Called with each operation, and with a function that does its work."""


class PlainRun:
    """The steps of a ProgramRecording, for a run that is not recorded."""

    def __init__(self, half: bool) -> None:
        self._half = half

    def begin(self, indices: Sequence[int], inputs: Sequence[OperandValue]) -> Sequence[OperandValue]:
        return [None if one is None else rounded_to_half(one) for one in inputs] if self._half else inputs

    def operation(
        self, operation: ModelOperation, inputs: Sequence[OperandValue], declared: Sequence[OperandType], admit: Admit
    ) -> list[Tensor]:
        results = run_operation(operation, inputs, declared, admit)
        return list(map(rounded_to_half, results)) if self._half else results

    def forget(self, indices: Iterable[int]) -> None:
        """Do nothing: a value's memory is free when its last reference is gone."""

    def end(self, results: list[Tensor]) -> list[Tensor]:
        return results


class ProgramRecording:
    """The work of a program for inputs of certain types. Callers hold `lock`, since only one run at a time may use its memory.

    It is made in a plain run: `begin`; then `operation` for each operation, and `forget` for operands that have no reader
    left; then `end`. With `half`, all float32 numbers are rounded to float16.
    """

    def __init__(self, half: bool) -> None:
        self.lock = Lock()
        self.is_complete = False
        self._half = half
        self._recorder = Recorder(most=LARGEST)
        self._entries: list[OperandValue] = []
        self._steps: list[tuple[ModelOperation, list[Call]]] = []
        self._joined: list[Call] = []
        self._results: list[Tensor] = []

    def begin(self, indices: Sequence[int], inputs: Sequence[OperandValue]) -> list[OperandValue]:
        """Copy the inputs into memory that later runs reuse, and return these copies. `indices` are those of the input operands."""
        recorder = self._recorder
        for index, value in zip(indices, inputs):
            entry = None if value is None else ChangingTensor(value, recorder.empty(value.dims, value.array.dtype))
            recorder.hold(index, [] if entry is None else [entry.array])
            self._entries.append(entry)
        recorder.end_step()
        self._enter(inputs)
        return self._entries

    def operation(
        self, operation: ModelOperation, inputs: Sequence[OperandValue], declared: Sequence[OperandType], admit: Admit
    ) -> list[Tensor]:
        """Like `run_operation`, with results in memory that later runs reuse.

        An operation that cannot be recorded runs as a whole in each run. One that reads only constants runs only here.
        """
        recorder = self._recorder
        results = self._computed(operation, inputs, declared, admit)
        if self._half:
            results = [rounded_to_half(one, recorder) for one in results]
        results = [ChangingTensor(one, one.array) if recorder.holds(one.array) else one for one in results]
        self._steps.append((operation, recorder.calls()))
        for index, one in zip(operation.outputs, results):
            recorder.hold(index, [one.array])
        recorder.end_step()
        return results

    def _computed(
        self, operation: ModelOperation, inputs: Sequence[OperandValue], declared: Sequence[OperandType], admit: Admit
    ) -> list[Tensor]:
        changing = [index for index, one in enumerate(inputs) if isinstance(one, ChangingTensor)]
        if not changing:
            return run_operation(operation, inputs, declared, admit)
        if is_recordable(operation, changing):
            return run_operation(operation, inputs, declared, admit, self._recorder)
        made = run_operation(operation, inputs, declared, admit)
        results = [Tensor(one, self._recorder.empty(one.dims, one.array.dtype)) for one in made]
        self._recorder.do(_run_again, operation, inputs, declared, results)
        return results

    def forget(self, indices: Iterable[int]) -> None:
        """Free the memory of these operands, so that results of later operations can use it."""
        for index in indices:
            self._recorder.forget(index)

    def end(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Complete the recording. Returns copies of the results, as later runs do."""
        self._results = list(results)
        self._joined = [call for _, calls in self._steps for call in calls]
        self.is_complete = True
        return self._copies()

    def fits(self, room: Room | None) -> bool:
        """Whether the results fit into buffers of these sizes in bytes."""
        return room is None or all(space is None or one.nbytes <= space for one, space in zip(self._results, room))

    def run(self, inputs: Sequence[OperandValue], watch: Watch | None) -> list[Tensor]:
        """The results for other inputs. Raises ChangedError if an operation fails, or if a result has another shape."""
        self._enter(inputs)
        with np.errstate(all="ignore"):
            if watch is None:
                _play(self._joined)
            else:
                for operation, calls in self._steps:
                    watch(operation, partial(_play, calls))
        return self._copies()

    def _enter(self, inputs: Sequence[OperandValue]) -> None:
        for entry, value in zip(self._entries, inputs):
            if entry is not None and value is not None:
                copy_same((rounded_to_half(value) if self._half else value).array, entry.array)

    def _copies(self) -> list[Tensor]:
        return [Tensor(one, one.array.copy()) for one in self._results]


def _play(calls: Iterable[Call]) -> None:
    try:
        for function, arguments in calls:
            function(*arguments)
    except (NnapiError, ArithmeticError, IndexError, ValueError) as error:
        raise ChangedError from error


def _run_again(
    operation: ModelOperation,
    inputs: Sequence[OperandValue],
    declared: Sequence[OperandType],
    results: Sequence[Tensor],
) -> None:
    """Run an operation, and write to the arrays of `results`."""
    for one, result in zip(run_operation(operation, inputs, declared), results):
        copy_same(one.array, result.array)
