"""Recorded steps: the calls that a plan makes for inputs of certain shapes, repeated in the same memory.

A `Recorder` is a Work that keeps the calls, on arrays that stay in place. Functions that are not recordable are called
again in each run, and their results are copied to memory that stays in place.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from math import prod
from operator import attrgetter, itemgetter
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.replay.work import Call, ChangedError, Function, Recordable, Work, as_tuple
from ortconv.ir.graph import Node
from ortconv.ir.operators import Trait, traits
from ortconv.ir.tensor import Array


class Step(NamedTuple):
    """A step of a plan. Messages name its node."""

    function: Function
    operands: Callable[[list[Any]], Sequence[Any]]
    """Gets the operands of the function from the slots."""
    outs: tuple[int, ...]
    """The slots that it fills."""
    dead: tuple[int, ...]
    """The slots that are not read after it."""
    node: Node


class _Replay:
    """The function of a recorded step, without operands: it repeats the calls and returns the result, which is in its place."""

    def __init__(self, calls: Sequence[Call], result: Any = None) -> None:
        self.calls = calls
        self.result = result

    def __call__(self) -> Any:
        for function, args in self.calls:
            function(*args)
        return self.result


ABSENT = 0
"""The slot that always holds None; absent inputs read it."""

_LARGEST_COPIED = 1 << 22
"""Limit in bytes. Larger results that are not recorded are created anew in each run: copying them would cost more than it saves."""

_LARGEST_INPUT = 1 << 24
"""Size in bytes up to which an input is copied to the memory that recorded steps read."""

_ALIGNMENT = 64
_address = attrgetter("address")


class _Block:
    """A piece of memory."""

    def __init__(self, size: int) -> None:
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        self.memory, self.size = memory[-memory.ctypes.data % _ALIGNMENT :], size
        self.address: int = self.memory.ctypes.data
        self.readers = 0


class Recorder(Work):
    """Keeps the calls of a plan's steps. Memory is reused as soon as it has no more readers.

    `most` is the size in bytes of the largest result that `call` copies.
    """

    def __init__(self, most: int = _LARGEST_COPIED) -> None:
        self._most = most
        self._used: list[_Block] = []  # by address
        self._free: list[_Block] = []
        self._taken: list[_Block] = []  # by the step that is being recorded
        self._calls: list[Call] = []
        self._held: dict[int, list[_Block]] = {}

    def empty(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        dtype = np.dtype(dtype)
        size = max(-(-prod(shape) * dtype.itemsize // _ALIGNMENT), 1) * _ALIGNMENT
        block = min((b for b in self._free if b.size >= size), key=lambda b: b.size, default=None)
        if block is None:
            block = _Block(size)
        else:
            self._free.remove(block)
        insort(self._used, block, key=_address)
        self._taken.append(block)
        return np.ndarray(tuple(shape), dtype, block.memory)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        outside, self._taken = self._taken, []
        try:
            yield
        finally:
            self.end_step()
            self._taken = outside

    def like(self, x: Array, dtype: Any = None) -> Array:
        axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
        out = self.empty([x.shape[axis] for axis in axes], x.dtype if dtype is None else dtype)
        return out.transpose([axes.index(axis) for axis in range(x.ndim)])

    def copy(self, x: Array) -> Array:
        out = self.like(x)
        np.copyto(out, x)
        return out

    def do(self, function: Callable[..., Any], *args: Any) -> None:
        if isinstance(function, Recordable):
            with self.scratch():
                function.record(self, *args)
        else:
            function(*args)
            self._calls.append((function, args))

    def arranged(self, arrange: Callable[[Array], Array], x: Array) -> Array:
        y = arrange(x)
        if np.may_share_memory(x, y):
            return y
        out = self.empty(y.shape, y.dtype)
        self.do(_copied, arrange, (out,), x)
        return out

    def call(self, function: Function, *operands: Any) -> Any:
        result = function.record(self, *operands) if isinstance(function, Recordable) else None
        if result is None:
            y = function(*operands)
            if not _can_be_copied([y], self._most):
                return None
            result = self.like(y)
            self.do(_copied, function, (result,), *operands)
        return result

    def holds(self, x: Array) -> bool:
        return self.block(x) is not None

    def block(self, x: Any) -> _Block | None:
        """The memory of the recorder that contains an array; None if there is none."""
        if not isinstance(x, np.ndarray):
            return None
        address = x.__array_interface__["data"][0]
        at = bisect_right(self._used, address, key=_address) - 1
        found = self._used[at] if at >= 0 else None
        return found if found is not None and address < found.address + found.size else None

    def hold(self, name: int, arrays: Iterable[Any], like: Iterable[int] = ()) -> None:
        """Keep the memory of arrays, and of values under other names, until the name is forgotten."""
        blocks = [self.block(x) for x in arrays]
        blocks += [block for other in like for block in self._held.get(other, ())]
        held = [block for block in dict.fromkeys(blocks) if block is not None]
        for block in held:
            block.readers += 1
        self._held[name] = held

    def forget(self, name: int) -> None:
        for block in self._held.pop(name, ()):
            block.readers -= 1
            self._release(block)

    def held(self, name: int) -> bool:
        """True if the value with this name may be in memory of the recorder."""
        return bool(self._held.get(name))

    def calls(self) -> list[Call]:
        """The calls since the last time."""
        calls, self._calls = self._calls, []
        return calls

    def end_step(self) -> None:
        """Free the memory that the step has allocated, except for blocks that are still read."""
        for block in self._taken:
            self._release(block)
        self._taken = []

    def _release(self, block: _Block) -> None:
        if not block.readers and block in self._used:
            self._used.remove(block)
            self._free.append(block)


def copy_same(x: Array, out: Array) -> None:
    """Copy an array to memory of its shape and type. Raises ChangedError for another shape or type."""
    if x.shape != out.shape or x.dtype != out.dtype:
        raise ChangedError
    np.copyto(out, x)


class Recording:
    """The steps of a plan for inputs of certain shapes. Only one run at a time is allowed; the caller uses `lock` for that."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """For inputs and outputs in these slots."""
        self.lock = Lock()
        self.steps: list[Step] = []
        self.joined: list[Step] = []
        """The same with fewer steps, without information about their results."""
        self._inputs, self._outputs = inputs, outputs
        self._initial: list[Any] = []
        self._entries: dict[int, Array] = {}
        self._recorder = Recorder()
        self._copied: set[int] = set()

    def begin(self, inputs: Sequence[Any]) -> list[Any]:
        """The slots for a run. Raises ChangedError if an input does not fit its recorded place."""
        slots = self._initial.copy()
        for number, value in zip(self._inputs, inputs, strict=True):
            memory = self._entries.get(number)
            if memory is None:
                slots[number] = value
            else:
                copy_same(value, memory)
        return slots

    def results(self, slots: list[Any]) -> list[Any]:
        """The outputs; none of them is in memory of the recording."""
        return [np.array(slots[n]) if n in self._copied else slots[n] for n in self._outputs]

    def record(self, steps: Sequence[Step], initial: list[Any], inputs: Sequence[Any]) -> list[Any]:
        """Run steps and keep the calls for later runs. Return the outputs.

        `initial` holds the values that are the same in all runs.
        """
        recorder = self._recorder
        self._initial = initial.copy()
        constants = {slot for slot, value in enumerate(initial) if value is not None or slot == ABSENT}
        lasting, places = constants.copy(), list(range(len(initial)))
        wanted = _wanted(steps, places)
        lasting |= self._hold_inputs({n: v for n, v in zip(self._inputs, inputs, strict=True) if n in wanted})
        slots = self.begin(inputs)
        recorder.end_step()
        for step in steps:
            function, operands, outs, dead, node = step
            values, reads = operands(slots), operands(places)
            recorded = None
            if lasting.issuperset(reads):
                recorded = _recorded(recorder, function, values, node, constants.issuperset(reads[1:]))
            if recorded is not None:
                results, stay = self._append_calls(step, *recorded), True
            else:
                results, stay = self._append_step(step, values, may_stay=not wanted.isdisjoint(outs))
            for slot, value in zip(outs, results, strict=False):
                slots[slot] = value
                # Results that do not stay may in another run lie in any of their operands.
                recorder.hold(slot, [value] if stay else [value, *values], () if stay else reads)
                if stay:
                    self._initial[slot] = value
                    lasting.add(slot)
            recorder.end_step()
            for slot in dead:
                recorder.forget(slot)
                slots[slot] = None
        self.joined = _joined(self.steps)
        self._copied = {n for n in self._outputs if recorder.block(slots[n]) is not None or recorder.held(n)}
        return self.results(slots)

    def _append_calls(self, step: Step, result: Any, calls: list[Call]) -> tuple[Any, ...]:
        """Make later runs perform these calls instead of a step. Return its results."""
        if calls:
            self.steps.append(step._replace(function=_Replay(calls, result), operands=_no_operands))
        return as_tuple(result)

    def _append_step(self, step: Step, values: Sequence[Any], may_stay: bool) -> tuple[tuple[Any, ...], bool]:
        """Make later runs call a step again. Return its results, and True if they are copied to memory that stays in place."""
        results = as_tuple(step.function(*values))[: len(step.outs)]
        stay = may_stay and _can_be_copied(results)
        if stay:
            results = tuple([self._recorder.copy(r) for r in results])
            step = step._replace(function=partial(_copied, step.function, results))
        self.steps.append(step)
        return results, stay

    def _hold_inputs(self, inputs: dict[int, Any]) -> set[int]:
        """Give inputs memory that stays in place, unless they are large. Return the slots of those that have it."""
        for number, value in inputs.items():
            if _can_be_copied([value], _LARGEST_INPUT):
                self._initial[number] = self._entries[number] = memory = self._recorder.like(value)
                self._recorder.hold(number, [memory])
        return set(self._entries)


_no_operands = itemgetter(slice(0, 0))


def _joined(steps: Sequence[Step]) -> list[Step]:
    """Join consecutive recorded steps, whose results have their slots already, into one."""
    joined: list[Step] = []
    for _, group in groupby(steps, lambda step: isinstance(step.function, _Replay)):
        several = list(group)
        recorded = [step.function for step in several if isinstance(step.function, _Replay)]
        if recorded:
            replay = _Replay([call for one in recorded for call in one.calls])
            dead = tuple([slot for step in several for slot in step.dead])
            several = [Step(replay, _no_operands, (), dead, several[-1].node)]
        joined += several
    return joined


def _wanted(steps: Sequence[Step], places: list[int]) -> set[int]:
    """The slots read by steps that can be recorded, directly or as views."""
    wanted = set[int]()
    for function, operands, outs, _, node in reversed(steps):
        if not wanted.isdisjoint(outs) if traits(node).has(Trait.VIEW) else isinstance(function, Recordable):
            wanted.update(operands(places))
    return wanted


def _recorded(
    recorder: Recorder, function: Function, values: Sequence[Any], node: Node, fixed: bool
) -> tuple[Any, list[Call]] | None:
    """The result of a step, and the calls that compute it again; None if it cannot be recorded.

    `fixed`: all operands but the first are the same in all runs.
    """
    facts = traits(node)
    makes_views = facts.has(Trait.VIEW)
    # The kernel of DequantizeLinear looks at the zero point.
    if (makes_views or facts.shaped_by or node.op == "DequantizeLinear") and not fixed:
        return None
    if isinstance(function, Recordable):
        result, calls = function.record(recorder, *values), recorder.calls()
        if result is not None:
            return result, calls
    if not makes_views:
        return None
    results = as_tuple(function(*values))[: len(node.outputs)]
    block = recorder.block(values[0])
    return (results, []) if all(recorder.block(r) is block is not None for r in results) else None


def _can_be_copied(results: Sequence[Any], most: int = _LARGEST_COPIED) -> bool:
    arrays = [r for r in results if isinstance(r, np.ndarray) and not r.dtype.hasobject]
    return len(arrays) == len(results) and sum(r.nbytes for r in arrays) <= most


def _copied(function: Function, targets: tuple[Array, ...], *operands: Any) -> tuple[Array, ...]:
    for target, r in zip(targets, as_tuple(function(*operands)), strict=False):
        copy_same(r, target)
    return targets
