"""Control flow, sequences (lists) and optionals (a value or None). A body is a function of its inputs that returns a tuple."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.steps import EndlessLoopError, counted
from ortconv.executor.kernels.movement import chunks, pieces
from ortconv.executor.kernels.registry import kernel, table
from ortconv.ir.tensor import Array

Body = Callable[..., tuple[Any, ...]]

MOST_TRIPS = 1 << 24
"""Maximum number of iterations of a loop whose body cannot end it. One iteration takes some microseconds."""


@kernel("If")
def if_(condition: Array, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    return tuple(then_branch() if condition.item() else else_branch())


@kernel("Loop")
def loop(
    max_trips: Array | None = None, condition: Array | None = None, *initial: Any, body: Body, n_outputs: int
) -> tuple[Any, ...]:
    trips = None if max_trips is None else int(max_trips.item())
    going = True if condition is None else bool(condition.item())
    if going and (trips is None or trips > MOST_TRIPS) and getattr(body, "keeps_condition", False):
        raise EndlessLoopError(
            f"the loop runs {'without end' if trips is None else f'{trips} times'}: its body never ends it, "
            f"the limit is {MOST_TRIPS} times",
            hint="give the loop a trip count, or let its body compute the condition",
        )
    count = len(initial)
    state: tuple[Any, ...] = initial
    collected: list[tuple[Any, ...]] = []
    i = 0
    ranks = [_declared_rank(body, slot) for slot in range(2)]
    while going and (trips is None or i < trips):
        proceed, *results = body(np.array(i, np.int64, ndmin=ranks[0]), np.array(going, ndmin=ranks[1]), *state)
        # Without a condition input the body's own condition still decides.
        going = bool(proceed.item())
        state = tuple(results[:count])
        collected.append(tuple(results[count:]))
        i += 1
    scans = _columns(collected, n_outputs - count)
    return (*state, *(_stacked(values, body, 1 + count + j) for j, values in enumerate(scans)))


def _declared_rank(body: Body, slot: int) -> int:
    """The rank of the trip number or condition that a body gets: 1 if it declares a list, as old converters do; else 0."""
    declared: Any = getattr(body, "input_types", (None, None))[slot]
    return int(declared is not None and declared.shape is not None and len(declared.shape) == 1)


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [[row[j] for row in rows] for j in range(width)]


def _stacked(values: Sequence[Array], body: Body, output: int, axis: int = 0) -> Array:
    """The values of a body's output in one array. Without values, it has the type from the body's `output_types`, if known."""
    if values:
        return np.stack(values, axis=axis)
    types = getattr(body, "output_types", None)
    declared = types[output] if types else None
    if declared is None:
        return np.zeros(0, dtype=np.float32)
    shape = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    shape.insert(axis % (len(shape) + 1), 0)
    return np.zeros(shape, dtype=declared.dtype.numpy)


@kernel("Scan", since=9)
def scan(
    *inputs: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Any, ...]:
    count = len(inputs) - num_scan_inputs
    sources = _scanned(inputs[count:], scan_input_axes, scan_input_directions)
    state, columns = _scan(body, inputs[:count], sources, n_outputs - count)
    places = zip(columns, scan_output_directions or [0] * len(columns), scan_output_axes or [0] * len(columns))
    return (*state, *(_stacked(v[:: -1 if d else 1], body, count + j, axis) for j, (v, d, axis) in enumerate(places)))


@kernel("Scan", until=8)
def scan_8(
    lengths: Array | None,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Array, ...]:
    count = len(inputs) - num_scan_inputs
    batch, longest = inputs[count].shape[:2]
    steps = [longest] * batch if lengths is None else lengths.tolist()
    results = []
    for i in range(batch):
        sources = _scanned([x[i, : steps[i]] for x in inputs[count:]], None, directions)
        state, columns = _scan(body, [x[i] for x in inputs[:count]], sources, n_outputs - count)
        stacks = [_stacked(values, body, count + j) for j, values in enumerate(columns)]
        results.append([*state, *(np.pad(x, [(0, longest - len(x)), *[(0, 0)] * (x.ndim - 1)]) for x in stacks)])
    return tuple(np.stack(column) for column in _columns(results, n_outputs))


def _scanned(inputs: Sequence[Array], axes: Sequence[int] | None, directions: Sequence[int] | None) -> list[Array]:
    """The inputs with the scanned axis first and in scan order."""
    moved = [np.moveaxis(x, axes[j] if axes else 0, 0) for j, x in enumerate(inputs)]
    return [x[::-1] if directions and directions[j] else x for j, x in enumerate(moved)]


def _scan(
    body: Body, initial: Sequence[Any], sources: Sequence[Array], width: int
) -> tuple[tuple[Any, ...], list[list[Any]]]:
    """The final state, and for each scan output its values of all steps."""
    state = tuple(initial)
    collected = []
    for i in range(len(sources[0]) if sources[0].size else counted(len(sources[0]))):
        results = tuple(body(*state, *(x[i, ...] for x in sources)))
        state = results[: len(state)]
        collected.append(results[len(state) :])
    return state, _columns(collected, width)


@kernel("SequenceMap")
def sequence_map(sequence: list[Any], *additional: Any, body: Body, n_outputs: int) -> tuple[list[Any], ...]:
    rows = [body(item, *(x[i] if isinstance(x, list) else x for x in additional)) for i, item in enumerate(sequence)]
    return tuple(_columns(rows, n_outputs))


table({
    "SequenceConstruct": lambda *items: list(items),
    "SequenceEmpty": lambda *, dtype=1: [],
    "SequenceLength": lambda sequence: np.array(len(sequence), np.int64),
    "SequenceAt": lambda sequence, position: sequence[int(position.item())],
    "ConcatFromSequence": lambda sequence, *, axis, new_axis=0: (np.stack if new_axis else np.concatenate)(sequence, axis),
    "Optional": lambda value=None, *, type=None: value,
    "OptionalHasElement": lambda value=None: np.array(value is not None),
})  # fmt: skip


@kernel("SequenceInsert")
def sequence_insert(sequence: list[Any], item: Any, position: Array | None = None) -> list[Any]:
    at = _position(position, len(sequence), len(sequence))
    return [*sequence[:at], item, *sequence[at:]]


@kernel("SequenceErase")
def sequence_erase(sequence: list[Any], position: Array | None = None) -> list[Any]:
    at = _position(position, len(sequence), len(sequence) - 1)
    return sequence[:at] + sequence[at + 1 :]


def _position(position: Array | None, size: int, highest: int) -> int:
    """A position in a sequence of this size, by default the highest."""
    at = highest if position is None else int(position.item())
    if not -size <= at <= highest:
        raise IndexError(f"position {at} is outside a sequence of {size}")
    return at + size if at < 0 else at


@kernel("SplitToSequence")
def split_to_sequence(x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """A scalar `split`, by default 1, is the size of each part but the last. With a list, the axis stays."""
    if split is not None and split.ndim:
        return list(pieces(x, axis, split))
    size = 1 if split is None else int(split.item())
    parts = chunks(x, axis, size, counted(-(-x.shape[axis] // size)))
    return list(parts) if keepdims else [part.squeeze(axis) for part in parts]


@kernel("OptionalGetElement")
def optional_get_element(value: Any) -> Any:
    if value is None:
        raise ValueError("the optional is empty")
    return value
